"""A campaign ended at a real API server with the driver's granted rights alone, beside the objects of others.

API server, scheduler, controllers, garbage collector and quota are real. The test plays the kubelets: one of three
nodes is dead. Nothing is trained.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Node, Pod, Secret, Service
from lightkube.types import PatchType

from infra.campaign.launch import STEWARD
from infra.cluster import attempts
from infra.cluster.kubernetes import JobSet
from infra.cluster.standing.placing import placed
from infra.record.events import CampaignState, Stage
from infra.record.store import CampaignStore
from infra.standing.belongings import Tenant, node_trouble
from infra.standing.certificate import certify
from infra.standing.ending import end
from infra.standing.openings import health_gang, openings
from tests import pods
from tests.waiting import until as eventually
from tests.worlds.control_plane import config, plane
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.standing.cluster import OTHERS, SPACE, Cluster, cluster, code, install_jobset
from tests.worlds.standing.kubelets import PlayedKubelets
from tests.worlds.standing.steward import spec_at

__all__ = ["cluster", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
RACKS = ("end-1", "end-2", "end-3")
FOREIGN = (ConfigMap, Secret, Service, Pod, Job, Deployment, ReplicaSet, JobSet)
LABEL = "bivouac.dev/campaign"


class EndingKubelets(PlayedKubelets):
    """Those of three nodes. A pod runs until it is deleted; one that empties a folder ends well at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.emptied: set[str] = set()
        """Nodes on which a folder was emptied."""
        super().__init__(cluster.admin, RACKS)

    def handle(self, name: str, labels: dict[str, str], node: str) -> None:
        is_folders = labels.get("bivouac.dev/role") == "folders"
        self.emptied |= {node} if is_folders else set()
        change = {"status": {"phase": "Succeeded" if is_folders else "Running"}}
        code(partial(self.admin.patch, Pod.Status, name, change, namespace=SPACE, patch_type=PatchType.MERGE))


@pytest.fixture
def kubelets(cluster: Cluster) -> Iterator[EndingKubelets]:
    install_jobset(cluster)
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "scratch"},
        "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "lustre",
                 "hostPath": {"path": "/scratch"}, "claimRef": {"namespace": SPACE, "name": "scratch"}},
    }  # fmt: skip
    code(lambda: cluster.admin.create(from_dict(volume)))
    made = EndingKubelets(cluster)
    yield made
    made.stop()


def listed(cluster: Cluster, kind: Any, space: str) -> list[Any]:
    return list(cluster.admin.list(kind, namespace=space))


def strangers(cluster: Cluster) -> dict[tuple[str, str, str], Any]:
    """Everything of others in both namespaces, as the server has it, with the versions of its objects."""
    return {
        (kind.__name__, space, str(item.metadata.name)): item.to_dict()
        for kind in FOREIGN
        for space in (SPACE, OTHERS)
        for item in listed(cluster, kind, space)
        if item.metadata is not None and (item.metadata.labels or {}).get(LABEL) != "on-racks"
    }


def test_a_campaign_ends_by_the_granted_rights_and_only_what_it_made_goes(
    kubelets: EndingKubelets, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_at("http://127.0.0.1:1", "training")
    assert spec.cluster is not None
    for name, space, labels in (
        ("theirs", SPACE, {}), ("archive", SPACE, {LABEL: "on-racks-2"}), ("theirs", OTHERS, {LABEL: "on-racks"}),
    ):  # fmt: skip
        metadata = ObjectMeta(name=name, namespace=space, labels=labels)
        cluster.admin.create(ConfigMap(metadata=metadata, data={"a": "1"}))
    steward, driver = cluster.tenant(monkeypatch, "steward"), cluster.tenant(monkeypatch)
    foreign = strangers(cluster) | {
        ("ConfigMap", OTHERS, "theirs"): cluster.admin.get(ConfigMap, "theirs", namespace=OTHERS).to_dict()
    }
    documents = dict(openings(spec, spec.cluster))
    driver.create(from_dict(documents["a config map"]))
    driver.create(from_dict(documents["the steward"]))
    gang = health_gang(spec).model_copy(update={"name": "on-racks-a1", "attempt": 1})
    attempts.launch(steward, gang, spec.cluster)
    archive = placed(pods.archive(), spec.cluster)
    for metadata in (archive["metadata"], archive["spec"]["template"]["metadata"]):
        metadata["labels"][LABEL] = spec.campaign
    steward.create(from_dict(archive))

    def on_nodes() -> list[Pod]:
        own_pods = list(driver.list(Pod, labels={LABEL: spec.campaign}))
        run = [pod for pod in own_pods if pod.status and pod.status.phase == "Running"]
        return run if len(run) == 4 else []

    running = eventually(on_nodes)
    kubelets.dead = next(pod.spec.nodeName for pod in running if "on-racks-a1" in pod.metadata.name)
    store = CampaignStore(FakeS3(Time()), "training", spec.campaign, "driver", f"bivouac/campaigns/{spec.campaign}")
    campaign = Tenant(driver, store, spec, pause=partial(_pause, threading.Event()), now=lambda: 0.0)
    state = CampaignState(begun_with=Stage.CHECK)
    eventually(lambda: node_trouble(cluster.admin, kubelets.dead))
    ended = end(campaign, state)
    assert kubelets.emptied >= set(RACKS) - {kubelets.dead}
    assert ended.unreached[kubelets.dead].startswith("not Ready")
    certificate = certify(campaign, state, "identity", ended.unreached, "driver")
    assert certificate.clean, (certificate.found, certificate.blind)
    lines = {words.partition(":")[0]: words for words in certificate.borrowed}
    assert "left on it until it is back" in lines[f"node {kubelets.dead}"]
    for name in set(RACKS) - {kubelets.dead}:
        assert lines[f"node {name}"] == f"node {name}: Ready; no pod of ours on it"
    after = strangers(cluster)
    assert {key: after.get(key) for key in foreign if key != ("ConfigMap", OTHERS, "theirs")} == {
        key: document for key, document in foreign.items() if key != ("ConfigMap", OTHERS, "theirs")
    }
    theirs = cluster.admin.get(ConfigMap, "theirs", namespace=OTHERS)
    assert theirs.to_dict() == foreign["ConfigMap", OTHERS, "theirs"]
    left = [pod for pod in cluster.admin.list(Pod, namespace=SPACE) if pod.spec]
    assert {pod.spec.nodeName for pod in left if pod.spec} == {kubelets.dead}
    assert not list(driver.list(Deployment)) and not list(driver.list(JobSet)) and not list(driver.list(Job))
    assert STEWARD not in [item.metadata.name for item in driver.list(ConfigMap) if item.metadata]
    # The admin removes the dead node: now nothing at all is there.
    cluster.admin.delete(Node, kubelets.dead)
    eventually(lambda: not list(driver.list(Pod)))


def _pause(never: threading.Event) -> None:
    never.wait(0.5)

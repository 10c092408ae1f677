"""A steward at a real API server with the granted rights alone: a node is killed, and the gang goes on on others.

Scheduler, quota, Pod Security and the controllers are real. The test is the kubelets: it tells how pods end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node, Pod
from lightkube.types import PatchType

from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL
from infra.cluster.kubernetes import JobSet
from infra.rehearsal.aws.world import World
from infra.steward.seeing import committed
from tests.rehearsal.aws_account import signed_in
from tests.rehearsal.standing.test_standing_cluster import OTHERS, SPACE, Cluster, cluster, install_jobset
from tests.worlds.control_plane import config, plane
from tests.worlds.standing_steward import ARCHIVED, GANG, commit, run_steward, spec_at

__all__ = ["cluster", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
RACKS = ("rack-5", "rack-6", "rack-7")
DEVICES = {"nvidia.com/gpu": "8", "rdma/hca": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
BUCKET = "training-granted"


class Kubelets:
    """Those of three nodes for two pods. The first node that gets a pod of the gang dies once its peer runs too."""

    def __init__(self, cluster: Cluster, shared: Path, campaign: str) -> None:
        self.admin, self.shared, self.campaign = cluster.admin, shared, campaign
        self.dead = ""
        self.gangs: dict[str, set[str]] = {}
        """Attempt -> nodes that the scheduler chose."""
        self._over = threading.Event()
        for name in RACKS:
            self.admin.create(Node(metadata=ObjectMeta(name=name, labels={"gpu": "h100"})))
        self.turn()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.5):
            self.turn()

    def turn(self) -> None:
        for name in RACKS:
            self._tell(name, "Unknown" if name == self.dead else "True")
        pods = [pod for pod in self.admin.list(Pod, namespace=SPACE) if pod.spec and pod.spec.nodeName]
        for pod in pods:
            assert pod.metadata is not None and pod.spec is not None and pod.status is not None
            name, labels, node = str(pod.metadata.name), pod.metadata.labels or {}, str(pod.spec.nodeName)
            if node == self.dead:
                continue
            if pod.metadata.deletionTimestamp is not None:
                self.admin.delete(Pod, name, namespace=SPACE, grace_period=0)
            elif pod.status.phase == "Pending":
                self._start(name, labels, node)

    def _start(self, name: str, labels: dict[str, str], node: str) -> None:
        attempt = labels.get(ATTEMPT_LABEL, "")
        if not attempt:
            self._end(name, "archive", ARCHIVED)
            return
        commit(self.shared, self.campaign)
        nodes = self.gangs.setdefault(attempt, set())
        nodes.add(node)
        if attempt != "1":
            peers = list(self.admin.list(Pod, namespace=SPACE, labels={ATTEMPT_LABEL: attempt}))
            # A pod that ends leaves its node to a peer that waits.
            if sum(bool(pod.spec and pod.spec.nodeName) for pod in peers) == GANG:
                self._end(name, "trainer", "")
            return
        self._status(name, {"phase": "Running", "podIP": "127.0.0.1"}, "trainer", {"running": {"startedAt": _now()}})
        if len(nodes) > 1:
            self.dead = min(nodes)

    def _end(self, name: str, container: str, message: str) -> None:
        state = {"terminated": {"exitCode": 0, "message": message, "startedAt": _now(), "finishedAt": _now()}}
        self._status(name, {"phase": "Succeeded"}, container, state)

    def _status(self, name: str, status: dict[str, Any], container: str, state: dict[str, Any]) -> None:
        row = {"name": container, "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        change = {"status": status | {"containerStatuses": [row]}}
        self.admin.patch(Pod.Status, name, change, namespace=SPACE, patch_type=PatchType.MERGE)

    def _tell(self, node: str, ready: str) -> None:
        condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": _now(), "reason": "Test", "message": ""}
        change = {"status": {"conditions": [condition], "capacity": DEVICES, "allocatable": DEVICES}}
        self.admin.patch(Node.Status, node, change, patch_type=PatchType.MERGE)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def kubelets(cluster: Cluster, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelets]:
    install_jobset(cluster)
    signed_in(monkeypatch, world)
    monkeypatch.setattr(committed, "SHARED_CHECKPOINTS", str(tmp_path))
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "scratch"},
        "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "lustre",
                 "hostPath": {"path": "/scratch"}, "claimRef": {"namespace": SPACE, "name": "scratch"}},
    }  # fmt: skip
    cluster.admin.create(from_dict(volume))
    made = Kubelets(cluster, tmp_path, "on-racks")
    yield made
    made.stop()


def test_a_gang_whose_node_is_killed_goes_on_on_a_spare_one_by_the_granted_rights(
    kubelets: Kubelets, cluster: Cluster, world: World, aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.s3.create_bucket(Bucket=BUCKET)
    cluster.admin.create(ConfigMap(metadata=ObjectMeta(name="theirs", namespace=OTHERS), data={"a": "1"}))
    spec = spec_at(world.endpoint_url, BUCKET)
    steward = cluster.tenant(monkeypatch, "steward")
    events = run_steward(spec, BUCKET, aws.s3, steward)
    kinds = [str(event.kind) for event in events]
    assert "training.finished" in kinds and "archive.verified" in kinds
    (given_up,) = (event.payload for event in events if event.kind == "node.quarantined")
    assert given_up.node == kubelets.dead and given_up.died  # type: ignore[attr-defined]
    assert len(kubelets.gangs["1"]) == 2 and kubelets.gangs["2"] == set(RACKS) - {kubelets.dead}
    for name in RACKS:
        node = cluster.admin.get(Node, name)
        assert node.metadata is not None and "bivouac.dev/quarantined" not in (node.metadata.labels or {})
        assert node.spec is None or not node.spec.unschedulable
    assert cluster.admin.get(ConfigMap, "theirs", namespace=OTHERS).data == {"a": "1"}
    for name in attempts.jobs(steward, JobSet, spec.campaign).values():
        attempts.remove(steward, JobSet, name)

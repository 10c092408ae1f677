"""A steward at a real API server with the granted rights alone: a node is killed, and the gang goes on on others.

Scheduler, quota, Pod Security and the controllers are real. The test is the kubelets: it tells how pods end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node

from infra.cluster import attempts
from infra.cluster.kubernetes import JobSet
from infra.rehearsal.aws.world import World
from infra.steward.seeing import committed
from tests.rehearsal.aws_account import signed_in
from tests.worlds.control_plane import config, plane
from tests.worlds.standing.cluster import OTHERS, SPACE, Cluster, cluster, install_jobset
from tests.worlds.standing.kubelets import RACKS, Kubelets
from tests.worlds.standing.steward import run_steward, spec_at

__all__ = ["cluster", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
BUCKET = "training-granted"


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
    made = Kubelets(cluster.admin, tmp_path, "on-racks")
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

"""Kueue beside JobSet's controller on a real API server: queues of a tenant, his gangs, and what is done to them.

No kubelet runs. The test says what becomes of a pod, as a kubelet would: it writes the pod's status.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.kubernetes import JobSet
from infra.cluster.standing import placing
from infra.cluster.standing.queueing import GROUP, VERSION, QueuePlace, Workload, queue_place
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster
from infra.standing.grant import Subject, grant_text
from infra.standing.look import look_at_queue
from infra.standing.openings import health_gang, openings
from tests.root import ROOT
from tests.waiting import until as eventually
from tests.worlds.control_plane import client, config, plane, release_secret, state_of
from tests.worlds.standing.cluster import Cluster

__all__ = ["client", "config", "plane"]
SPEC: dict[str, Any] = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())
SPACE, KUEUE = "team-a", {"apiVersion": "kueue.x-k8s.io/v1beta2"}
LEAF = "topology.k8s.aws/network-node-layer-3"
PODS, GPUS = 2, 16
"""Of each gang."""
AdmissionCheck = create_global_resource(GROUP, VERSION, "AdmissionCheck", "admissionchecks")


def cluster_queue(
    name: str, flavour: str, gpus: int = GPUS, borrowing_limit: int | None = None, **spec: Any
) -> list[dict[str, Any]]:
    """A queue of the tenant's with these GPUs, and as much of all else as nobody takes."""
    quota = {"cpu": "100", "nvidia.com/gpu": str(gpus), "rdma/hca": "100"}
    resources = [{"name": resource, "nominalQuota": count} for resource, count in quota.items()]
    if borrowing_limit is not None:
        resources[1]["borrowingLimit"] = str(borrowing_limit)
    group = {"coveredResources": list(quota), "flavors": [{"name": flavour, "resources": resources}]}
    return [
        {**KUEUE, "kind": "ClusterQueue", "metadata": {"name": name},
         "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec}},
        {**KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": SPACE}, "spec": {"clusterQueue": name}},
    ]  # fmt: skip


@dataclass
class Queued:
    """A cluster with Kueue, and a campaign's gangs in it."""

    config: ControlPlaneConfig
    admin: Client
    steward: Client
    """With the rights of the campaign's steward."""
    numbers: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def make(self, *documents: dict[str, Any]) -> None:
        """Make objects once Kueue's webhooks take them."""

        def made() -> bool:
            try:
                kubectl.apply(self.config, documents)
            except Exception as error:
                assert "webhook" in str(error), error
                return False
            return True

        eventually(made)

    def cluster(self, queue: str, **changes: Any) -> StandingCluster:
        return StandingCluster.model_validate({**SPEC["cluster"], "queue": queue, **changes})

    def launch(self, name: str, queue: str, nodes: int = PODS, **changes: Any) -> None:
        """Make the gang, as the product places it."""
        self.numbers[name], self.sizes[name] = len(self.numbers) + 1, nodes
        job = health_gang(Spec.model_validate(SPEC)).model_copy(
            update={"name": name, "attempt": self.numbers[name], "nodes": nodes, "each_to_its_end": False}
        )
        self.admin.create(JobSet.from_dict(placing.gang(job, self.cluster(queue, **changes))))

    def jobset(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self.admin.get(JobSet, name, namespace=SPACE).to_dict()
        return document

    def conditions(self, name: str) -> set[str]:
        rows = (self.jobset(name).get("status") or {}).get("conditions") or ()
        return {row["type"] for row in rows if row["status"] == "True"}

    def workloads(self, name: str) -> list[dict[str, Any]]:
        """The Workloads of a gang."""
        uid = self.jobset(name)["metadata"]["uid"]
        rows = [one.to_dict() for one in self.admin.list(Workload, namespace=SPACE)]
        return [row for row in rows if uid in {owner["uid"] for owner in row["metadata"].get("ownerReferences", ())}]

    def place(self, name: str) -> QueuePlace:
        rows = [one.to_dict() for one in self.admin.list(Workload, namespace=SPACE)]
        return queue_place(self.jobset(name)["metadata"]["uid"], rows)

    def words(self, name: str) -> str:
        """What the steward hears of the gang, by its own rights."""
        return attempts.ask_queue(self.steward, JobSet, name, SPACE).words

    def lacks(self, queue: str, **changes: object) -> dict[str, object]:
        """What `check --online` hears of a queue, for the gang of the spec: four nodes of eight GPUs."""
        section = self.cluster(queue, **changes)
        documents = [document for _, document in openings(Spec.model_validate(SPEC), section)]
        answer = look_at_queue(self.admin, section, documents)
        assert answer is not None
        return {name: value for name, value in answer if value}

    def await_state(self, name: str, *states: str) -> QueuePlace:
        def reached() -> QueuePlace | None:
            place = self.place(name)
            # A gang waits before Kueue has looked at it, too; why, it says a moment later.
            return place if place.state in states and (place.reason or place.state != "waiting") else None

        place: QueuePlace = eventually(reached, lambda: f"{states} of {name}: {self.place(name)}")
        return place

    def pods(self, name: str) -> list[Pod]:
        """Its pods that nobody has deleted."""
        labels: Any = {CAMPAIGN_LABEL: SPEC["campaign"], ATTEMPT_LABEL: str(self.numbers[name])}
        pods = self.admin.list(Pod, namespace=SPACE, labels=labels)
        return [pod for pod in pods if pod.metadata and not pod.metadata.deletionTimestamp]

    def await_pods(self, name: str) -> list[Pod]:
        def whole() -> list[Pod]:
            pods = self.pods(name)
            return pods if len(pods) == self.sizes[name] else []

        pods: list[Pod] = eventually(whole, lambda: f"all pods of {name}: {self.pods(name)}")
        return pods

    def end(self, name: str, phase: str) -> None:
        """Each of its pods ends in this phase, at once."""
        for pod in self.await_pods(name):
            assert pod.metadata and pod.metadata.name
            self.admin.patch(
                Pod.Status, pod.metadata.name, {"status": {"phase": phase}}, namespace=SPACE, patch_type=PatchType.MERGE
            )

    def lose(self, name: str) -> None:
        """Each of its pods is gone at once, as from nodes that an admin has removed."""
        for pod in self.await_pods(name):
            assert pod.metadata and pod.metadata.name
            self.admin.delete(Pod, pod.metadata.name, namespace=SPACE, grace_period=0)

    def remove(self, *names: str) -> None:
        for name in names:
            try:
                self.admin.delete(JobSet, name, namespace=SPACE)
            except ApiError as error:
                assert error.status.code == 404
        for name in names:
            eventually(partial(self.pods_are_gone, name))

    def pods_are_gone(self, name: str) -> bool:
        return not self.pods(name)


@dataclass
class Approval:
    """An admission check, and the controller that would decide it: the test."""

    queued: Queued
    name: str

    def make(self) -> None:
        spec = {"controllerName": "example.org/approval"}
        self.queued.make({**KUEUE, "kind": "AdmissionCheck", "metadata": {"name": self.name}, "spec": spec})

    def stand_ready(self) -> None:
        """Say of the check that its controller runs."""
        row = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": _now()}
        change = {"status": {"conditions": [row]}}
        self.queued.admin.patch(AdmissionCheck.Status, self.name, change, patch_type=PatchType.MERGE)

    def pending(self) -> list[str]:
        """Names of the Workloads that wait for it."""
        rows = [one.to_dict() for one in self.queued.admin.list(Workload, namespace=SPACE)]
        return [row["metadata"]["name"] for row in rows if self._state(row) == "Pending"]

    def _state(self, workload: dict[str, Any]) -> str:
        checks = (workload.get("status") or {}).get("admissionChecks") or ()
        return next((check["state"] for check in checks if check["name"] == self.name), "")

    def decide(self, workload: str, state: str) -> None:
        row = {"name": self.name, "state": state, "message": f"a person said {state}", "lastTransitionTime": _now()}
        change = {"status": {"admissionChecks": [row]}}
        self.queued.admin.patch(Workload.Status, workload, change, namespace=SPACE, patch_type=PatchType.MERGE)

    def decide_on(self, gang: str, state: str) -> None:
        (workload,) = self.queued.workloads(gang)
        self.decide(workload["metadata"]["name"], state)


@pytest.fixture(scope="session")
def kueue_settings() -> dict[str, Any]:
    """Kueue's own configuration, over its default; a module may have another."""
    return {}


@pytest.fixture(scope="session")
def queued(
    plane: ControlPlane,
    config: ControlPlaneConfig,
    kueue_settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Queued:
    """The tenant's namespace as `bivouac grant` makes it, JobSet and Kueue, a flavour of all nodes, two priorities."""
    admin, nodes = plane.client(), {**SPEC["nodes"], "count": 8}
    section = {**SPEC["cluster"], "queue": "one", "priority": "high"}
    spec = Spec.model_validate({**SPEC, "nodes": nodes, "cluster": section})
    assert spec.cluster is not None
    kubectl.apply(config, [*yaml.safe_load_all(grant_text(spec, spec.cluster, Subject()))])
    with pytest.MonkeyPatch.context() as patch:
        steward = Cluster(config, admin, tmp_path_factory.mktemp("queued")).tenant(patch, "steward")
    world = Queued(config, admin, steward)
    values = {"managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(kueue_settings)}}
    for release in ("jobset", "kueue"):
        admin.create(release_secret(release, release, values if release == "kueue" else None))
        eventually(partial(state_of, admin, release))
    world.make(
        {**KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        *({**KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
          for name, value in (("high", 1000), ("low", 10))),
        *volumes("scratch"),
    )  # fmt: skip
    return world


def volumes(name: str) -> list[dict[str, Any]]:
    size, claim = {"storage": "1Gi"}, {"name": name, "namespace": SPACE}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
         "spec": {**shared, "capacity": size, "hostPath": {"path": "/tmp"},
                  "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": claim,
         "spec": {**shared, "volumeName": name, "resources": {"requests": size}}},
    ]  # fmt: skip


@dataclass
class Racks:
    """Nodes in leaves, kept alive by their leases as by kubelets."""

    admin: Client
    alive: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def add(self, name: str, leaf: str) -> None:
        labels = {"gpu": "h100", LEAF: leaf, "kubernetes.io/hostname": name}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self.admin.create(from_dict(node))
        room = {"cpu": "64", "memory": "64Gi", "pods": "32", "nvidia.com/gpu": "8", "rdma/hca": "8"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                 "lastHeartbeatTime": _now(), "lastTransitionTime": _now()}  # fmt: skip
        status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
        self.admin.patch(Node.Status, name, status, patch_type=PatchType.MERGE)
        self.alive.add(name)

    def remove(self, *names: str) -> None:
        for name in names:
            self.alive.discard(name)
            self.admin.delete(Node, name)

    @contextmanager
    def kept(self) -> Iterator[Racks]:
        """The nodes live until the block ends, and are gone then."""
        keeper = threading.Thread(target=self.keep, daemon=True)
        keeper.start()
        try:
            yield self
        finally:
            self.over.set()
            keeper.join()
            self.remove(*tuple(self.alive))

    def keep(self) -> None:
        while not self.over.wait(2):
            for name in sorted(self.alive):
                lease = {
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": name, "namespace": "kube-node-lease"},
                    "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now(".%f")},
                }  # fmt: skip
                self.admin.apply(from_dict(lease), field_manager="kubelet", force=True)


def _now(fraction: str = "") -> str:
    return datetime.now(UTC).strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z")


@pytest.fixture
def racks(queued: Queued) -> Iterator[Racks]:
    with Racks(queued.admin).kept() as racks:
        yield racks

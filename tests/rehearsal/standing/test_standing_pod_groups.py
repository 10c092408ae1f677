"""Gangs that Kubernetes binds all together or not at all: real API server, scheduler and Job controller, gates on.

JobSet's controller of this project's toolchain is older than PodGroups. So one test says of its CRD what JobSet 0.12
says, and copies the JobSet's template into a Job, as its controller does; in the other the real controller runs, and
the Job controller of Kubernetes makes the group (gate `WorkloadWithJob`). No kubelet runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL
from infra.cluster.kubernetes import JobSet
from infra.cluster.standing.pod_groups import pod_groups
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster
from infra.standing.grant import Subject, grant_text
from infra.standing.openings import health_gang
from tests.waiting import until as eventually
from tests.worlds.control_plane import config, release_secret, state_of
from tests.worlds.standing.cluster import Cluster
from tests.worlds.standing.queue import LEAF, SPACE, SPEC, Racks, volumes

__all__ = ["config"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
GATES = ("GenericWorkload", "GangScheduling")
PODS = 3


class Gangs:
    """A tenant's namespace in a cluster whose scheduler binds gangs, and two nodes for three pods."""

    def __init__(self, plane: ControlPlane, config: ControlPlaneConfig, folder: Path) -> None:
        self.config, self.admin = config, plane.client()
        spec = Spec.model_validate(SPEC)
        assert spec.cluster is not None
        text = grant_text(spec, spec.cluster, Subject())
        kubectl.apply(config, [*yaml.safe_load_all(text), *volumes("scratch")])
        self.tenant = Cluster(config, self.admin, folder).tenant

    def pods(self) -> list[Pod]:
        return list(self.admin.list(Pod, namespace=SPACE, labels={ATTEMPT_LABEL: "1"}))

    def bound(self) -> set[str]:
        return {pod.spec.nodeName for pod in self.pods() if pod.spec and pod.spec.nodeName}

    def refusals(self) -> list[str]:
        """What the scheduler says of each pod that it has looked at and not bound."""
        conditions = [row for pod in self.pods() for row in (pod.status and pod.status.conditions) or ()]
        return [row.message or "" for row in conditions if row.type == "PodScheduled" and row.status == "False"]


@contextmanager
def standing(config: ControlPlaneConfig, folder: Path, gates: tuple[str, ...]) -> Iterator[tuple[Gangs, Racks]]:
    config = dataclasses.replace(config, feature_gates=gates, work=folder / "plane")
    plane = ControlPlane.start(config)
    try:
        gangs = Gangs(plane, config, folder)
        with Racks(gangs.admin).kept() as racks:
            yield gangs, racks
    finally:
        plane.stop()


def knows_groups(config: ControlPlaneConfig) -> dict[str, Any]:
    """JobSet's CRD with the field that 0.12 has."""
    path = share_dir("jobset", config.tools) / "crd/bases/jobset.x-k8s.io_jobsets.yaml"
    crd: dict[str, Any] = yaml.safe_load(path.read_text())
    (version,) = crd["spec"]["versions"]
    at = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicatedJobs"]["items"]
    for step in ("template", "spec", "template", "spec"):
        at = at["properties"][step]
    at["properties"]["schedulingGroup"] = {"type": "object", "properties": {"podGroupName": {"type": "string"}}}
    return crd


def launch(gangs: Gangs, tenant: Client, **changes: Any) -> None:
    gang = health_gang(Spec.model_validate(SPEC)).model_copy(
        update={"name": "on-racks-a1", "attempt": 1, "nodes": PODS, "each_to_its_end": False}
    )
    attempts.launch(tenant, gang, StandingCluster.model_validate({**SPEC["cluster"], **changes}))


def hand_to_the_job_controller(gangs: Gangs) -> None:
    """What JobSet's controller does of a JobSet with one replicated job."""
    jobset = gangs.admin.get(JobSet, "on-racks-a1", namespace=SPACE).to_dict()
    (row,) = jobset["spec"]["replicatedJobs"]
    metadata = {"name": "on-racks-a1-gang-0", "namespace": SPACE, "labels": jobset["metadata"]["labels"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": row["template"]["spec"]}
    gangs.admin.create(from_dict(job))


def see_all_or_none(gangs: Gangs, racks: Racks) -> None:
    """Two of three pods fit: none is bound. A third node comes: all are."""
    eventually(lambda: len(gangs.pods()) == PODS and len(gangs.refusals()) == PODS, lambda: str(gangs.pods()))
    assert gangs.bound() == set(), gangs.refusals()
    racks.add("rack-3", "a")
    eventually(lambda: gangs.bound() == {"rack-1", "rack-2", "rack-3"}, lambda: str(gangs.refusals()))


@pytest.mark.parametrize("account", ["driver", "steward"])
def test_no_pod_is_bound_until_all_fit(
    account: str, config: ControlPlaneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing(config, tmp_path, GATES) as (gangs, racks):
        kubectl.apply(gangs.config, [knows_groups(config)])
        kubectl.wait(gangs.config, "established", "crd/jobsets.jobset.x-k8s.io")
        for name in ("rack-1", "rack-2"):
            racks.add(name, "a")
        tenant = gangs.tenant(monkeypatch, account)
        launch(gangs, tenant)
        (group,) = pod_groups(gangs.tenant(monkeypatch))
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": PODS}}
        hand_to_the_job_controller(gangs)
        see_all_or_none(gangs, racks)
        attempts.remove(tenant, JobSet, "on-racks-a1")
        gangs.admin.delete(Job, "on-racks-a1-gang-0", namespace=SPACE)
        for pod in gangs.pods():  # as kubelets do: until then Kubernetes keeps the group
            assert pod.metadata is not None and pod.metadata.name is not None
            gangs.admin.delete(Pod, pod.metadata.name, namespace=SPACE, grace_period=0)
        driver = gangs.tenant(monkeypatch)
        eventually(lambda: not list(pod_groups(driver)), lambda: str(list(pod_groups(driver))))


def test_a_gang_is_bound_in_the_one_leaf_that_has_room_for_all(
    config: ControlPlaneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four nodes for three pods, two in each leaf: none is bound until one leaf has three."""
    with standing(config, tmp_path, (*GATES, "TopologyAwareWorkloadScheduling")) as (gangs, racks):
        kubectl.apply(gangs.config, [knows_groups(config)])
        kubectl.wait(gangs.config, "established", "crd/jobsets.jobset.x-k8s.io")
        for name, leaf in (("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("b-2", "b")):
            racks.add(name, leaf)
        launch(gangs, gangs.tenant(monkeypatch, "steward"), topology={"label": LEAF, "required": True})
        (group,) = pod_groups(gangs.tenant(monkeypatch))
        assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": LEAF}]}
        hand_to_the_job_controller(gangs)
        eventually(lambda: len(gangs.refusals()) == PODS, lambda: str(gangs.pods()))
        assert gangs.bound() == set(), gangs.refusals()
        racks.add("b-3", "b")
        eventually(lambda: gangs.bound() == {"b-1", "b-2", "b-3"}, lambda: str(gangs.refusals()))


def test_kubernetes_makes_the_group_of_a_jobset_that_knows_none(
    config: ControlPlaneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing(config, tmp_path, (*GATES, "WorkloadWithJob")) as (gangs, racks):
        gangs.admin.create(release_secret("jobset", "jobset"))
        eventually(partial(state_of, gangs.admin, "jobset"))
        for name in ("rack-1", "rack-2"):
            racks.add(name, "a")
        launch(gangs, gangs.tenant(monkeypatch, "steward"))
        see_all_or_none(gangs, racks)
        (group,) = pod_groups(gangs.tenant(monkeypatch))
        assert group["metadata"]["name"] != "on-racks-a1" and group["metadata"]["ownerReferences"][0]["kind"] == "Job"

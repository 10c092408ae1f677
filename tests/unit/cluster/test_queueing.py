"""Kueue's word on a gang, from Workloads and ClusterQueues as the API server gives them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from infra.cluster.standing.queueing import QueuePlace, demand, queue_place, quota_gaps

UID = "3f2c"
NO_QUOTA = "couldn't assign flavors to pod set gang: insufficient unused quota for nvidia.com/gpu in flavor h100"


def condition(kind: str, status: bool, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": str(status), "reason": reason, "message": message}


def workload(*conditions: dict[str, Any], born: int = 1, uid: str = UID, **more: Any) -> dict[str, Any]:
    metadata = {"creationTimestamp": f"2026-11-26T00:00:0{born}Z", "ownerReferences": [{"uid": uid}]}
    return {"metadata": metadata, "spec": {"active": more.pop("active", True)},
            "status": {"conditions": list(conditions), **more}}  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "more", "place"),
    [
        ([], {}, ("waiting", "", "")),
        ([condition("QuotaReserved", False, "Pending", NO_QUOTA)], {}, ("waiting", "Pending", NO_QUOTA)),
        ([condition("QuotaReserved", False, "Inadmissible", "LocalQueue x doesn't exist")], {},
         ("waiting", "Inadmissible", "LocalQueue x doesn't exist")),
        ([condition("QuotaReserved", True, "QuotaReserved"), condition("Admitted", False, "NoChecks")],
         {"admissionChecks": [{"name": "a", "state": "Ready"}, {"name": "b", "state": "Retry", "message": "no node"}]},
         ("checking", "b is Retry", "no node")),
        ([condition("QuotaReserved", True, "QuotaReserved", "reserved")], {},
         ("checking", "QuotaReserved", "reserved")),
        ([condition("QuotaReserved", True), condition("Admitted", True, "Admitted", "yes")], {},
         ("admitted", "Admitted", "yes")),
        ([condition("QuotaReserved", True), condition("Admitted", True), condition("Evicted", True, "Preempted", "b"),
          condition("Preempted", True, "InClusterQueue", "by workload b")], {},
         ("evicting", "InClusterQueue", "by workload b")),
        ([condition("QuotaReserved", False, "Pending"), condition("Evicted", True, "NodeFailures", "n1, n2")], {},
         ("evicted", "NodeFailures", "n1, n2")),
        # It was preempted once, and has been admitted again.
        ([condition("QuotaReserved", True), condition("Admitted", True, "Admitted"), condition("Evicted", False),
          condition("Preempted", False, "InClusterQueue")], {}, ("admitted", "Admitted", "")),
        ([condition("Evicted", True, "Deactivated", "requeueing limit")], {"active": False},
         ("stopped", "Deactivated", "requeueing limit")),
        ([condition("Admitted", True), condition("Finished", True, "Failed", "jobset failed")], {},
         ("finished", "Failed", "jobset failed")),
    ],
)  # fmt: skip
def test_the_place_is_what_the_conditions_say(
    conditions: list[dict[str, Any]], more: dict[str, Any], place: tuple[str, str, str]
) -> None:
    state, reason, message = place
    answer = queue_place(UID, [workload(*conditions, **more)])
    assert answer == QueuePlace(state=state, reason=reason, message=message)  # type: ignore[arg-type]
    assert answer.waits == (state not in ("admitted", "finished"))
    assert (answer.words == "") != answer.waits and message in (answer.words or message)


def test_a_job_that_kueue_has_not_noticed_waits_and_says_so() -> None:
    answer = queue_place(UID, [workload(condition("Admitted", True), uid="another")])
    assert answer.waits and "has not noticed" in answer.words


def test_of_two_workloads_of_a_job_the_newer_counts() -> None:
    old = workload(condition("Finished", True, "OutOfSync"), born=1)
    new = workload(condition("QuotaReserved", False, "Pending"), born=2)
    assert queue_place(UID, [new, old]).state == queue_place(UID, [old, new]).state == "waiting"


def job(parallelism: int, **requests: str) -> dict[str, Any]:
    pod = {"containers": [{"resources": {"requests": requests}}, {}]}
    return {"template": {"spec": {"parallelism": parallelism, "template": {"spec": pod}}}}


def test_the_demand_is_that_of_all_pods() -> None:
    jobset = {"spec": {"replicatedJobs": [job(4, gpu="8", cpu="100m"), {"replicas": 2, **job(3, memory="1Gi")}]}}
    assert demand(jobset) == {"gpu": 32, "cpu": Decimal("0.4"), "memory": 6 * 2**30}


WANTED = {"cpu": Decimal("0.4"), "gpu": Decimal(32)}


def flavour(name: str, **quotas: Any) -> dict[str, Any]:
    rows = [
        {"name": resource, **(quota if isinstance(quota, dict) else {"nominalQuota": quota})}
        for resource, quota in quotas.items()
    ]
    return {"name": name, "resources": rows}


def cluster_queue(*flavours: dict[str, Any], covered: tuple[str, ...] = ("cpu", "gpu"), **spec: Any) -> dict[str, Any]:
    return {"spec": {"resourceGroups": [{"coveredResources": list(covered), "flavors": list(flavours)}], **spec}}


@pytest.mark.parametrize(
    ("queue", "uncovered", "short"),
    [
        (cluster_queue(flavour("a", cpu="1", gpu="32")), (), ()),
        (cluster_queue(flavour("a", cpu="1", gpu="31")), (), ("a: 31 gpu of 32",)),
        # One flavour must have it all: two halves are no whole.
        (cluster_queue(flavour("a", cpu="1", gpu="16"), flavour("b", cpu="100m", gpu="64")), (),
         ("a: 16 gpu of 32", "b: 0.1 cpu of 0.4")),
        (cluster_queue(flavour("a", cpu="1", gpu="16"), flavour("b", cpu="1", gpu="64")), (), ()),
        (cluster_queue(flavour("a", cpu="1"), covered=("cpu",)), ("gpu, of cpu",), ()),
        ({"spec": {}}, ("cpu, of none", "gpu, of none"), ()),
        (cluster_queue(flavour("a", cpu="1", gpu="0"), cohortName="all"), (), ()),
        (cluster_queue(flavour("a", cpu="1", gpu={"nominalQuota": "8", "borrowingLimit": "16"}), cohortName="all"), (),
         ("a: 24 gpu of 32",)),
        # Without a cohort there is nobody to borrow from.
        (cluster_queue(flavour("a", cpu="1", gpu={"nominalQuota": "8", "borrowingLimit": "64"})), (),
         ("a: 8 gpu of 32",)),
    ],
)  # fmt: skip
def test_a_gap_is_what_no_flavour_can_ever_give(
    queue: dict[str, Any], uncovered: tuple[str, ...], short: tuple[str, ...]
) -> None:
    gaps = quota_gaps(queue, WANTED)
    assert (gaps.uncovered, gaps.short) == (uncovered, short)

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


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("InCohortReclamation", "its quota was borrowed, and the owner took it back: InCohortReclamation: by b"),
        ("InCohortFairSharing", "its queue held more than its fair share of the cohort: InCohortFairSharing: by b"),
        ("InClusterQueue", "another gang of its queue took its quota by priority: InClusterQueue: by b"),
        ("OfAnotherVersion", "it waits again: OfAnotherVersion: by b"),
    ],
)
def test_who_took_the_quota_is_said_in_words_and_in_kueues_own(reason: str, words: str) -> None:
    conditions = [condition("QuotaReserved", False, "Pending"), condition("Evicted", True, "Preempted", "b"),
                  condition("Preempted", True, reason, "by b")]  # fmt: skip
    assert queue_place(UID, [workload(*conditions)]).words.endswith(words)


def test_a_gang_that_kueue_has_not_looked_at_says_that_others_are_before_it() -> None:
    assert "others are before it" in queue_place(UID, [workload()]).words
    pending = condition("QuotaReserved", False, "Pending", NO_QUOTA)
    assert queue_place(UID, [workload(pending)]).words == f"the gang waits for quota: Pending: {NO_QUOTA}"


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
    pods = {"cpu": Decimal("0.25"), "memory": Decimal(2**20)}
    assert demand(jobset, pods) == {"gpu": 32, "cpu": Decimal("2.9"), "memory": 6 * 2**30 + 10 * 2**20}, "of ten pods"


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


LENT = {"nominalQuota": "16", "borrowingLimit": "16"}


@pytest.mark.parametrize(
    ("queue", "borrowed"),
    [
        (cluster_queue(flavour("a", cpu="1", gpu="16"), cohortName="all"), ("a: 16 gpu of 32",)),
        (cluster_queue(flavour("a", cpu="1", gpu=LENT), cohortName="all"), ("a: 16 gpu of 32",)),
        # What the queue has itself is nobody's to take back, and what it never gets is no loan.
        (cluster_queue(flavour("a", cpu="1", gpu="16"), flavour("b", cpu="1", gpu="32"), cohortName="all"), ()),
        (cluster_queue(flavour("a", cpu="1", gpu={**LENT, "borrowingLimit": "8"}), cohortName="all"), ()),
        (cluster_queue(flavour("a", cpu="1", gpu="16")), ()),
    ],
)
def test_what_a_cohort_must_lend_is_no_gap_but_borrowed(queue: dict[str, Any], borrowed: tuple[str, ...]) -> None:
    assert quota_gaps(queue, WANTED).borrowed == borrowed

"""Gangs in the queue of the real Kueue: who waits and why, who is preempted, and what two deaths at once do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.cluster.kubernetes import prepare_models
from tests.waiting import until
from tests.worlds.control_plane import client, config, plane
from tests.worlds.standing.queue import (
    GPUS,
    KUEUE,
    LEAF,
    PODS,
    Approval,
    Queued,
    Racks,
    cluster_queue,
    kueue_settings,
    queued,
    racks,
)

__all__ = ["client", "config", "kueue_settings", "plane", "queued", "racks"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid", tools=("kueue",))]


@pytest.fixture
def gangs(queued: Queued) -> Iterator[Queued]:
    """The queue `one`, which has room for one gang, and no gang."""
    prepare_models()
    preemption = {"withinClusterQueue": "LowerPriority"}
    queued.make(*cluster_queue("one", "any", preemption=preemption))
    yield queued
    queued.remove(*queued.numbers)


def test_the_second_gang_waits_says_why_and_starts_when_the_first_ends(gangs: Queued) -> None:
    gangs.launch("first", "one")
    gangs.await_state("first", "admitted")
    gangs.await_pods("first")
    gangs.launch("second", "one")
    place = gangs.await_state("second", "waiting")
    assert place.waits and "insufficient unused quota for nvidia.com/gpu in flavor any, 16 more needed" in place.words
    assert gangs.jobset("second")["spec"]["suspend"] is True and gangs.pods("second") == []
    gangs.end("first", "Succeeded")
    gangs.await_state("first", "finished")
    assert gangs.await_state("second", "admitted").words == ""
    gangs.await_pods("second")
    assert "Failed" not in gangs.conditions("second")


def test_a_higher_priority_preempts_and_the_lower_starts_again_afterwards(gangs: Queued) -> None:
    gangs.launch("low", "one", priority="low")
    before = {pod.metadata.uid for pod in gangs.await_pods("low") if pod.metadata}
    gangs.launch("high", "one", priority="high")
    gangs.await_state("high", "admitted")
    gangs.await_pods("high")
    place = gangs.await_state("low", "evicted")
    assert place.waits and place.reason == "InClusterQueue" and "to accommodate a workload" in place.words
    # Its pods were ended, and for JobSet that is no failure: the attempt is suspended, and waits.
    assert gangs.pods("low") == [] and not {"Failed", "Completed"} & gangs.conditions("low")
    gangs.end("high", "Succeeded")
    gangs.await_state("low", "admitted")
    after = {pod.metadata.uid for pod in gangs.await_pods("low") if pod.metadata}
    assert not before & after and len(gangs.workloads("low")) == 1


@pytest.mark.parametrize("death", ["failed", "gone"])
def test_two_pods_dead_at_once_end_the_attempt_and_its_successor_queues_behind_others(
    death: str, gangs: Queued
) -> None:
    """Our JobSet never restarts: Kueue has nothing to queue again. The steward's next attempt is a new Workload."""
    gangs.launch(f"{death}-a1", "one")
    gangs.await_pods(f"{death}-a1")
    gangs.launch(f"{death}-other", "one")
    gangs.await_state(f"{death}-other", "waiting")
    if death == "failed":
        gangs.end(f"{death}-a1", "Failed")
    else:
        gangs.lose(f"{death}-a1")
    place = gangs.await_state(f"{death}-a1", "finished")
    assert place.reason == "Failed" and "Failed" in gangs.conditions(f"{death}-a1")
    # The quota is free at once, and whoever waited longest takes it.
    gangs.await_state(f"{death}-other", "admitted")
    gangs.launch(f"{death}-a2", "one")
    assert gangs.await_state(f"{death}-a2", "waiting").reason == "Pending"
    gangs.end(f"{death}-other", "Succeeded")
    gangs.await_state(f"{death}-a2", "admitted")
    gangs.await_pods(f"{death}-a2")


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
def test_a_small_gang_passes_a_large_one_that_waits_unless_the_queue_is_strict(strategy: str, gangs: Queued) -> None:
    queue = strategy.lower()
    gangs.make(*cluster_queue(queue, "any", gpus=2 * GPUS, queueingStrategy=strategy))
    first, large, small = (f"{queue}-{name}" for name in ("first", "large", "small"))
    gangs.launch(first, queue)
    gangs.await_state(first, "admitted")
    gangs.launch(large, queue, nodes=2 * PODS)
    assert "16 more needed" in gangs.await_state(large, "waiting").message
    gangs.launch(small, queue)
    if strategy == "BestEffortFIFO":
        gangs.await_state(small, "admitted")
        gangs.end(first, "Succeeded")
        gangs.await_state(first, "finished")
        # Nothing was reserved for the large gang: what became free is not enough while the small one trains.
        assert gangs.place(large).state == "waiting"
        gangs.end(small, "Succeeded")
        gangs.await_state(large, "admitted")
    else:
        until(lambda: gangs.workloads(small), f"Kueue has noticed {small}")
        gangs.end(first, "Succeeded")
        gangs.await_state(large, "admitted")
        # It had room since it was made, and the large gang has it now.
        assert gangs.place(small).state == "waiting"
        assert "the gang waits for quota" in gangs.words(small)


def test_borrowed_quota_goes_back_to_its_owner_and_the_borrower_waits_for_it(gangs: Queued) -> None:
    gangs.make(
        *cluster_queue("owner", "any", cohortName="lent", preemption={"reclaimWithinCohort": "Any"}),
        *cluster_queue("guest", "any", cohortName="lent"),
    )
    gangs.launch("guest-own", "guest", priority="high")
    gangs.await_state("guest-own", "admitted")
    gangs.launch("guest-extra", "guest", priority="low")
    gangs.await_state("guest-extra", "admitted")
    gangs.await_pods("guest-extra")
    gangs.launch("owner-own", "owner")
    gangs.await_state("owner-own", "admitted")
    assert gangs.await_state("guest-extra", "evicted").reason == "InCohortReclamation"
    assert "its quota was borrowed, and the owner took it back" in gangs.words("guest-extra")
    assert gangs.pods("guest-extra") == [] and gangs.words("guest-own") == ""
    gangs.await_pods("owner-own")
    gangs.end("owner-own", "Succeeded")
    gangs.await_state("guest-extra", "admitted")
    gangs.await_pods("guest-extra")
    assert gangs.words("guest-extra") == ""


def test_a_gang_with_quota_waits_for_its_admission_check_and_says_which(gangs: Queued) -> None:
    approval = Approval(gangs, "approval")
    approval.make()
    strategy = {"admissionChecks": [{"name": "approval"}]}
    gangs.make(*cluster_queue("checked", "any", gpus=2 * GPUS, admissionChecksStrategy=strategy))
    inactive_words = until(lambda: gangs.lacks("checked").get("inactive"))
    assert "AdmissionCheckInactive" in str(inactive_words) and "approval" in str(inactive_words)
    approval.stand_ready()
    until(lambda: gangs.lacks("checked") == {"checks": ("approval",)}, lambda: str(gangs.lacks("checked")))
    gangs.launch("allowed", "checked")
    gangs.await_state("allowed", "checking")
    assert "the gang has quota and waits for an admission check: approval is Pending" in gangs.words("allowed")
    assert gangs.pods("allowed") == []
    approval.decide_on("allowed", "Ready")
    gangs.await_state("allowed", "admitted")
    gangs.await_pods("allowed")
    gangs.launch("denied", "checked")
    gangs.await_state("denied", "checking")
    approval.decide_on("denied", "Rejected")
    place = gangs.await_state("denied", "stopped")
    assert place.waits and "Kueue will not start the gang by itself" in gangs.words("denied")
    assert gangs.pods("denied") == []


def test_what_check_asks_is_what_kueue_says(gangs: Queued) -> None:
    gangs.make(*cluster_queue("wide", "any", gpus=32), *cluster_queue("broken", "of-nobody", gpus=32))
    gangs.make(*cluster_queue("held", "any", gpus=32, stopPolicy="Hold"))
    gangs.make(*cluster_queue("lender", "any", cohortName="checked"))
    gangs.make(*cluster_queue("borrower", "any", cohortName="checked"))
    gangs.make(*cluster_queue("limited", "any", borrowing_limit=8, cohortName="checked"))
    assert gangs.lacks("one") == {"short": ("any: 16 nvidia.com/gpu of 32",)}
    assert gangs.lacks("wide") == {}
    assert gangs.lacks("wide", priority="high") == {}
    assert list(gangs.lacks("wide", priority="highest")) == ["absent"]
    assert list(gangs.lacks("narrow")) == ["absent"]
    (broken,) = gangs.lacks("broken").values()
    assert "FlavorNotFound" in str(broken)
    assert gangs.lacks("held") == {"inactive": "ClusterQueue held: its stopPolicy is Hold"}
    assert gangs.lacks("borrower") == {"borrowed": ("any: 16 nvidia.com/gpu of 32",)}
    assert gangs.lacks("limited") == {"short": ("any: 24 nvidia.com/gpu of 32",)}
    # Kueue itself says so of the same gang, in the queues where it can be admitted and where it never can.
    gangs.launch("beyond", "limited", nodes=4)
    assert "maximum capacity" in gangs.await_state("beyond", "waiting").message
    gangs.launch("within", "borrower", nodes=4)
    gangs.await_state("within", "admitted")


@pytest.fixture
def leaves(gangs: Queued, racks: Racks) -> Racks:
    """Leaf a of two nodes, leaves b and c of one each, and the queue `leaf` for them, which has room for two gangs."""
    for name, leaf in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")):
        racks.add(name, leaf)
    levels = [{"nodeLabel": LEAF}, {"nodeLabel": "kubernetes.io/hostname"}]
    gangs.make(
        {**KUEUE, "kind": "Topology", "metadata": {"name": "fabric"}, "spec": {"levels": levels}},
        {**KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "racks"},
         "spec": {"nodeLabels": {"gpu": "h100"}, "topologyName": "fabric"}},
        *cluster_queue("leaf", "racks", gpus=32),
    )  # fmt: skip
    return racks


def nodes(gangs: Queued, name: str) -> set[str]:
    def bound() -> set[str]:
        names = {str(pod.spec.nodeName) for pod in gangs.pods(name) if pod.spec and pod.spec.nodeName}
        return names if len(names) == 2 else set()

    found: set[str] = until(bound, lambda: f"nodes of {name}: {gangs.pods(name)}")
    return found


def test_a_gang_is_in_one_leaf_or_waits_for_one_though_others_have_room(gangs: Queued, leaves: Racks) -> None:
    whole = {"label": LEAF, "required": True}
    gangs.launch("leaf-1", "leaf", topology=whole)
    assert nodes(gangs, "leaf-1") == {"a1", "a2"}
    gangs.launch("leaf-2", "leaf", topology=whole)
    place = gangs.await_state("leaf-2", "waiting")
    assert 'topology "fabric" allows to fit only 1 out of 2 pod(s)' in place.words
    gangs.launch("leaf-3", "leaf", topology={**whole, "required": False})
    assert nodes(gangs, "leaf-3") == {"b1", "c1"}

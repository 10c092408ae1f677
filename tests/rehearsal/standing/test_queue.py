"""Gangs in the queue of the real Kueue: who waits and why, who is preempted, and what two deaths at once do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.cluster.kubernetes import prepare_models
from infra.standing.look import look_at_queue
from tests.worlds.control_plane import client, config, plane
from tests.worlds.queue import KUEUE, LEAF, Queued, Racks, cluster_queue, queued, racks

__all__ = ["client", "config", "plane", "queued", "racks"]
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


def test_what_check_asks_is_what_kueue_says(gangs: Queued) -> None:
    from infra.spec.campaign import Spec
    from infra.standing.openings import openings
    from tests.worlds.queue import SPEC

    def lacks(queue: str, **changes: object) -> dict[str, object]:
        section = gangs.cluster(queue, **changes)
        documents = [document for _, document in openings(Spec.model_validate(SPEC), section)]
        seen = look_at_queue(gangs.admin, section, documents)
        assert seen is not None
        return {name: value for name, value in seen if value}

    # The spec's gang has four nodes of eight GPUs.
    gangs.make(*cluster_queue("wide", "any", gpus=32), *cluster_queue("broken", "of-nobody", gpus=32))
    gangs.make(*cluster_queue("held", "any", gpus=32, stopPolicy="Hold"))
    assert lacks("one") == {"short": ("any: 16 nvidia.com/gpu of 32",)}
    assert lacks("wide") == {}
    assert lacks("wide", priority="high") == {}
    assert list(lacks("wide", priority="highest")) == ["absent"]
    assert list(lacks("narrow")) == ["absent"]
    (broken,) = lacks("broken").values()
    assert "FlavorNotFound" in str(broken)
    assert lacks("held") == {"inactive": "ClusterQueue held: its stopPolicy is Hold"}


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
    from tests.waiting import until

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

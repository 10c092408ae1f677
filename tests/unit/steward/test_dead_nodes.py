"""Which nodes are dead, stranded or sick by what pods and Kubernetes say, and which are not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.cluster.fitness import Sickness
from infra.steward.blame import (
    ailing,
    causes_first,
    dead_nodes,
    first_failed,
    lost_nodes,
    short_of,
    stranded_nodes,
    unstarted_text,
)
from infra.steward.decide import (
    History,
    Replace,
    decide,
)
from tests.unit.steward.test_blame import LOST, MINUTE, PROGRESSED, between, gpu_dies
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen

SILENT = POLICY.heartbeat_timeout + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("changes", "late", "launched", "dead"),
    [
        ({"ready": None}, SILENT, SILENT, True),
        ({"ready": False}, SILENT, SILENT, True),
        ({"ready": True}, SILENT, SILENT, False),
        ({"ready": None}, POLICY.heartbeat_timeout, SILENT, False),
        ({"ready": None}, SILENT, POLICY.heartbeat_timeout, False),
        ({"ready": None}, None, SILENT, False),
    ],
    ids=["Unknown", "not Ready", "Ready", "not long enough", "launched just now", "not late"],
)
def test_a_pod_that_waits_is_waited_for_as_long_as_its_node_may_be_silent(
    changes: dict[str, object], late: timedelta | None, launched: timedelta, dead: bool
) -> None:
    waits = pod(1, step=0, phase="Pending", silent_for=None)
    there = node(1, sick_for={} if late is None else {Sickness.LATE: late}, **changes)
    sight = seen(pods=(pod(0, step=0), waits), nodes=(node(0), there), since_launch=launched)
    assert dead_nodes(sight, POLICY.heartbeat_timeout) == (("node-1",) if dead else ())


def test_a_pod_whose_node_has_no_object_and_that_speaks_is_no_dead_node() -> None:
    for speaks in (pod(1), pod(1, phase="Pending", silent_for=None), pod(1, node=None, silent_for=SILENT)):
        assert dead_nodes(seen(pods=(pod(0), speaks), nodes=(node(0),)), POLICY.heartbeat_timeout) == ()


def test_two_silent_pods_on_dead_nodes_are_two_dead_nodes_each_named_once() -> None:
    pods = tuple(pod(index, node=f"node-{index // 2}", silent_for=SILENT) for index in range(4))
    sight = seen(pods=pods, nodes=(node(0, ready=None), node(1, ready=False)))
    assert dead_nodes(sight, POLICY.heartbeat_timeout) == ("node-0", "node-1")


def test_a_silent_pod_on_a_node_that_everybody_calls_well_is_no_dead_node() -> None:
    """EC2 may not know the instance: that is no second witness."""
    for state in ("running", "unknown"):
        sight = seen(pods=(pod(0), pod(1, silent_for=SILENT)), nodes=(node(0), node(1, instance_state=state)))
        assert dead_nodes(sight, POLICY.heartbeat_timeout) == ()
    gone = seen(pods=(pod(0), pod(1, silent_for=SILENT)), nodes=(node(0), node(1, instance_state="gone")))
    assert dead_nodes(gone, POLICY.heartbeat_timeout) == ("node-1",)


def test_pods_that_were_not_made_are_counted_and_more_than_enough_are_none() -> None:
    assert unstarted_text(seen(pods=(pod(0), pod(1), pod(2)))) == ""
    assert unstarted_text(seen(pods=(pod(0),))) == "1 of 2 pods have not been made"
    several = tuple(pod(index, phase="Pending", waits=words) for index, words in enumerate(("Pulling", "Unknown")))
    assert unstarted_text(seen(pods=several)) == "2 of 2 pods wait; node-0: Pulling"
    waits = pod(0, node=None, phase="Pending", waits="Unschedulable")
    assert unstarted_text(seen(pods=(waits,))) == "2 of 2 pods wait; gang-0: Unschedulable"


def test_every_node_on_which_a_pod_waits_unready_is_stranded_and_no_other() -> None:
    pods = (pod(0), *(pod(index, phase="Pending") for index in (1, 2, 3)), pod(4, node=None, phase="Pending"))
    nodes = (node(0, ready=False), node(1, ready=None), node(2), node(3, ready=False))
    assert stranded_nodes(seen(pods=pods, nodes=nodes)) == ("node-1", "node-3")


def test_the_cause_comes_before_what_follows_from_it_the_worst_first_then_the_earliest() -> None:
    late, early = (
        pod(index, **gpu_dies()).model_copy(update={"ended_at": NOW + timedelta(seconds=s)})
        for index, s in ((2, 9), (3, 0))
    )
    undated = pod(4, **gpu_dies()).model_copy(update={"ended_at": None})
    user = pod(5, phase="Failed", exit_code=64, reason="user", ended_at=NOW + MINUTE)
    lost, stopped = pod(0, **LOST), pod(1, phase="Failed", exit_code=143, ended_at=NOW - MINUTE)
    ordered = causes_first([lost, stopped, undated, late, early, user])
    assert [one.index for one in ordered] == [5, 3, 2, 4, 1, 0]


@pytest.mark.parametrize("reason", ["peer-lost", "interrupted", "fenced"])
def test_what_others_bring_about_is_nobodys_own_failure(reason: str) -> None:
    assert first_failed([pod(1, phase="Failed", exit_code=70, reason=reason, ended_at=NOW)]) is None


def test_only_the_first_three_unfit_nodes_are_described_and_the_rest_counted() -> None:
    def told(count: int) -> str:
        return short_of(seen(nodes=tuple(node(i, ready=False, unfit="" if i else "late") for i in range(count))))

    assert told(3) == "0 of 2 nodes are fit; node-0: late; node-1: not Ready; node-2: not Ready"
    assert told(5) == told(3) + "; 2 more unfit"


def test_a_quarantined_or_vanished_node_does_not_ail_however_sick() -> None:
    lasted = {Sickness.LATE: 10 * MINUTE}
    nodes = (node(0, quarantined=True, sick_for=lasted), node(1, instance_state="gone", sick_for=lasted),
             node(2, unfit="late", sick_for=lasted))  # fmt: skip
    assert ailing(nodes, History()) == {"node-2": "late"}
    impaired = (node(0, quarantined=True, instance_state="impaired"), node(1, instance_state="impaired"), node(2))
    assert lost_nodes(impaired, None) == {"node-1": "EC2 calls its instance impaired"}


def test_any_failed_peer_is_a_second_witness_of_silence() -> None:
    pods = (pod(0), pod(1, silent_for=SILENT), pod(2, phase="Failed", exit_code=70))
    sight = seen(pods=pods, nodes=(node(0), node(1), node(2)))
    assert dead_nodes(sight, POLICY.heartbeat_timeout) == ("node-1",)


def test_a_pod_that_answers_is_on_no_dead_node_whatever_kubernetes_says_of_it() -> None:
    """An API server cut off from its kubelets ends no attempt."""
    lasted = {Sickness.LATE: 10 * MINUTE}
    nodes = (node(0), node(1, ready=None, sick_for=lasted))
    for speaks in (pod(1), pod(1, silent_for=POLICY.heartbeat_timeout)):
        sight = seen(pods=(pod(0), speaks), nodes=nodes, since_launch=10 * MINUTE)
        assert dead_nodes(sight, POLICY.heartbeat_timeout) == ()


def test_one_fit_node_anywhere_means_that_the_sick_share_no_cause() -> None:
    lasted = {Sickness.LATE: 10 * MINUTE}
    nodes = (*(node(i, unfit="late", sick_for=lasted) for i in (0, 1)), node(2))
    action = decide(between(nodes=nodes, nodes_wanted=3, since_short=MINUTE), POLICY, History(attempts=(PROGRESSED,)))
    assert isinstance(action, Replace) and action.nodes == ("node-0", "node-1")

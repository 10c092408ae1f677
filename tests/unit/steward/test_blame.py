"""Which node is at fault, and what the steward does about it, rule by rule."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.cluster.fitness import Sickness
from infra.steward.blame import (
    first_failed,
)
from infra.steward.decide import (
    Action,
    Attempt,
    EndAttempt,
    FailureClass,
    Finish,
    History,
    Launch,
    Observation,
    Replace,
    Wait,
    decide,
)
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen

MINUTE = timedelta(minutes=1)
PROGRESSED = Attempt(number=1, failure=FailureClass.PROCESS, ended_at=NOW, committed_at_launch=-1, committed_at_end=50)


def between(**changes: object) -> Observation:
    return seen(**{"in_flight": False, "pods": (), "attempt": 1, **changes})


def stuck(
    number: int, first: str | None, instance: str = "i-1", failure: FailureClass = FailureClass.PROCESS
) -> Attempt:
    known = {first: instance} if first else {}
    return Attempt(number=number, failure=failure, ended_at=NOW, committed_at_launch=50, committed_at_end=50,
                   first_failed=first, instances=known)  # fmt: skip


def gpu_dies(index: int = 1) -> dict[str, object]:
    detail = "internal: unexpected error; seen: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    return dict(phase="Failed", exit_code=70, reason="internal", detail=detail, ended_at=NOW)


LOST = dict(phase="Failed", exit_code=70, reason="peer-lost", detail="peer-lost: a collective failed", ended_at=NOW)


def test_a_gpu_that_fails_the_gang_twice_is_replaced_before_the_third_attempt() -> None:
    """Three attempts failed on it, and the campaign was torn down."""
    history, said = History(attempts=(PROGRESSED,)), list[Action]()
    for number in (2, 3):
        said.append(decide(between(attempt=number - 1), POLICY, history))
        end = decide(seen(attempt=number, pods=(pod(0), pod(1, **gpu_dies()))), POLICY, history)
        assert isinstance(end, EndAttempt) and end.failure is FailureClass.PROCESS and end.first_failed == "node-1"
        history = history.model_copy(update={"attempts": (*history.attempts, stuck(number, end.first_failed))})
    assert [one.kind for one in said] == ["launch", "launch"]
    action = decide(between(attempt=3), POLICY, history)
    assert isinstance(action, Replace) and action.nodes == ("node-1",)
    assert action.reasons == ("attempts 2 and 3 failed first on it, without a newer checkpoint",)
    assert action.reasons[0] in action.why
    quarantined = (node(0), node(1, quarantined=True, unfit="quarantined by us"))
    waiting = decide(between(attempt=3, nodes=quarantined, since_short=MINUTE), POLICY, history)
    assert isinstance(waiting, Wait)
    anew = (node(0), node(1, instance="i-9"))
    assert isinstance(decide(between(attempt=3, nodes=anew), POLICY, history), Launch), "another of the same name"


@pytest.mark.parametrize(
    "attempts",
    [
        (PROGRESSED, stuck(2, "node-1")),
        (stuck(1, "node-1"), stuck(2, "node-0", "i-0")),
        (stuck(1, "node-1"), stuck(2, None)),
        (stuck(1, "node-1"), Attempt.model_validate(stuck(2, "node-1").model_dump() | {"committed_at_end": 60})),
        (stuck(1, "node-1", failure=FailureClass.NODE), stuck(2, "node-1", failure=FailureClass.NODE)),
        (stuck(1, "node-1", "i-8"), stuck(2, "node-1", "i-9")),
    ],
    ids=["once", "elsewhere", "nobody", "with progress", "dead, not to blame", "of other instances"],
)
def test_a_node_is_blamed_only_for_two_fruitless_attempts_in_a_row(attempts: tuple[Attempt, ...]) -> None:
    assert isinstance(decide(between(attempt=2), POLICY, History(attempts=attempts)), Launch)


def test_a_blamed_node_stays_when_repairs_are_used_up_and_the_last_attempt_decides() -> None:
    repairs = (NOW - timedelta(minutes=5),) * POLICY.repairs_per_hour
    history = History(attempts=(stuck(1, "node-1"), stuck(2, "node-1")), repairs=repairs)
    assert isinstance(decide(between(attempt=2), POLICY, history), Launch)


def test_the_failure_that_no_other_explains_is_the_first() -> None:
    broken, peer = pod(1, **gpu_dies()), pod(0, **LOST)
    stopped = pod(2, phase="Failed", exit_code=143)
    vanished = pod(3, phase="Missing", exit_code=None)
    assert first_failed([peer, broken, stopped, vanished]) == "node-1"
    assert first_failed([peer, stopped, vanished]) is None
    end = decide(seen(pods=(peer, broken)), POLICY, History())
    assert isinstance(end, EndAttempt) and end.why.startswith("gang-1 ended with exit code 70: internal")


def test_of_several_own_failures_only_the_one_that_came_clearly_before_is_the_first() -> None:
    first, later = pod(1, **gpu_dies()), pod(0, **gpu_dies())
    assert first_failed([later, first]) is None, "all at once: what they share is at fault"
    after = later.model_copy(update={"ended_at": NOW + timedelta(seconds=30)})
    assert first_failed([after, first]) == "node-1"
    assert first_failed([later.model_copy(update={"ended_at": None}), first]) is None


def test_a_kubelet_that_died_costs_minutes_not_the_campaign() -> None:
    """EC2 saw nothing and the attempt had ended otherwise: it was waited for until the campaign ended."""
    history, words = History(attempts=(PROGRESSED,)), "not Ready since 01:20:33 (NodeStatusUnknown)"

    def after(minutes: int) -> Action:
        lasted = {Sickness.LATE: minutes * MINUTE}
        nodes = (node(0), node(1, ready=None, unfit=words, sick_for=lasted))
        return decide(between(nodes=nodes, since_short=minutes * MINUTE), POLICY, history)

    assert after(4) == Wait(why=f"1 of 2 nodes are fit; node-1: {words}")
    action = after(5)
    assert isinstance(action, Replace) and (action.nodes, action.reasons) == (("node-1",), (words,))
    assert action.why == f"after attempt 1: node-1: {words}"


def test_a_node_with_7_of_8_gpus_is_counted_as_unfit_and_replaced() -> None:
    history, words = History(attempts=(PROGRESSED,)), "7 of 8 accelerators allocatable"
    lame = (node(0), node(1, unfit=words, sick_for={Sickness.LATE: MINUTE}))
    assert decide(between(nodes=lame, since_short=MINUTE), POLICY, history) == Wait(
        why=f"1 of 2 nodes are fit; node-1: {words}"
    )
    lame = (node(0), node(1, unfit=words, sick_for={Sickness.LATE: 5 * MINUTE}))
    assert isinstance(decide(between(nodes=lame, since_short=5 * MINUTE), POLICY, history), Replace)


def test_broken_accelerators_are_replaced_within_a_minute_but_not_under_an_attempt() -> None:
    words = "AcceleratedHardwareReady is False (NvidiaXID79Error)"
    nodes = (node(0), node(1, unfit=words, sick_for={Sickness.FAULT: MINUTE}))
    assert isinstance(decide(seen(nodes=nodes), POLICY, History()), Wait)
    action = decide(between(nodes=nodes, since_short=MINUTE), POLICY, History(attempts=(PROGRESSED,)))
    assert isinstance(action, Replace) and action.reasons == (words,)


@pytest.mark.parametrize("failed", [True, False], ids=["the others gave up", "nobody has given up yet"])
def test_a_pod_that_waits_on_a_dead_kubelet_makes_its_node_dead(failed: bool) -> None:
    gave_up = pod(0, step=0, phase="Failed", exit_code=70, reason="internal", detail="not all ranks joined")
    waits = pod(1, step=0, phase="Pending", silent_for=None)
    silent = node(1, ready=None, sick_for={} if failed else {Sickness.LATE: 6 * timedelta(seconds=1)})
    sight = seen(pods=(gave_up if failed else pod(0, step=0), waits), nodes=(node(0), silent), since_launch=MINUTE)
    action = decide(sight, POLICY, History())
    assert isinstance(action, EndAttempt)
    assert (action.failure, action.dead_nodes) == (FailureClass.NODE, ("node-1",))
    dead = Attempt(number=2, failure=action.failure, ended_at=NOW, committed_at_launch=50, committed_at_end=50,
                   dead_nodes=action.dead_nodes)  # fmt: skip
    then = decide(between(nodes=sight.nodes, since_short=MINUTE), POLICY, History(attempts=(PROGRESSED, dead)))
    assert isinstance(then, Replace) and then.reasons == ("dead in attempt 2",)


def test_a_pod_that_pulls_its_image_on_a_living_node_is_waited_for() -> None:
    waits = (pod(0, step=0), pod(1, step=0, phase="Pending", silent_for=None))
    assert isinstance(decide(seen(pods=waits, since_launch=MINUTE), POLICY, History()), Wait)


def test_a_gang_that_never_steps_names_the_kubelet_that_did_not_start_its_pod() -> None:
    waits = (pod(0, step=0), pod(1, step=0, phase="Pending", silent_for=None))
    sight = seen(pods=waits, nodes=(node(0), node(1, ready=False)), since_launch=POLICY.startup_timeout + MINUTE)
    action = decide(sight, POLICY, History())
    assert isinstance(action, EndAttempt) and (action.failure, action.dead_nodes) == (FailureClass.NODE, ("node-1",))


def test_a_cordoned_node_is_waited_for_during_the_time_for_capacity_and_then_named() -> None:
    """It counted as fit: each attempt on it was one of three without progress."""
    nodes, history = (node(0), node(1, unfit="cordoned by somebody else")), History(attempts=(PROGRESSED,))
    assert decide(between(nodes=nodes, since_short=MINUTE), POLICY, history) == Wait(
        why="1 of 2 nodes are fit; node-1: cordoned by somebody else"
    )
    tired = decide(between(nodes=nodes, since_short=POLICY.capacity_timeout + MINUTE), POLICY, history)
    assert isinstance(tired, Finish) and tired.why.endswith("node-1: cordoned by somebody else")


def test_more_sick_nodes_than_repairs_allow_share_a_cause_and_none_is_replaced() -> None:
    """An API server cut off from its kubelets is no reason to give back the whole gang."""
    count, lasted = POLICY.repairs_per_hour + 1, {Sickness.LATE: 10 * MINUTE}
    nodes = tuple(node(i, ready=None, unfit="not Ready", sick_for=lasted) for i in range(count))
    sight = between(nodes=(*nodes, node(9)), nodes_wanted=count + 1, since_short=MINUTE)
    action = decide(sight, POLICY, History(attempts=(PROGRESSED,)))
    assert isinstance(action, Wait) and action.why == (
        "1 of 6 nodes are fit; node-0: not Ready; node-1: not Ready; node-2: not Ready; 2 more unfit; "
        "5 not replaced: 4 repairs within the hour are left"
    )
    lost = (*nodes[1:], node(0, instance_state="impaired"))
    chosen = decide(sight.model_copy(update={"nodes": lost}), POLICY, History(attempts=(PROGRESSED,)))
    assert isinstance(chosen, Replace) and chosen.nodes == ("node-0",), "whom EC2 itself calls lost, all the same"


def test_when_no_node_is_fit_the_cause_is_what_they_share() -> None:
    lasted = {Sickness.LATE: 10 * MINUTE}
    nodes = tuple(node(i, unfit="0 of 8 accelerators allocatable", sick_for=lasted) for i in (0, 1))
    action = decide(between(nodes=nodes, since_short=MINUTE), POLICY, History(attempts=(PROGRESSED,)))
    assert isinstance(action, Wait)
    assert action.why.endswith("2 not replaced: no node is fit, so the cause is what they share")
    one = between(nodes=nodes[:1], since_short=MINUTE)
    assert isinstance(decide(one, POLICY, History(attempts=(PROGRESSED,))), Replace), "one alone shares with nobody"


def test_a_dead_node_s_successor_of_the_same_name_is_not_buried_with_it() -> None:
    dead = Attempt(number=1, failure=FailureClass.NODE, ended_at=NOW, committed_at_launch=-1, committed_at_end=50,
                   dead_nodes=("node-1",), instances={"node-1": "i-1"})  # fmt: skip
    assert isinstance(decide(between(), POLICY, History(attempts=(dead,))), Replace)
    anew = (node(0), node(1, instance="i-9"))
    assert isinstance(decide(between(nodes=anew), POLICY, History(attempts=(dead,))), Launch)


def test_nodes_that_only_the_agent_suspects_train_where_they_are_too_many_to_replace() -> None:
    """Its word alone keeps no pod off, and an idle gang costs more than an attempt that fails."""
    lasted = {Sickness.FAULT: 10 * MINUTE}
    told = tuple(node(i, unfit="AcceleratedHardwareReady is False", suspected=True, sick_for=lasted) for i in (0, 1))
    history = History(attempts=(PROGRESSED,))
    action = decide(between(nodes=told, since_short=MINUTE), POLICY, history)
    assert isinstance(action, Launch) and action.why.endswith("what they share; pods run there all the same")
    one = decide(between(nodes=(node(0), told[1]), since_short=MINUTE), POLICY, history)
    assert isinstance(one, Replace) and one.nodes == ("node-1",), "one alone is replaced"
    early = (told[0], node(1, unfit="AcceleratedHardwareReady is False", suspected=True))
    assert isinstance(decide(between(nodes=early, since_short=MINUTE), POLICY, history), Replace), "one is overdue"


@pytest.mark.parametrize(("apart", "first"), [(timedelta(seconds=2), "node-1"), (timedelta(seconds=1.9), None)])
def test_ends_that_are_dated_within_two_seconds_are_at_once(apart: timedelta, first: str | None) -> None:
    """Kubernetes dates them to the second, each node by its own clock."""
    later = pod(0, **gpu_dies()).model_copy(update={"ended_at": NOW + apart})
    assert first_failed([later, pod(1, **gpu_dies())]) == first

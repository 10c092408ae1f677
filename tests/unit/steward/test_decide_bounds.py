"""Each limit of the steward's judgement on both of its sides, and what is due while its sources are away."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from infra.cluster.fitness import Sickness
from infra.steward import blame
from infra.steward.decide import (
    EndAttempt,
    FailureClass,
    Finish,
    GiveBack,
    History,
    Launch,
    Observation,
    Replace,
    Wait,
    decide,
)
from infra.steward.seeing.views import Unseen
from tests.unit.steward.test_decide import NOW, POLICY, ended, node, pod, seen
from trainer.contract import ExitCode, Phase

NONE = History()
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def between(**changes: object) -> Observation:
    return seen(**{"in_flight": False, "pods": (), **changes})


def failed(index: int = 0, code: int | None = 70, **changes: object) -> object:
    return pod(index, phase="Failed", exit_code=code, **changes)


def away(source: str, lasts: timedelta) -> tuple[Unseen, ...]:
    return (Unseen(source=source, lasts=lasts, why="503"),)  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [("Succeeded", "Running"), ("Running", "Succeeded")])
def test_one_pod_that_succeeded_is_not_the_gang(others: tuple[str, str]) -> None:
    pods = tuple(pod(index, phase=phase) for index, phase in enumerate(others))
    assert decide(seen(pods=pods), POLICY, NONE) == Wait(why="training")


def test_a_gang_of_which_a_pod_was_never_seen_is_not_done() -> None:
    assert isinstance(decide(seen(pods=(pod(0, phase="Succeeded"),)), POLICY, NONE), Wait)
    assert isinstance(decide(seen(pods=()), POLICY, NONE), Wait)
    assert isinstance(decide(seen(pods=(), nodes_wanted=0), POLICY, NONE), Wait)


@pytest.mark.parametrize("step", [0, 10])
def test_a_stop_is_heard_before_the_first_commit_too(step: int) -> None:
    pods = (pod(0, step=step), pod(1, step=step))
    action = decide(seen(pods=pods, stop_requested=True, committed_step=-1), POLICY, NONE)
    assert action == EndAttempt(failure=FailureClass.INTERRUPTED, why="a stop was requested")
    after = decide(between(stop_requested=True, committed_step=-1), POLICY, NONE)
    assert after == Finish(outcome="stopped", why="a stop was requested")


def test_who_is_done_is_done_though_a_stop_was_asked_for() -> None:
    pods = (pod(0, phase="Succeeded"), pod(1, phase="Succeeded"))
    assert decide(seen(pods=pods, stop_requested=True), POLICY, NONE).kind == "finish"


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.EVALUATING, Phase.FINISHING])
def test_a_save_has_twice_the_patience_and_no_more(phase: Phase) -> None:
    pods = (pod(0), pod(1, trainer_phase=phase))
    patience = 2 * POLICY.hang_timeout
    assert isinstance(decide(seen(pods=pods, since_step=patience), POLICY, NONE), Wait)
    action = decide(seen(pods=pods, since_step=patience + TICK), POLICY, NONE)
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.HANG


def test_a_hang_and_a_start_last_longer_than_their_limits() -> None:
    assert isinstance(decide(seen(since_step=POLICY.hang_timeout), POLICY, NONE), Wait)
    action = decide(seen(since_step=POLICY.hang_timeout + TICK), POLICY, NONE)
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.HANG
    pods = (pod(0, step=0), pod(1, step=0))
    starting = {"pods": pods, "since_step": timedelta(hours=1)}
    assert isinstance(decide(seen(**starting, since_launch=POLICY.startup_timeout), POLICY, NONE), Wait)
    action = decide(seen(**starting, since_launch=POLICY.startup_timeout + TICK), POLICY, NONE)
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.STARTUP


def test_a_gang_that_once_stepped_is_not_starting_though_its_pods_have_not_answered_yet() -> None:
    """Who takes over has heard nobody yet; the steps were stored."""
    pods = (pod(0, step=0), pod(1, step=0))
    sight = seen(pods=pods, step=70, since_launch=timedelta(hours=5), since_step=SECOND)
    assert isinstance(decide(sight, POLICY, NONE), Wait)
    action = decide(sight.model_copy(update={"since_step": POLICY.hang_timeout + TICK}), POLICY, NONE)
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.HANG


def test_one_pod_that_steps_means_that_the_gang_has_started() -> None:
    pods = (pod(0, step=3), pod(1, step=0))
    sight = seen(pods=pods, since_launch=timedelta(hours=1), since_step=SECOND)
    assert isinstance(decide(sight, POLICY, NONE), Wait)


@pytest.mark.parametrize("state", ["unknown", "running"])
def test_a_node_that_died_is_replaced_whatever_ec2_knows_of_it(state: str) -> None:
    dead = ended(1, FailureClass.NODE, -1, 10).model_copy(update={"dead_nodes": ("node-1",)})
    nodes = (node(0), node(1, instance_state=state))
    action = decide(between(nodes=nodes), POLICY, History(attempts=(dead,)))
    assert isinstance(action, Replace) and action.nodes == ("node-1",) and action.reasons == ("dead in attempt 1",)


@pytest.mark.parametrize("change", [{"quarantined": True}, {"instance_state": "gone"}], ids=["quarantined", "gone"])
def test_a_node_that_is_on_its_way_out_is_not_replaced_again(change: dict[str, object]) -> None:
    dead = ended(1, FailureClass.NODE, -1, 10).model_copy(update={"dead_nodes": ("node-1",)})
    action = decide(between(nodes=(node(0), node(1, **change)), since_short=SECOND), POLICY, History(attempts=(dead,)))
    assert isinstance(action, Wait)


def test_silence_is_judged_beyond_its_limit_and_of_living_pods_only() -> None:
    witness = (node(0), node(1, ready=None))
    limit = POLICY.heartbeat_timeout
    at = seen(pods=(pod(0), pod(1, silent_for=limit)), nodes=witness)
    assert blame.dead_nodes(at, limit) == ()
    over = seen(pods=(pod(0), pod(1, silent_for=limit + TICK)), nodes=witness)
    assert blame.dead_nodes(over, limit) == ("node-1",)
    for phase in ("Succeeded", "Failed"):
        gone = seen(pods=(pod(0), pod(1, silent_for=limit + TICK, phase=phase)), nodes=witness)
        assert blame.dead_nodes(gone, limit) == ()


def test_a_pod_that_never_answered_is_as_silent_as_it_is_old() -> None:
    def sight(running_for: timedelta | None) -> Observation:
        mute = pod(1, silent_for=None, running_for=running_for)
        return seen(pods=(pod(0), mute), nodes=(node(0), node(1, instance_state="impaired")))

    limit = POLICY.heartbeat_timeout
    assert blame.dead_nodes(sight(None), limit) == blame.dead_nodes(sight(limit), limit) == ()
    assert blame.dead_nodes(sight(limit + TICK), limit) == ("node-1",)


@pytest.mark.parametrize("silent", [False, True])
def test_only_a_pod_that_is_silent_for_more_than_two_seconds_is_waited_for(silent: bool) -> None:
    quiet = timedelta(seconds=2) + (TICK if silent else timedelta())
    sight = seen(pods=(failed(0), pod(1, silent_for=quiet)))
    assert isinstance(decide(sight, POLICY, NONE), Wait if silent else EndAttempt)
    storage = seen(pods=(failed(0, ExitCode.STORAGE), pod(1, silent_for=timedelta(seconds=3))))
    assert isinstance(decide(storage, POLICY, NONE), EndAttempt), "what says its own cause needs no second witness"


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (64, "user"), (65, "data"), (70, "process"), (74, "storage"), (75, "interrupted"), (76, "numeric"),
        (137, "process"), (None, "process"), (1, "process"),
    ],
)  # fmt: skip
def test_what_an_exit_code_says(code: int | None, failure: str) -> None:
    action = decide(seen(pods=(failed(0, code), pod(1))), POLICY, NONE)
    assert isinstance(action, EndAttempt) and action.failure == failure


def test_the_worst_failure_counts_and_a_pod_that_vanished_has_failed() -> None:
    user = decide(seen(pods=(failed(0, 70), failed(1, 64))), POLICY, NONE)
    assert isinstance(user, EndAttempt) and user.failure is FailureClass.USER and user.why.startswith("gang-1 ended")
    missing = decide(seen(pods=(pod(0), pod(1, phase="Missing"))), POLICY, NONE)
    assert isinstance(missing, EndAttempt) and missing.failure is FailureClass.PROCESS and missing.first_failed is None


@pytest.mark.parametrize("number", [0, 1, 7])
def test_an_attempt_has_the_number_after_the_last_ones(number: int) -> None:
    assert decide(between(attempt=number), POLICY, NONE) == Launch(attempt=number + 1, why="enough fit nodes")
    told = [node(i, unfit="suspected", suspected=True, sick_for={Sickness.FAULT: MINUTE}) for i in (0, 1)]
    action = decide(between(attempt=number, nodes=told, since_short=SECOND), POLICY, NONE)
    assert isinstance(action, Launch) and action.attempt == number + 1


def test_what_is_said_of_a_decision_is_bounded_whoever_says_it() -> None:
    long = "x" * 10_000
    crashed = seen(pods=(failed(0, detail=long), pod(1)))
    waiting = tuple(pod(index, phase="Pending", step=0, waits=long) for index in (0, 1))
    late = seen(pods=waiting, since_launch=timedelta(hours=1))
    told = Unseen(source="record", lasts=MINUTE, why=long)
    sick = (node(0), node(1, unfit=long, sick_for={Sickness.FAULT: MINUTE}))
    for sight in (
        crashed, late, late.model_copy(update={"nodes": (node(0, ready=False),)}), seen(unseen=(told,)),
        seen(unseen=(told,), given_back=long), between(nodes=sick),
        between(unseen=(Unseen(source="acts", lasts=timedelta(days=1), why=long),)),
    ):  # fmt: skip
        assert len(decide(sight, POLICY, NONE).why) == 500


@pytest.mark.parametrize("over", [False, True])
def test_time_and_money_are_over_when_they_no_longer_cover_an_interval_and_the_archive(over: bool) -> None:
    left = POLICY.interval_and_archive - (TICK if over else timedelta())
    needed = Decimal(60) / 6
    for means in (
        {"deadline": NOW + left},
        {"usd_per_hour": Decimal(60), "spent_usd": POLICY.budget_usd - needed + (Decimal("0.01") if over else 0)},
    ):
        assert isinstance(decide(seen(**means), POLICY, NONE), EndAttempt if over else Wait)
        assert isinstance(decide(between(**means), POLICY, NONE), Finish if over else Launch)


def test_capacity_is_waited_for_up_to_its_limit() -> None:
    short = between(nodes=(node(0),), since_short=POLICY.capacity_timeout)
    assert isinstance(decide(short, POLICY, NONE), Wait)
    action = decide(short.model_copy(update={"since_short": POLICY.capacity_timeout + TICK}), POLICY, NONE)
    assert isinstance(action, Finish) and action.outcome == "stopped"


@pytest.mark.parametrize(("ago", "counts"), [(timedelta(hours=1), False), (timedelta(hours=1) - TICK, True)])
def test_repairs_count_for_an_hour(ago: timedelta, counts: bool) -> None:
    history = History(repairs=(NOW - ago,) * POLICY.repairs_per_hour)
    impaired = between(nodes=(node(0), node(1, instance_state="impaired")))
    assert isinstance(decide(impaired, POLICY, history), Finish if counts else Replace)


def test_the_last_repair_of_the_hour_is_still_made() -> None:
    history = History(repairs=(NOW,) * (POLICY.repairs_per_hour - 1))
    impaired = between(nodes=(node(0), node(1, instance_state="impaired")))
    assert isinstance(decide(impaired, POLICY, history), Replace)
    two = between(nodes=tuple(node(index, instance_state="impaired") for index in (0, 1)))
    assert isinstance(decide(two, POLICY, history), Finish)


def test_more_repairs_than_are_allowed_end_nothing_while_no_node_is_lost() -> None:
    """A limit that a relaunch lowered, or another steward's repairs."""
    history = History(repairs=(NOW,) * (POLICY.repairs_per_hour + 3))
    assert isinstance(decide(between(), POLICY, history), Launch)


def test_each_node_that_is_replaced_is_named_with_its_reason() -> None:
    nodes = (node(0, instance_state="impaired"), node(1, unfit="late", sick_for={Sickness.LATE: MINUTE * 9}), node(2))
    action = decide(between(nodes=nodes), POLICY, NONE)
    assert isinstance(action, Replace) and action.nodes == ("node-1", "node-0")
    assert action.why == "node-1: late; node-0: EC2 calls its instance impaired"


def test_a_failure_counts_for_a_day_and_one_that_holds_is_no_restart() -> None:
    old = tuple(ended(n, FailureClass.PROCESS, n, n + 1, NOW - timedelta(hours=24)) for n in range(9))
    last = ended(10, FailureClass.PROCESS, 20, 21)
    assert isinstance(decide(between(), POLICY, History(attempts=(*old, last))), Launch)
    nodes = tuple(ended(n, FailureClass.NODE, n, n + 1) for n in range(3))
    assert isinstance(decide(between(), POLICY, History(attempts=(*nodes, last))), Launch)


def test_progress_is_a_newer_checkpoint_and_nothing_less() -> None:
    same, more = ended(1, FailureClass.PROCESS, 10, 10), ended(1, FailureClass.PROCESS, 10, 11)
    assert not same.progressed and more.progressed
    assert History(attempts=(same, more, same, same)).without_progress() == 2


def test_a_source_that_ends_no_decision_hides_none_that_does() -> None:
    several = (*away("AWS", timedelta(days=1)), *away("record", MINUTE), *away("cluster", MINUTE))
    action = decide(seen(since_step=timedelta(hours=1), unseen=several), POLICY, NONE)
    assert isinstance(action, Wait) and "record" in action.why and "cluster" in action.why


def test_nothing_is_touched_while_the_record_cannot_be_written() -> None:
    gone = away("record", POLICY.blind_timeout)
    for sight in (seen(since_step=timedelta(hours=1)), between(), seen(stop_requested=True), seen()):
        action = decide(sight.model_copy(update={"unseen": gone}), POLICY, NONE)
        assert isinstance(action, Wait) and action.why.startswith("nothing is touched: the record cannot be reached")
    assert (
        "end-attempt is due: no finished step"
        in decide(seen(since_step=timedelta(hours=1), unseen=gone), POLICY, NONE).why
    )


@pytest.mark.parametrize("sight", [seen(), between(), seen(since_step=timedelta(hours=1))])
def test_without_a_record_for_too_long_the_nodes_go_back_whatever_is_due(sight: Observation) -> None:
    gone = away("record", POLICY.blind_timeout + TICK)
    assert isinstance(decide(sight.model_copy(update={"unseen": gone}), POLICY, NONE), GiveBack)


def test_a_gang_that_the_api_does_not_show_trains_on_but_a_hung_one_has_its_bound() -> None:
    long = away("cluster", POLICY.blind_timeout + TICK)
    assert isinstance(decide(seen(unseen=long), POLICY, NONE), Wait)
    assert isinstance(decide(seen(unseen=long, since_step=timedelta(hours=1)), POLICY, NONE), GiveBack)
    short = away("cluster", POLICY.blind_timeout)
    assert isinstance(decide(seen(unseen=short, since_step=timedelta(hours=1)), POLICY, NONE), Wait)


@pytest.mark.parametrize("source", ["record", "cluster"])
def test_out_of_means_an_end_by_the_record_is_waited_for_some_minutes(source: str) -> None:
    broke = seen(spent_usd=Decimal(99))
    for lasts, kind in ((POLICY.means_patience, Wait), (POLICY.means_patience + TICK, GiveBack)):
        assert isinstance(decide(broke.model_copy(update={"unseen": away(source, lasts)}), POLICY, NONE), kind)


@pytest.mark.parametrize("source", ["AWS", "acts"])
def test_other_sources_hold_up_no_decision(source: str) -> None:
    hung = seen(since_step=timedelta(hours=1), unseen=away(source, timedelta(days=1)))
    assert isinstance(decide(hung, POLICY, NONE), EndAttempt)


def test_given_back_is_given_back_once_and_recorded_as_soon_as_that_can_be() -> None:
    gone = away("record", timedelta(days=1))
    waiting = decide(seen(unseen=gone, given_back="no record"), POLICY, NONE)
    assert isinstance(waiting, Wait) and "given back (no record)" in waiting.why
    assert decide(seen(given_back="no record"), POLICY, NONE) == EndAttempt(
        failure=FailureClass.INTERRUPTED, why="no record"
    )
    assert decide(between(given_back="no record"), POLICY, NONE) == Finish(outcome="stopped", why="no record")


def test_what_is_refused_between_attempts_for_too_long_ends_the_campaign() -> None:
    for lasts, kind in ((POLICY.undone_timeout, Launch), (POLICY.undone_timeout + TICK, Finish)):
        assert isinstance(decide(between(unseen=away("acts", lasts)), POLICY, NONE), kind)

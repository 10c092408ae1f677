"""The steward's judgement, rule by rule and as properties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.steward.decide import (
    CONSEQUENCE,
    Attempt,
    Consequence,
    EndAttempt,
    FailureClass,
    Finish,
    History,
    Launch,
    NodeView,
    Observation,
    PodView,
    Policy,
    Replace,
    Wait,
    decide,
)
from trainer.contract import ExitCode, Phase

NOW = datetime(2026, 11, 21, tzinfo=UTC)
POLICY = Policy(
    attempts_without_progress=3,
    process_restarts=5,
    node_replacements=3,
    repairs_per_hour=4,
    heartbeat_timeout=timedelta(seconds=5),
    hang_timeout=timedelta(minutes=1),
    startup_timeout=timedelta(minutes=2),
    capacity_timeout=timedelta(minutes=5),
    budget_usd=Decimal(100),
    interval_and_archive=timedelta(minutes=10),
)


def pod(index: int = 0, **changes: object) -> PodView:
    base = dict(
        index=index, name=f"gang-{index}", node=f"node-{index}", phase="Running", step=10, silent_for=timedelta(0)
    )
    return PodView.model_validate(base | changes)


def node(index: int = 0, **changes: object) -> NodeView:
    base = dict(name=f"node-{index}", instance=f"i-{index}", ready=True, instance_state="running")
    return NodeView.model_validate(base | changes)


def seen(**changes: object) -> Observation:
    base = dict(
        now=NOW,
        deadline=NOW + timedelta(hours=4),
        spent_usd=Decimal(1),
        usd_per_hour=Decimal(14),
        attempt=1,
        in_flight=True,
        pods=(pod(0), pod(1)),
        nodes=(node(0), node(1)),
        nodes_wanted=2,
    )
    return Observation.model_validate(base | changes)


def ended(number: int, failure: FailureClass, before: int = -1, after: int = -1, at: datetime = NOW) -> Attempt:
    return Attempt(number=number, failure=failure, ended_at=at, committed_at_launch=before, committed_at_end=after)


def test_a_training_gang_is_left_alone() -> None:
    assert isinstance(decide(seen(), POLICY, History()), Wait)


def test_a_gang_that_does_not_start_is_told_with_what_its_pods_wait_for() -> None:
    """Its nodes bill meanwhile: whoever looks reads the kubelet's words at once, and so does the attempt's end."""
    waits = "ImagePullBackOff: Back-off pulling image"
    pods = (pod(0, step=0), pod(1, phase="Pending", step=0, silent_for=None, waits=waits))
    early = decide(seen(pods=pods, since_launch=timedelta(seconds=10)), POLICY, History())
    assert isinstance(early, Wait) and early.why == f"1 of 2 pods wait; node-1: {waits}"
    late = decide(seen(pods=pods, since_launch=POLICY.startup_timeout * 2), POLICY, History())
    assert isinstance(late, EndAttempt) and late.failure is FailureClass.STARTUP
    assert late.why == f"no first step within 0:02:00; {early.why}"
    none = decide(seen(pods=(), since_launch=POLICY.startup_timeout * 2), POLICY, History())
    assert isinstance(none, EndAttempt) and "2 of 2 pods have not been made" in none.why


def test_when_every_pod_succeeds_training_is_done() -> None:
    pods = (pod(0, phase="Succeeded"), pod(1, phase="Succeeded"))
    action = decide(seen(pods=pods), POLICY, History())
    assert isinstance(action, Finish) and action.outcome == "done"


def test_silence_alone_is_not_death() -> None:
    quiet = pod(1, silent_for=timedelta(minutes=3))
    assert isinstance(decide(seen(pods=(pod(0), quiet)), POLICY, History()), Wait)


@pytest.mark.parametrize(
    "witness",
    [
        {"nodes": (node(0), node(1, instance_state="impaired"))},
        {"nodes": (node(0), node(1, ready=None))},
        {"nodes": (node(0),)},
    ],
    ids=["EC2", "Kubernetes", "the Node object"],
)
def test_a_silent_pod_with_a_second_witness_is_a_dead_node(witness: dict[str, object]) -> None:
    pods = (pod(0), pod(1, silent_for=timedelta(seconds=6)))
    action = decide(seen(pods=pods, **witness), POLICY, History())
    assert isinstance(action, EndAttempt)
    assert (action.failure, action.dead_nodes) == (FailureClass.NODE, ("node-1",))


def test_a_failed_rank_waits_for_its_silent_peer_before_it_is_blamed() -> None:
    victim = pod(0, phase="Failed", exit_code=ExitCode.INTERNAL)
    early = seen(pods=(victim, pod(1, silent_for=timedelta(seconds=3))))
    late = seen(pods=(victim, pod(1, silent_for=timedelta(seconds=6))))
    assert isinstance(decide(early, POLICY, History()), Wait)
    action = decide(late, POLICY, History())
    assert isinstance(action, EndAttempt) and action.dead_nodes == ("node-1",)


def test_a_dead_process_on_living_nodes_is_a_restart_in_place() -> None:
    action = decide(seen(pods=(pod(0, phase="Failed", exit_code=70), pod(1))), POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.PROCESS and not action.dead_nodes


def test_no_finished_step_for_the_hang_timeout_is_a_hang() -> None:
    action = decide(seen(since_step=timedelta(seconds=61)), POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.HANG


def test_a_save_may_take_longer_than_a_step() -> None:
    saving = (pod(0, trainer_phase=Phase.SAVING), pod(1))
    assert isinstance(decide(seen(pods=saving, since_step=timedelta(seconds=61)), POLICY, History()), Wait)


def test_a_gang_that_never_steps_has_failed_to_start() -> None:
    pods = (pod(0, step=0), pod(1, step=0))
    action = decide(seen(pods=pods, since_launch=timedelta(minutes=3)), POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.STARTUP


def test_a_user_error_holds_and_is_never_retried() -> None:
    action = decide(seen(in_flight=False, pods=()), POLICY, History(attempts=(ended(1, FailureClass.USER),)))
    assert isinstance(action, Finish) and action.outcome == "held"


def test_an_impaired_instance_is_replaced_before_the_next_launch() -> None:
    nodes = (node(0), node(1, instance_state="impaired", ready=None))
    history = History(attempts=(ended(1, FailureClass.NODE, -1, 10),))
    action = decide(seen(in_flight=False, pods=(), nodes=nodes, since_short=timedelta(0)), POLICY, history)
    assert isinstance(action, Replace) and action.nodes == ("node-1",)


def test_our_own_repairs_have_a_circuit_breaker() -> None:
    nodes = (node(0), node(1, instance_state="impaired"))
    history = History(attempts=(ended(1, FailureClass.NODE, -1, 10),), repairs=(NOW - timedelta(minutes=5),) * 4)
    action = decide(seen(in_flight=False, pods=(), nodes=nodes), POLICY, history)
    assert isinstance(action, Finish) and action.outcome == "stopped"


def test_attempts_without_a_newer_checkpoint_end_the_campaign() -> None:
    history = History(attempts=tuple(ended(n, FailureClass.PROCESS, 10, 10) for n in (1, 2, 3)))
    action = decide(seen(in_flight=False, pods=(), attempt=3), POLICY, history)
    assert isinstance(action, Finish) and action.outcome == "stopped" and "no newer checkpoint" in action.why


def losses(failure: FailureClass, apart: timedelta, count: int) -> History:
    """As many attempts that ended so, the last just now; each committed a newer checkpoint."""
    return History(
        attempts=tuple(ended(n, failure, 10 * n, 10 * n + 10, NOW - apart * (count - n)) for n in range(1, count + 1))
    )


@pytest.mark.parametrize("failure", [FailureClass.NODE, FailureClass.PROCESS])
def test_twenty_losses_over_weeks_each_with_progress_end_no_campaign(failure: FailureClass) -> None:
    for count in range(1, 21):
        history = losses(failure, timedelta(hours=24), count)
        assert isinstance(decide(seen(in_flight=False, pods=(), attempt=count), POLICY, history), Launch)


@pytest.mark.parametrize(
    ("failure", "allowed", "says"),
    [
        (FailureClass.NODE, POLICY.node_replacements, "4 node losses within 24 hours, 3 allowed"),
        (FailureClass.HANG, POLICY.process_restarts, "6 restarts within 24 hours, 5 allowed"),
    ],
    ids=["node", "restart"],
)
def test_one_loss_more_than_the_limit_within_a_day_ends_the_campaign(
    failure: FailureClass, allowed: int, says: str
) -> None:
    day = timedelta(hours=24) / (allowed + 1)
    enough, more = losses(failure, day, allowed), losses(failure, day, allowed + 1)
    assert isinstance(decide(seen(in_flight=False, pods=()), POLICY, enough), Launch)
    action = decide(seen(in_flight=False, pods=()), POLICY, more)
    assert isinstance(action, Finish) and (action.outcome, action.why) == ("stopped", says)


@pytest.mark.parametrize(
    "means", [{"spent_usd": Decimal(98)}, {"deadline": NOW + timedelta(minutes=9)}], ids=["money", "time"]
)
def test_without_money_or_time_for_another_interval_training_stops(means: dict[str, object]) -> None:
    assert isinstance(decide(seen(**means), POLICY, History()), EndAttempt)
    after = decide(
        seen(in_flight=False, pods=(), **means), POLICY, History(attempts=(ended(1, FailureClass.INTERRUPTED),))
    )
    assert isinstance(after, Finish) and after.outcome == "stopped"


def test_missing_capacity_is_waited_for_with_a_bound() -> None:
    short = seen(in_flight=False, pods=(), nodes=(node(0),), since_short=timedelta(minutes=4))
    assert isinstance(decide(short, POLICY, History()), Wait)
    tired = short.model_copy(update={"since_short": timedelta(minutes=6)})
    assert isinstance(decide(tired, POLICY, History()), Finish)


attempts = st.lists(
    st.builds(
        lambda failure, before, gain: ended(0, failure, before, before + gain),
        st.sampled_from(FailureClass),
        st.integers(-1, 50),
        st.integers(0, 1),
    ),
    max_size=12,
)
observations = st.builds(
    lambda flight, steps, silent, phases, states: seen(
        in_flight=flight,
        pods=tuple(pod(i, step=steps, silent_for=timedelta(seconds=silent), phase=p) for i, p in enumerate(phases)),
        nodes=tuple(node(i, instance_state=s) for i, s in enumerate(states)),
    ),
    st.booleans(),
    st.integers(0, 100),
    st.integers(0, 20),
    st.tuples(*[st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])] * 2),
    st.tuples(*[st.sampled_from(["running", "impaired", "gone", "unknown"])] * 2),
)


@given(observations, attempts)
def test_nothing_is_launched_while_an_attempt_is_in_flight(sight: Observation, past: list[Attempt]) -> None:
    if sight.in_flight:
        assert not isinstance(decide(sight, POLICY, History(attempts=tuple(past))), Launch)


@given(attempts)
def test_a_launch_never_follows_a_failure_that_holds(past: list[Attempt]) -> None:
    if past and CONSEQUENCE[past[-1].failure] is Consequence.HOLD:
        action = decide(seen(in_flight=False, pods=()), POLICY, History(attempts=tuple(past)))
        assert isinstance(action, Finish)


@given(st.integers(0, 40))
def test_without_progress_no_history_is_retried_for_ever(count: int) -> None:
    history = History(attempts=tuple(ended(n, FailureClass.PROCESS, 5, 5) for n in range(count)))
    action = decide(seen(in_flight=False, pods=()), POLICY, history)
    assert isinstance(action, Launch) == (count < POLICY.attempts_without_progress)


@given(observations)
def test_a_node_whose_instance_runs_and_whose_pod_answers_is_never_called_dead(sight: Observation) -> None:
    lively = tuple(p.model_copy(update={"silent_for": timedelta(0)}) for p in sight.pods)
    healthy = tuple(n.model_copy(update={"instance_state": "running", "ready": True}) for n in sight.nodes)
    action = decide(sight.model_copy(update={"pods": lively, "nodes": healthy}), POLICY, History())
    assert not (isinstance(action, EndAttempt) and action.dead_nodes)

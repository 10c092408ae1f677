"""A gang goes on with fewer nodes where no successor comes, and grows again: each rule on both of its sides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.cluster.cloud_notice import CloudNotice
from infra.cluster.fitness import Sickness
from infra.steward.decide import (
    Action,
    Attempt,
    EndAttempt,
    FailureClass,
    Finish,
    History,
    Launch,
    Observation,
    Reboot,
    Replace,
    Wait,
    decide,
)
from infra.steward.rules.gang_size import FIRST_PAUSE, Room
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen
from trainer.contract import Phase

MINUTE, TICK = timedelta(minutes=1), timedelta(microseconds=1)
ELASTIC = POLICY.model_copy(
    update={"gang_sizes": (3, 2), "spare_timeout": 10 * MINUTE, "capacity_timeout": 45 * MINUTE}
)  # fmt: skip


def attempt(nodes: int = 0, failure: FailureClass = FailureClass.NODE, **changes: Any) -> Attempt:
    base = {"number": 1, "failure": failure, "ended_at": NOW - MINUTE, "committed_at_launch": 10,
            "committed_at_end": 20, "nodes": nodes}  # fmt: skip
    return Attempt.model_validate({**base, **changes})


def lacking(fit: int, since: timedelta, last: Attempt | None = None, policy: Any = ELASTIC) -> Action:
    """Decide between attempts, with so many of four nodes fit."""
    view = seen(
        in_flight=False, pods=(), nodes_wanted=4, nodes=tuple(node(index) for index in range(fit)), since_short=since
    )
    return decide(view, policy, History(attempts=(last or attempt(),)))


def test_a_successor_has_its_time_to_come_before_the_gang_gets_smaller() -> None:
    assert isinstance(lacking(3, ELASTIC.spare_timeout), Wait)
    action = lacking(3, ELASTIC.spare_timeout + TICK)
    assert isinstance(action, Launch) and (action.attempt, action.nodes) == (2, 3)
    assert "3 of 4 nodes are fit" in action.why and "goes on with 3" in action.why


def test_it_takes_the_largest_number_that_divides_and_never_one_below_the_minimum() -> None:
    sizes = ELASTIC.model_copy(update={"gang_sizes": (2,)})
    fewer = lacking(3, 11 * MINUTE, policy=sizes)
    assert isinstance(fewer, Launch) and fewer.nodes == 2
    assert isinstance(lacking(1, 45 * MINUTE), Wait)
    over = lacking(1, 45 * MINUTE + TICK)
    assert isinstance(over, Finish) and over.outcome == "stopped" and "no capacity" in over.why


def test_without_a_minimum_the_wait_for_nodes_ends_as_it_always_did() -> None:
    whole = ELASTIC.model_copy(update={"gang_sizes": ()})
    assert isinstance(lacking(3, 45 * MINUTE, policy=whole), Wait)
    assert isinstance(lacking(3, 45 * MINUTE + TICK, policy=whole), Finish)


def test_a_smaller_gang_that_fails_without_losing_a_node_starts_again_at_once() -> None:
    again = lacking(3, timedelta(hours=9), attempt(3, FailureClass.PROCESS))
    assert isinstance(again, Launch) and again.nodes == 3
    more = lacking(3, timedelta(hours=9), attempt(2, FailureClass.PROCESS))
    assert isinstance(more, Launch) and more.nodes == 3, "what is there is taken: the restart is paid for"


@pytest.mark.parametrize(("ago", "nodes"), [(10 * MINUTE, 0), (10 * MINUTE + TICK, 2)])
def test_a_smaller_gang_that_loses_a_node_waits_anew_though_nodes_are_long_short(ago: timedelta, nodes: int) -> None:
    action = lacking(2, timedelta(hours=9), attempt(3, ended_at=NOW - ago))
    assert (action.nodes if isinstance(action, Launch) else 0) == nodes
    assert not isinstance(lacking(1, timedelta(hours=9), attempt(3, ended_at=NOW - 45 * MINUTE)), Finish)
    assert isinstance(lacking(1, timedelta(hours=9), attempt(3, ended_at=NOW - 45 * MINUTE - TICK)), Finish)


def smaller(**changes: Any) -> Observation:
    """Two of four nodes train, and all four are fit."""
    base: dict[str, Any] = {
        "nodes_wanted": 4, "gang_nodes": 2, "room_step": 20, "committed_step": 40,
        "nodes": tuple(node(index) for index in range(4)), "since_short": None,
    }  # fmt: skip
    return seen(**{**base, **changes})


def test_a_smaller_gang_is_whole_with_as_many_pods_as_it_was_launched_with() -> None:
    ended = tuple(pod(index, phase="Succeeded") for index in range(2))
    assert isinstance(decide(smaller(pods=ended), ELASTIC, History()), Finish)
    assert not isinstance(decide(smaller(pods=ended[:1]), ELASTIC, History()), Finish)
    early = decide(smaller(pods=(pod(0, step=0),), room_step=None), ELASTIC, History())
    assert early == Wait(why="1 of 2 pods have not been made")


def test_it_grows_after_the_next_commit_and_not_before() -> None:
    action = decide(smaller(), ELASTIC, History())
    assert isinstance(action, EndAttempt) and (action.failure, action.grows_to) == (FailureClass.INTERRUPTED, 4)
    assert action.why == "4 nodes are fit, and the gang has 2; step 40 is committed since"
    wait = decide(smaller(committed_step=20), ELASTIC, History())
    assert isinstance(wait, Wait) and "it grows after its next commit" in wait.why
    alone = decide(smaller(room_step=None, nodes=(node(0), node(1))), ELASTIC, History())
    assert alone == Wait(why="training with 2 of 4 nodes")


def test_it_grows_to_a_number_between_where_not_all_are_there() -> None:
    action = decide(smaller(nodes=tuple(node(index) for index in range(3))), ELASTIC, History())
    assert isinstance(action, EndAttempt) and action.grows_to == 3
    only_two = ELASTIC.model_copy(update={"gang_sizes": (2,)})
    assert isinstance(decide(smaller(nodes=tuple(node(index) for index in range(3))), only_two, History()), Wait)


@pytest.mark.parametrize(("growths", "hours"), [(1, 1), (2, 2), (3, 4), (4, 8)])
def test_the_pause_before_a_growth_doubles_with_each_growth_of_a_day(growths: int, hours: int) -> None:
    def after(ago: timedelta, window: timedelta = timedelta()) -> Action:
        times = [NOW - timedelta(hours=23, minutes=59 - n) - window for n in range(growths - 1)] + [NOW - ago]
        ends = [attempt(2, ended_at=ended_at, grows_to=4) for ended_at in times]
        return decide(smaller(), ELASTIC, History(attempts=(*ends, attempt(2))))

    pause = timedelta(hours=hours)
    assert isinstance(after(pause), EndAttempt)
    wait = after(pause - TICK)
    assert isinstance(wait, Wait) and "it grows from 00:00 UTC on, later after each growth" in wait.why
    assert isinstance(after(FIRST_PAUSE, timedelta(hours=1)), EndAttempt), "a growth of yesterday no longer counts"


def flapping_campaign(growths: int) -> tuple[tuple[Attempt, ...], Any]:
    """Return the attempts of a campaign whose fourth node dies 20 minutes after each growth, and its end."""
    attempts, now = [attempt(number=1, ended_at=NOW)], NOW
    while sum(bool(end.grows_to) for end in attempts) < growths:
        now += timedelta(minutes=10)
        view = smaller(now=now, deadline=now + timedelta(days=9))
        action = decide(view, ELASTIC, History(attempts=tuple(attempts)))
        if isinstance(action, EndAttempt):
            attempts.append(attempt(2, FailureClass.INTERRUPTED, ended_at=now, grows_to=4))
            now += timedelta(minutes=20)
            attempts.append(attempt(ended_at=now))
    return tuple(attempts), now


def test_a_node_that_comes_and_goes_does_not_end_the_campaign_by_its_losses() -> None:
    attempts, now = flapping_campaign(growths=9)
    losses = [end.ended_at for end in attempts if end.failure is FailureClass.NODE]
    most = max(sum(start <= at < start + timedelta(hours=24) for at in losses) for start in losses)
    assert most == ELASTIC.node_replacements and now > NOW + timedelta(days=2)


def test_a_node_that_is_foretold_to_go_is_no_reason_to_grow() -> None:
    due = CloudNotice(code="instance-stop", due=NOW + timedelta(hours=1))
    going = (node(0), node(1), node(2, cloud_notice=due), node(3, cloud_notice=due))
    action = decide(smaller(nodes=going), ELASTIC, History())
    assert isinstance(action, Replace) and action.nodes == ("node-2", "node-3"), "the gang trains on meanwhile"
    alone = ELASTIC.model_copy(update={"replaces": False})
    assert isinstance(decide(smaller(nodes=going), alone, History()), Wait)


FAILED = (pod(0), pod(1, phase="Failed", exit_code=70))


@pytest.mark.parametrize("trouble", [{"stop_requested": True}, {"since_step": timedelta(hours=1)}, {"pods": FAILED}])
def test_what_ends_a_gang_anyway_is_told_before_its_growth(trouble: dict[str, Any]) -> None:
    action = decide(smaller(**trouble), ELASTIC, History())
    assert isinstance(action, EndAttempt) and not action.grows_to


def test_a_whole_gang_never_grows() -> None:
    assert decide(smaller(gang_nodes=0, pods=tuple(pod(index) for index in range(4))), ELASTIC, History()) == Wait(
        why="training"
    )


def test_a_dead_node_of_a_smaller_gang_is_replaced_as_any_other() -> None:
    dead = attempt(2, dead_nodes=("node-1",), instances={"node-1": "i-1"})
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=(node(0), node(1, ready=None)), since_short=MINUTE)
    action = decide(view, ELASTIC, History(attempts=(dead,)))
    assert isinstance(action, Replace) and action.nodes == ("node-1",)


def test_room_counts_from_the_commit_that_saw_it_and_a_look_without_it_begins_anew() -> None:
    room = Room()
    few, all_four = (node(0), node(1)), tuple(node(index) for index in range(4))
    looks = [(20, few), (20, all_four), (40, all_four), (40, few), (60, all_four)]
    steps = [room.note(smaller(committed_step=step, nodes=nodes), ELASTIC).room_step for step, nodes in looks]
    assert steps == [None, 20, 20, None, 60]


NEVER_READY = {"ready": None, "unfit": "not Ready", "sick_for": {Sickness.LATE: timedelta(hours=5)}}
XID_79 = {"unfit": "Xid 79", "suspected": True, "sick_for": {Sickness.FAULT: timedelta(hours=5)}}
IMPAIRED = {"instance_state": "impaired", "unfit": "EC2 calls its instance impaired"}
XID_48 = {**XID_79, "reboot_cures": True}
REBOOTS = ELASTIC.model_copy(update={"reboots": True})


def beside(*spares: dict[str, Any], history: History | None = None, policy: Any = REBOOTS, **changes: Any) -> Action:
    """Decide while nodes 0 and 1 train, with these nodes beside them."""
    nodes = (node(0), node(1), *(node(2 + index, **spare) for index, spare in enumerate(spares)))
    view = smaller(nodes=nodes, room_step=None, **changes)
    return decide(view, policy, history or History(attempts=(attempt(),)))


@pytest.mark.parametrize("sick", [NEVER_READY, XID_79, IMPAIRED])
def test_a_sick_node_beside_a_smaller_gang_is_replaced_while_it_trains(sick: dict[str, Any]) -> None:
    action = beside(sick)
    assert isinstance(action, Replace) and action.nodes == ("node-2",)
    none_left = History(attempts=(attempt(),), repairs=(NOW,) * POLICY.repairs_per_hour)
    assert isinstance(beside(sick, history=none_left), Wait)
    assert isinstance(beside(sick, policy=REBOOTS.model_copy(update={"replaces": False})), Wait)


def test_a_node_beside_a_smaller_gang_is_rebooted_first_and_waited_for() -> None:
    action = beside(XID_48)
    assert isinstance(action, Reboot) and action.nodes == ("node-2",)
    assert isinstance(beside(XID_48, history=History(reboots={"i-2": NOW + MINUTE})), Wait)
    assert isinstance(beside(XID_48, history=History(reboots={"i-2": NOW})), Replace)


def test_many_sick_nodes_beside_a_gang_share_no_cause_while_the_gang_itself_is_well() -> None:
    action = beside(XID_79, XID_79)
    assert isinstance(action, Replace) and action.nodes == ("node-2", "node-3")


def test_nodes_of_the_gang_itself_are_not_touched_while_it_trains() -> None:
    due = CloudNotice(code="instance-stop", due=NOW + timedelta(hours=1))
    sick = smaller(nodes=(node(0, **XID_79), node(1, cloud_notice=due), node(2)), room_step=None)
    assert isinstance(decide(sick, REBOOTS, History(attempts=(attempt(),))), Wait)
    whole = smaller(gang_nodes=0, nodes_wanted=2, nodes=(node(0), node(1), node(2, **XID_79)), room_step=None)
    assert decide(whole, REBOOTS, History(attempts=(attempt(),))) == Wait(why="training"), "as ever"


def after_reboot(until: timedelta, **changes: Any) -> Action:
    """Decide with three of four nodes fit for long, and the fourth rebooted."""
    nodes = (node(0), node(1), node(2), node(3, **{"ready": None, "unfit": "not Ready", **changes}))
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=nodes, since_short=timedelta(hours=9))
    return decide(view, REBOOTS, History(attempts=(attempt(),), reboots={"i-3": NOW + until}))


def test_a_gang_does_not_get_smaller_while_a_reboot_is_awaited() -> None:
    assert isinstance(after_reboot(MINUTE), Wait)
    assert isinstance(after_reboot(-10 * MINUTE), Wait), "its successor has its time too"
    later = after_reboot(-10 * MINUTE - TICK)
    assert isinstance(later, Launch) and later.nodes == 3


def test_a_reboot_that_has_cured_its_node_is_no_longer_awaited() -> None:
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=(node(0), node(1), node(2)),
                since_short=11 * MINUTE)  # fmt: skip
    action = decide(view, REBOOTS, History(attempts=(attempt(),), reboots={"i-2": NOW + MINUTE}))
    assert isinstance(action, Launch) and action.nodes == 3


def test_a_smaller_gang_that_lost_none_does_not_wait_for_a_reboot_beside_it() -> None:
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=(node(0), node(1), node(2, **XID_48)),
                since_short=MINUTE)  # fmt: skip
    history = History(attempts=(attempt(2, FailureClass.PROCESS),), reboots={"i-2": NOW + MINUTE})
    action = decide(view, REBOOTS, history)
    assert isinstance(action, Launch) and action.nodes == 2


@pytest.mark.parametrize(("until", "ends"), [(MINUTE, False), (-45 * MINUTE, False), (-45 * MINUTE - TICK, True)])
def test_a_reboots_wait_is_not_taken_from_the_time_for_capacity(until: timedelta, ends: bool) -> None:
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=(node(0),), since_short=timedelta(hours=9))
    action = decide(view, REBOOTS, History(attempts=(attempt(),), reboots={"i-3": NOW + until}))
    assert isinstance(action, Finish) is ends


@pytest.mark.parametrize(
    "ending",
    [{"phase": "Succeeded", "exit_code": 0}, {"trainer_phase": Phase.FINISHING}, {"trainer_phase": Phase.EVALUATING}],
)
def test_a_gang_that_ends_or_evaluates_does_not_grow(ending: dict[str, Any]) -> None:
    action = decide(smaller(pods=(pod(0), pod(1, **ending))), ELASTIC, History())
    assert isinstance(action, Wait) and "it does not grow at its end, nor in an evaluation" in action.why


def test_a_gang_does_not_grow_when_the_deadline_is_near() -> None:
    least = ELASTIC.startup_timeout + 2 * ELASTIC.interval_and_archive
    near = decide(smaller(deadline=NOW + least - TICK), ELASTIC, History())
    assert isinstance(near, Wait) and "the deadline is too near" in near.why
    assert isinstance(decide(smaller(deadline=NOW + least), ELASTIC, History()), EndAttempt)


def never_started(growing: Attempt, *later: Attempt, fit: int = 4) -> Action:
    """Decide after a growth, and the attempts that followed it."""
    view = seen(attempt=9, in_flight=False, pods=(), nodes_wanted=4, nodes=tuple(node(index) for index in range(fit)),
                since_short=None if fit == 4 else MINUTE)  # fmt: skip
    return decide(view, ELASTIC, History(attempts=(growing, *later)))


def startup(nodes: int = 0, **changes: Any) -> Attempt:
    return attempt(nodes, FailureClass.STARTUP, number=9, **{"committed_at_end": 10, **changes})


def test_a_gang_whose_growth_never_started_goes_back_to_the_number_before() -> None:
    """On a cluster that others use too, a node may be fit and full."""
    growing = attempt(2, FailureClass.INTERRUPTED, grows_to=4)
    for action in (never_started(growing, startup()), never_started(growing, startup(3), fit=3)):
        assert isinstance(action, Launch) and action.nodes == 2 and "as before" in action.why


def test_it_does_not_go_back_for_another_reason_nor_twice() -> None:
    growing = attempt(2, FailureClass.INTERRUPTED, grows_to=4)
    for last in (startup(committed_at_end=30), startup(2), attempt(0, FailureClass.PROCESS, committed_at_end=10)):
        action = never_started(growing, last)
        assert isinstance(action, Launch) and action.nodes == 0
    plain = never_started(attempt(2, FailureClass.INTERRUPTED), startup())
    assert isinstance(plain, Launch) and plain.nodes == 0
    assert never_started(growing, startup(), startup(2)) == Launch(attempt=10, why="enough fit nodes")
    assert isinstance(never_started(growing, startup(), fit=1), Wait)


def in_doubt(sick_s: float, last: Attempt) -> Action:
    """Decide with two fit nodes, and a third that is suspected for so many seconds."""
    suspect = node(2, **{**XID_79, "sick_for": {Sickness.FAULT: timedelta(seconds=sick_s)}})
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=(node(0), node(1), suspect), since_short=9 * MINUTE)
    return decide(view, ELASTIC, History(attempts=(last,), repairs=(NOW,) * ELASTIC.repairs_per_hour))


def test_a_smaller_gang_waits_a_minute_for_a_node_that_is_only_suspected() -> None:
    last = attempt(2, FailureClass.PROCESS)
    assert isinstance(in_doubt(59, last), Wait)
    later = in_doubt(60, last)
    assert isinstance(later, Launch) and later.nodes == 2, "it is over, and no repair is left"


def with_sick(sick: int, policy: Any) -> Action:
    """Decide with so many of four nodes sick and no repair left."""
    nodes = tuple(node(index, **(XID_79 if index < sick else {})) for index in range(4))
    view = seen(in_flight=False, pods=(), nodes_wanted=4, nodes=nodes, since_short=MINUTE)
    return decide(view, policy, History(attempts=(attempt(),), repairs=(NOW,) * policy.repairs_per_hour))


@pytest.mark.parametrize(("sick", "nodes"), [(1, 3), (2, 2), (3, 0), (4, 0)])
def test_a_gang_leaves_out_sick_nodes_for_which_no_repair_is_left(sick: int, nodes: int) -> None:
    any_size = ELASTIC.model_copy(update={"gang_sizes": (3, 2, 1)})
    action = with_sick(sick, any_size)
    assert isinstance(action, Launch) and action.nodes == nodes
    assert ("pods run there all the same" in action.why) is (nodes == 0)
    whole = with_sick(sick, POLICY)
    assert isinstance(whole, Launch) and whole.nodes == 0 and "pods run there all the same" in whole.why

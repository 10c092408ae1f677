"""What the steward makes of looks over time: money, nodes that fall short, clocks, and a predecessor's clocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from infra.cluster.fitness import Ailment, Sickness
from infra.steward.clocks import Clocks
from tests.unit.steward.seeing.observe_world import BASE, HEARTBEAT_S, NODE, ObservedGang, node, seconds, world

__all__ = ["world"]


@pytest.mark.parametrize(
    ("states", "billing"),
    [
        (("running", "running"), 2),
        (("running", "gone"), 1),
        (("impaired", "unknown"), 2),
        (("running", "running", "running"), 3),
        ((), 0),
    ],
)
def test_every_instance_that_has_not_gone_bills_fit_or_not(
    world: ObservedGang, states: tuple[str, ...], billing: int
) -> None:
    world.nodes = [node(index, instance_state=one, quarantined=True) for index, one in enumerate(states)]
    assert world.look().usd_per_hour == BASE + billing * NODE


def test_before_a_first_look_at_the_cluster_all_nodes_bill_and_none_is_short(world: ObservedGang) -> None:
    world.away = True
    sight = world.look()
    assert sight.usd_per_hour == BASE + 2 * NODE and sight.since_short is None and sight.nodes == ()


def test_money_is_the_records_and_runs_at_the_present_rate_between_two_readings(world: ObservedGang) -> None:
    assert world.look(0).spent_usd == 5
    assert world.look(36).spent_usd == 5 + (BASE + 2 * NODE) / 100
    world.nodes = [node(0)]
    assert world.look(18).spent_usd == 5 + (BASE + 2 * NODE) / 100 + (BASE + NODE) / 200
    world.reading = replace(world.reading, estimated={"before": Decimal(7)})
    assert world.look(6).spent_usd == 7, "a minute after the last reading"
    world.sources.note_failure("record", ConnectionError())
    assert world.look(36).spent_usd == 7 + (BASE + NODE) / 100
    world.reading = replace(world.reading, prepaid=True)
    assert world.look(3600).usd_per_hour == BASE + NODE, "as it was known before this reading"
    assert world.look(0).usd_per_hour == BASE, "a fee covers the nodes"


def test_the_nodes_that_bill_are_those_seen_last(world: ObservedGang) -> None:
    assert world.observer.nodes_billing == 0, "the record's, before any look"
    world.look()
    assert world.observer.nodes_billing == 2
    world.nodes, world.away = [node(0)], True
    world.look()
    assert world.observer.nodes_billing == 2
    world.away = False
    world.look(1000)
    assert world.observer.nodes_billing == 1 and world.observer.nodes_counted == 0, "what is counted is in the record"


def test_a_node_is_told_with_what_ails_it_and_for_how_long(world: ObservedGang) -> None:
    fault = Ailment(words="AcceleratedHardwareReady is False", sickness=Sickness.FAULT, bars=False)
    ailment = Ailment(words="cordoned by somebody else", sickness=Sickness.HELD)
    changes = {"ready": None, "instance_state": "impaired", "ailments": (ailment,)}
    world.nodes = [node(0, ailments=(fault,)), node(1, **changes)]
    world.look()
    first, second = world.look(40).nodes
    assert (first.name, first.instance, first.unfit) == ("node-0", "i-0", fault.words)
    assert first.suspected and first.sick_for == {Sickness.FAULT: timedelta(seconds=40)}
    assert (second.ready, second.instance_state, second.suspected) == (None, "impaired", False)
    assert second.sick_for == {} and not second.quarantined
    assert world.observer.clocks.sick == {"node-0 i-0 fault": world.time() - 40}


def test_nodes_are_short_from_the_first_look_that_finds_too_few_fit_ones(world: ObservedGang) -> None:
    assert world.look().since_short is None
    world.nodes = [node(0), node(1, ready=False)]
    assert seconds(world.look().since_short) == 0
    assert seconds(world.look(30).since_short) == 30
    world.nodes = [node(0), node(1), node(2, ready=False)]
    assert world.look().since_short is None, "there are enough"


def test_a_gang_that_trains_with_fewer_nodes_is_short_only_of_its_own(world: ObservedGang) -> None:
    """After its end, as for a relaunch hours later, the time for capacity begins anew."""
    world.nodes = [node(0)]
    assert seconds(world.look().since_short) == 0
    assert world.look(9999, gang_nodes=1).since_short is None
    assert seconds(world.look(in_flight=False).since_short) == 0
    assert seconds(world.look(30, in_flight=False).since_short) == 30


def test_a_cluster_that_cannot_be_reached_makes_no_node_short_and_none_whole(world: ObservedGang) -> None:
    world.nodes = [node(0)]
    world.look()
    world.away, world.nodes = True, [node(0), node(1)]
    sight = world.look(60)
    assert seconds(sight.since_short) == 60 and [one.name for one in sight.nodes] == ["node-0"]
    assert [one.source for one in sight.unseen] == ["cluster"]


def test_a_mistake_of_ours_is_no_weather(world: ObservedGang) -> None:
    def mistaken(ask_ec2: bool) -> None:
        raise KeyError("a mistake")

    world.facts = mistaken  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyError):
        world.look()


def test_pods_keep_their_last_word_and_agents_are_asked_while_the_cluster_is_away(world: ObservedGang) -> None:
    world.look()
    world.away, world.steps = True, {0: 50, 1: 40}
    sight = world.look(60)
    assert [pod.step for pod in sight.pods] == [50, 40] and sight.step == 40


def test_ec2_is_away_when_it_does_not_tell_and_is_asked_again_when_its_pause_is_over(world: ObservedGang) -> None:
    world.not_told = httpx2.ConnectError("no EC2")
    assert [one.source for one in world.look().unseen] == ["AWS"] and world.asked_ec2 == [True]
    world.look(0.5)
    assert world.asked_ec2 == [True, False] and world.sources.away("AWS")
    world.not_told = None
    world.look(0.1)
    assert world.sources.away("AWS"), "who was not asked has not answered"
    assert world.look(60).unseen == () and world.asked_ec2[-1]


def test_a_new_attempt_begins_with_no_time_and_no_word_of_the_last(world: ObservedGang) -> None:
    world.steps = {0: 9, 1: 9}
    world.look()
    del world.steps[0]
    world.look(30)
    world.observer.begin_attempt(2)
    sight = world.look(5)
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [5, 5] and sight.step == 0
    assert sight.pods[0].step == 0 and sight.pods[0].silent_for is None and seconds(sight.pods[0].running_for) == 0


def test_a_step_is_only_one_that_the_slowest_made(world: ObservedGang) -> None:
    world.steps = {0: 5, 1: 5}
    world.look()
    world.steps = {0: 9, 1: 5}
    assert seconds(world.look(60).since_step) == 60
    world.steps = {0: 9, 1: 6}
    assert seconds(world.look(60).since_step) == 0


def test_a_job_that_counts_each_epoch_from_0_hangs_only_while_it_stands_still(world: ObservedGang) -> None:
    for step in (98, 99, 0, 1, 2, 99, 0, 1, 2):
        world.steps = {0: step, 1: 99}  # the other node keeps the highest that it has heard of
        sight = world.look(60)
    assert seconds(sight.since_step) == 0 and sight.step == 99
    assert seconds(world.look(60).since_step) == 60 and seconds(world.look(60).since_step) == 120


def test_a_node_that_knows_no_step_holds_up_no_one(world: ObservedGang) -> None:
    world.steps = {0: 0, 1: 5}
    world.look()
    world.steps = {0: 0, 1: 6}
    sight = world.look(60)
    assert seconds(sight.since_step) == 0 and sight.step == 6
    assert seconds(world.look(60).since_step) == 60


def test_a_pod_that_never_answers_ends_no_gang_that_steps(world: ObservedGang) -> None:
    world.steps = {0: 5}
    assert seconds(world.look(HEARTBEAT_S).since_step) == HEARTBEAT_S, "it may be the slowest"
    world.steps = {0: 6}
    assert seconds(world.look(HEARTBEAT_S + 1).since_step) == 0


def test_steps_that_go_back_with_a_restart_in_place_are_no_hang(world: ObservedGang) -> None:
    """Half an hour of lost steps is repeated: the clock of steps moves as it does after a launch."""
    world.steps = {0: 900, 1: 900}
    world.look()
    world.look(100)
    world.steps, world.generations = {0: 0, 1: 900}, {0: 1}  # the second agent has not begun the new generation
    sight = world.look(30)
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [0, 0] and sight.step == 0
    world.steps, world.generations = {0: 600, 1: 600}, {0: 1, 1: 1}
    assert seconds(world.look(60).since_step) == 0
    assert seconds(world.look(60).since_step) == 60
    world.steps = {0: 601, 1: 601}
    sight = world.look(60)
    assert seconds(sight.since_step) == 0 and sight.step == 601


def taken_over(world: ObservedGang, **changes: Any) -> None:
    """A predecessor launched two hours ago and saw no step for one."""
    now = world.time()
    marks = {"attempt": 1, "launched": now - 7200, "stepped": now - 3600, "step": 70} | changes
    world.observer.go_on_from(Clocks(**marks))


def test_a_successor_hears_every_running_pod_before_it_believes_the_stored_clocks(world: ObservedGang) -> None:
    taken_over(world)
    world.steps = {0: 70}
    sight = world.look()
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [10, 10] and sight.step == 70
    world.steps = {0: 70, 1: 70}
    sight = world.look(5)
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [7215, 3615]


@pytest.mark.parametrize("over", [False, True])
def test_it_listens_for_no_longer_than_a_heartbeat(world: ObservedGang, over: bool) -> None:
    taken_over(world)
    world.steps = {}
    after = HEARTBEAT_S + (1 if over else 0)
    assert seconds(world.look(after).since_step) == (3600 + after if over else after)
    assert seconds(world.look(0).since_step) == (3600 + after if over else after)


def test_a_new_attempt_of_who_took_over_is_believed_at_once(world: ObservedGang) -> None:
    taken_over(world)
    world.steps = {}
    world.look()
    world.observer.begin_attempt(2)
    world.pods, world.away = [], True
    sight = world.look(7)
    assert (seconds(sight.since_launch), sight.pods) == (7, ())
    assert seconds(world.look(HEARTBEAT_S - 10).since_launch) == HEARTBEAT_S - 3


def test_what_was_stepped_meanwhile_is_no_hang(world: ObservedGang) -> None:
    taken_over(world)
    world.steps = {0: 500, 1: 500}
    assert seconds(world.look().since_step) == 0


def test_younger_clocks_than_ones_own_listening_are_believed(world: ObservedGang) -> None:
    world.time.go(100)
    taken_over(world, launched=world.time() + 5, stepped=world.time() + 5)
    world.steps = {}
    assert seconds(world.look(10).since_launch) == 5


def test_a_pod_that_was_silent_before_the_takeover_is_silent_since_then(world: ObservedGang) -> None:
    now = world.time()
    taken_over(world, quiet={"gang-1": now - 300}, sick={"node-1 i-1 late": now - 200})
    world.nodes = [node(0), node(1, ailments=(Ailment(words="late", sickness=Sickness.LATE),))]
    world.steps = {0: 70}
    sight = world.look()
    assert seconds(sight.pods[1].running_for) == 310 and sight.pods[1].silent_for is None
    assert sight.nodes[1].sick_for == {Sickness.LATE: timedelta(seconds=210)}
    assert world.observer.clocks.quiet == {"gang-1": now - 300}, "and so for whoever comes next"


def test_the_clocks_know_since_when_each_pod_is_silent(world: ObservedGang) -> None:
    world.look()
    heard = world.time()
    del world.steps[1]
    world.look()
    assert world.observer.clocks.quiet == {"gang-1": heard}
    world.look()
    assert world.observer.clocks.quiet == {"gang-1": heard}
    world.steps[1] = 1
    world.look()
    assert world.observer.clocks.quiet == {}

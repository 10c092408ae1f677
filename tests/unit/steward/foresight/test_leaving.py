"""Nodes that EC2 announces to take: when the gang drains, what is replaced, and what is left alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from infra.cluster.cloud_notice import CloudNotice, scheduled
from infra.steward.decide import EndAttempt, FailureClass, History, Launch, Observation, Replace, Wait, decide
from infra.steward.foresight import leaving
from infra.steward.foresight.announcements import Announcements
from tests.unit.steward.steward_story import StewardRun, story
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen

__all__ = ["story"]
HOUR = timedelta(hours=1)
INTERVAL = POLICY.interval_and_archive
RETIREMENT = {
    "InstanceEventId": "instance-event-0d59937288b749b32",
    "Code": "instance-retirement",
    "Description": "The instance is running on degraded hardware",
    "NotBefore": datetime(2026, 12, 5, 6, tzinfo=UTC),
}
"""An event in the form of the EC2 User Guide, "View scheduled events for your instances"."""


def notice(due: datetime = NOW + HOUR) -> CloudNotice:
    return CloudNotice(code="instance-retirement", due=due)


def sight(due: datetime = NOW + HOUR, **changes: object) -> Observation:
    fields = {"nodes": (node(0), node(1, cloud_notice=notice(due))), "notice_steps": {"i-1": 20}, "committed_step": 20}
    return seen(**{**fields, **changes})


def test_ec2_s_events_are_read_and_those_that_are_over_are_not() -> None:
    reboot = {"Code": "system-reboot", "NotBefore": datetime(2026, 12, 4, tzinfo=UTC), "Description": "scheduled"}
    assert scheduled({"Events": [RETIREMENT, reboot]}) == CloudNotice(code="system-reboot", due=reboot["NotBefore"])
    for word in ("[Completed] ", "[Canceled] "):
        event = {**RETIREMENT, "Description": word + str(RETIREMENT["Description"])}
        assert scheduled({"Events": [event]}) is None
    assert scheduled({}) is None and scheduled({"Events": [{"Code": "instance-stop"}]}) is None


def test_a_gang_trains_on_until_its_next_commit_and_then_drains() -> None:
    assert isinstance(decide(sight(), POLICY, History()), Wait)
    action = decide(sight(committed_step=30), POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.INTERRUPTED and not action.dead_nodes
    assert action.why.startswith("node-1: instance-retirement at 2026-11-21T01:00:00+00:00; step 30 is committed")


def test_with_less_than_an_interval_left_the_gang_commits_at_once() -> None:
    assert isinstance(decide(sight(NOW + INTERVAL + timedelta(seconds=1)), POLICY, History()), Wait)
    action = decide(sight(NOW + INTERVAL), POLICY, History())
    assert isinstance(action, EndAttempt) and "commits at once" in action.why
    unrecorded = decide(sight(NOW + INTERVAL, notice_steps={}), POLICY, History())
    assert isinstance(unrecorded, EndAttempt), "two minutes are too short to wait for the record"


def test_a_gang_has_ten_minutes_to_commit_however_short_its_interval_is() -> None:
    often = POLICY.model_copy(update={"interval_and_archive": POLICY.archive + timedelta(minutes=1)})
    assert isinstance(decide(sight(NOW + timedelta(minutes=10)), often, History()), EndAttempt)
    assert isinstance(decide(sight(NOW + timedelta(minutes=10, seconds=1)), often, History()), Wait)


def test_a_gang_is_drained_though_ec2_falls_silent_after_its_announcement(story: StewardRun) -> None:
    def announce() -> None:
        if story.time() - start > 120 and not story.aws.events:
            story.aws.events["i-1"] = [{**RETIREMENT, "NotBefore": story.time.wall() + timedelta(hours=1)}]
        story.aws.away = story.time() - start > 300

    start = story.time()
    story.run(70, announce)
    assert story.events("attempt.ended")[0].data["failure"] == "interrupted"


@pytest.mark.parametrize(
    "changes",
    [
        {"due": NOW + timedelta(days=9)},
        {"pods": (pod(0),), "nodes_wanted": 1},
        {"notice_steps": {}},
    ],
    ids=["after the deadline", "on a node without a pod of the gang", "whose step nobody has recorded"],
)
def test_what_is_announced_without_harm_to_the_gang_ends_nothing(changes: dict[str, object]) -> None:
    assert isinstance(decide(sight(**{"committed_step": 30, **changes}), POLICY, History()), Wait)  # type: ignore[arg-type]


def test_what_is_announced_for_next_week_does_not_count_yet() -> None:
    week = sight(NOW + timedelta(days=7), committed_step=30, deadline=NOW + timedelta(days=30))
    assert isinstance(decide(week, POLICY, History()), Wait) and leaving.leaving_nodes(week) == []


def test_an_announcement_stands_while_ec2_does_not_answer(story: StewardRun) -> None:
    story.aws.events["i-1"] = [{**RETIREMENT, "NotBefore": story.time.wall() + timedelta(hours=1)}]
    story.run(2)
    announcements = Announcements(story.store())
    announcements.take_over()
    blind = sight(nodes=(node(0), node(1).model_copy(update={"instance": "i-1"})))
    nodes = announcements.remember(blind).nodes
    assert nodes[0].cloud_notice is None
    assert nodes[1].cloud_notice is not None and nodes[1].cloud_notice.code == "instance-retirement"


def test_a_node_that_could_not_be_replaced_is_trained_on() -> None:
    spent = History(repairs=(NOW,) * POLICY.repairs_per_hour)
    assert isinstance(decide(sight(committed_step=30), POLICY, spent), Wait)
    assert isinstance(decide(sight(in_flight=False, pods=()), POLICY, spent), Launch)


def test_after_the_drain_the_announced_nodes_are_replaced_the_earliest_first() -> None:
    nodes = (node(0, cloud_notice=notice(NOW + 1.5 * HOUR)), node(1, cloud_notice=notice()))
    action = decide(sight(in_flight=False, pods=(), nodes=nodes), POLICY, History())
    assert isinstance(action, Replace) and action.nodes == ("node-1", "node-0")
    assert action.reasons[0] == "EC2 announces instance-retirement at 2026-11-21T01:00:00+00:00"
    last = decide(sight(in_flight=False, pods=(), nodes=nodes), POLICY, History(repairs=(NOW,)))
    assert isinstance(last, Replace) and last.nodes == ("node-1",), "of four repairs two are for nodes that are lost"
    quarantined = tuple(one.model_copy(update={"quarantined": True}) for one in nodes)
    assert leaving.to_replace(sight(nodes=quarantined), 4, 4) == {}


@pytest.mark.parametrize("spent", range(5))
def test_half_of_an_hours_repairs_is_kept_for_lost_nodes_however_many_are_foretold(spent: int) -> None:
    nodes = tuple(node(number, cloud_notice=notice()) for number in range(6))
    rows = leaving.to_replace(sight(in_flight=False, pods=(), nodes=nodes), POLICY.repairs_per_hour - spent, 4)
    assert len(rows) == max(0, 2 - spent)
    assert len(leaving.to_replace(sight(nodes=nodes), 1, 1)) == 1, "of a single one nothing is kept"


def test_what_ec2_takes_within_minutes_is_as_good_as_lost_and_may_take_what_is_kept() -> None:
    two_left = History(repairs=(NOW,) * (POLICY.repairs_per_hour - 2))
    at_once = decide(sight(NOW + timedelta(minutes=2)), POLICY, two_left)
    assert isinstance(at_once, EndAttempt) and "commits at once" in at_once.why
    after = decide(sight(NOW + timedelta(minutes=2), in_flight=False, pods=()), POLICY, two_left)
    assert isinstance(after, Replace) and after.nodes == ("node-1",)


def test_a_node_that_declines_is_drained_for_that_though_ec2_announces_it_for_next_week() -> None:
    words = "heat lowers the clocks of a GPU"
    far = (node(0), node(1, cloud_notice=notice(NOW + timedelta(days=7)), decline=words), node(2))
    drain = decide(sight(nodes=far, nodes_wanted=2, committed_step=30), POLICY, History())
    assert isinstance(drain, EndAttempt) and drain.why.startswith(f"node-1: {words}; step 30 is committed")
    after = decide(sight(nodes=far, nodes_wanted=2, in_flight=False, pods=()), POLICY, History())
    assert isinstance(after, Replace) and after.reasons == (words,)


def test_an_announcement_is_recorded_once_though_stewards_change(story: StewardRun) -> None:
    story.aws.events["i-1"] = [{**RETIREMENT, "NotBefore": story.time.wall() + timedelta(hours=8)}]
    story.run(2)
    story.run(2)
    (event,) = story.events("node.announced")
    assert event.data["instance"] == "i-1" and event.data["code"] == "instance-retirement"
    assert not story.events("attempt.ended"), "nothing is committed since, and hours are left"


def test_an_instance_that_goes_in_two_minutes_is_drained_and_given_back(story: StewardRun) -> None:
    def announce() -> None:
        if story.time() - start > 120 and not story.aws.events:
            story.aws.events["i-1"] = [{**RETIREMENT, "NotBefore": story.time.wall() + timedelta(minutes=2)}]

    start = story.time()
    story.run(6, announce)
    (announced,), (end,) = story.events("node.announced"), story.events("attempt.ended")
    assert announced.sequence < end.sequence and end.data["failure"] == "interrupted"
    (quarantined,) = story.events("node.quarantined")
    assert quarantined.data["instance"] == "i-1" and story.aws.ended == ["i-1"]

"""The steward's sign of life to AWS: postponed while it lives, off at its end, and never a reason to stop training."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.campaign.closing import SILENT
from infra.cluster.steward_config import LONGEST_SILENCE
from infra.errors import LeaseLost
from infra.record.payloads.attempts import NodesAtZero
from infra.spec.names import Names
from infra.stack.closer import EVERY
from infra.steward.silence import SilenceSchedules
from tests.unit.steward.steward_story import StewardRun, story
from tests.worlds.s3 import refusal

__all__ = ["story"]
MINUTE = 60.0
NODES, NOTICE = "bivouac-story-silence", "bivouac-story-silence-notice"
TARGET = {"Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig", "RoleArn": "guard", "Input": "{}"}
QUARTER = timedelta(minutes=12, seconds=30)


@pytest.fixture
def guarded(story: StewardRun) -> StewardRun:
    """A campaign whose stack has the two schedules, as it makes them."""
    for name in (NODES, NOTICE):
        story.aws.schedules[name] = {
            "Name": name, "State": "DISABLED", "ScheduleExpression": "at(2030-01-01T00:00:00)", "Target": TARGET,
            "FlexibleTimeWindow": {"Mode": "OFF"}, "ScheduleExpressionTimezone": "UTC", "GroupName": "default",
        }  # fmt: skip
    return story


def fires_at(story: StewardRun, name: str = NODES) -> datetime | None:
    """When AWS would act, by what it was told last; None: never."""
    one = story.aws.schedules[name]
    if one["State"] != "ENABLED":
        return None
    return datetime.strptime(one["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=UTC)


def left(story: StewardRun) -> timedelta:
    """Time until AWS would act."""
    moment = fires_at(story)
    assert moment is not None and fires_at(story, NOTICE) == moment
    return moment - story.time.wall()


def test_no_account_waits_longer_for_a_silent_steward_than_where_a_closer_looks() -> None:
    assert LONGEST_SILENCE == SILENT + EVERY


def test_a_living_steward_always_has_three_quarters_of_the_bound_left(guarded: StewardRun) -> None:
    told = set[datetime | None]()

    def turn() -> None:
        assert LONGEST_SILENCE - QUARTER - timedelta(seconds=20) <= left(guarded) <= LONGEST_SILENCE
        told.add(fires_at(guarded))

    assert not guarded.run(60, turn)
    assert len(told) == 5, "each quarter, and not each turn"
    assert guarded.aws.schedules[NODES]["Target"] == TARGET, "UpdateSchedule forgets what a request leaves out"
    assert left(guarded) <= LONGEST_SILENCE, "it was killed: from here on AWS counts"


def test_it_is_armed_before_the_first_attempt_and_a_successor_arms_it_again(guarded: StewardRun) -> None:
    guarded.cluster.refused = "the webhook does not answer"
    assert not guarded.run(0.5) and not guarded.cluster.jobs
    first = fires_at(guarded)
    assert first is not None
    guarded.time.go(30 * MINUTE)
    guarded.run(0.5)
    assert left(guarded) > LONGEST_SILENCE - timedelta(minutes=1)


def test_at_its_end_both_are_off_and_stay_off_with_the_next_steward(guarded: StewardRun) -> None:
    def turn() -> None:
        if guarded.time() > start + 5 * MINUTE:
            guarded.store().put_json("stop.json", {})

    start = guarded.time()
    assert guarded.run(30, turn)
    assert guarded.aws.desired == 0 and fires_at(guarded) is fires_at(guarded, NOTICE) is None
    assert guarded.run(5), "a pod that Kubernetes starts again"
    assert fires_at(guarded) is None
    assert guarded.steward is not None
    guarded.time.go(60 * MINUTE)
    guarded.steward.silence.postpone()
    assert fires_at(guarded) is None


@pytest.mark.parametrize("armed", [True, False], ids=["later", "from the first time on"])
def test_what_scheduler_refuses_is_said_and_training_goes_on(guarded: StewardRun, armed: bool) -> None:
    if armed:
        assert not guarded.run(3)
    guarded.aws.no_scheduler = "AccessDeniedException"
    assert not guarded.run(16)
    why = guarded.live()["why"]
    assert "the schedule that ends the GPU nodes of a silent steward is not postponed" in why
    assert "AccessDeniedException" in why and "nobody knows its time" in why
    (attempt,) = guarded.state().attempts
    assert attempt.ended is None and guarded.live()["step"] > 90
    guarded.aws.no_scheduler = ""
    assert not guarded.run(1)
    assert "not postponed" not in guarded.live()["why"] and fires_at(guarded) is not None


def test_a_later_refusal_is_said_with_the_time_of_awss_act_and_tried_each_minute(
    guarded: StewardRun,
) -> None:
    start = guarded.time()

    def turn() -> None:
        minute = (guarded.time() - start) / MINUTE
        guarded.aws.no_scheduler = "ThrottlingException" if 10 <= minute < 20 else ""
        if 14 <= minute < 20:
            moment = fires_at(guarded)
            assert moment is not None and f"it fires at {moment:%H:%M} UTC" in guarded.live()["why"]
        if minute >= 21.5:
            assert left(guarded) > LONGEST_SILENCE - QUARTER

    assert not guarded.run(24, turn)
    assert "not postponed" not in guarded.live()["why"]


def looks(story: StewardRun, minutes: float) -> list[str]:
    """What the steward asks Scheduler about in so many minutes."""
    asked = list[str]()
    look = story.aws.get_schedule
    story.aws.get_schedule = lambda *, Name: (asked.append(Name), look(Name=Name))[1]  # type: ignore[method-assign]
    assert not story.run(minutes)
    return asked


def test_a_campaign_that_is_older_than_the_schedules_trains_without(story: StewardRun) -> None:
    assert looks(story, 30) == [NODES, NOTICE] * 3
    assert story.live()["why"] == "training"


@pytest.mark.parametrize("lost", [NODES, NOTICE])
def test_where_somebody_has_removed_one_the_other_is_postponed_all_the_same(guarded: StewardRun, lost: str) -> None:
    del guarded.aws.schedules[lost]
    assert not guarded.run(60)
    moment = fires_at(guarded, NODES if lost == NOTICE else NOTICE)
    assert moment is not None and moment - guarded.time.wall() > LONGEST_SILENCE - QUARTER - timedelta(minutes=1)


def test_an_endpoint_that_a_vpc_lacks_is_asked_once_more_than_one_that_answers(guarded: StewardRun) -> None:
    guarded.aws.no_scheduler = "AccessDeniedException"
    assert looks(guarded, 30) == [NODES] * 4, "the first refusal twice"


def test_a_successor_that_is_refused_once_asks_before_its_predecessors_schedule_fires(guarded: StewardRun) -> None:
    in_seven_minutes = f"at({guarded.time.wall() + timedelta(minutes=7):%Y-%m-%dT%H:%M:%S})"
    for name in (NODES, NOTICE):
        guarded.aws.schedules[name] |= {"State": "ENABLED", "ScheduleExpression": in_seven_minutes}
    start = guarded.time()

    def turn() -> None:
        guarded.aws.no_scheduler = "ThrottlingException" if guarded.time() < start + 20 else ""

    guarded.aws.no_scheduler = "ThrottlingException"
    assert not guarded.run(5, turn)
    assert left(guarded) > LONGEST_SILENCE - QUARTER


@pytest.mark.parametrize(("refused_s", "lost_answers"), [(0, 0), (20, 0), (0, 1), (0, 2)])
def test_a_successor_records_when_the_nodes_of_its_predecessor_went(
    guarded: StewardRun, refused_s: int, lost_answers: int
) -> None:
    """Also one that could not ask at first: the refusal leaves the schedule as it is. Or one that hears nothing of its
    first changes, after which no schedule shows it any more."""
    assert not guarded.run(5)
    went = guarded.time.wall().replace(microsecond=0) + timedelta(minutes=1)
    for name in (NODES, NOTICE):
        guarded.aws.schedules[name] |= {"State": "ENABLED", "ScheduleExpression": f"at({went:%Y-%m-%dT%H:%M:%S})"}
    guarded.aws.desired = 0
    guarded.cluster.nodes.clear()
    guarded.time.go(120 * MINUTE)
    start = guarded.time()

    def turn() -> None:
        guarded.aws.no_scheduler = "ThrottlingException" if guarded.time() < start + refused_s else ""

    guarded.aws.no_scheduler, guarded.aws.lost_answers = "ThrottlingException" if refused_s else "", lost_answers
    guarded.run(3, turn)
    (event,) = [event for event in guarded.store().events() if event.kind == "nodes.at-zero"]
    assert isinstance(event.payload, NodesAtZero) and event.payload.since == went


def test_a_refusal_at_the_end_is_met_by_another_try_so_that_nobody_hears_of_a_silence(guarded: StewardRun) -> None:
    ended = schedules(guarded, lambda: None)
    ended.postpone()
    guarded.aws.no_scheduler = "ThrottlingException"
    assert not ended.switch_off()
    guarded.aws.no_scheduler = ""
    assert ended.switch_off() and fires_at(guarded, NOTICE) is None


def test_an_armed_schedule_that_cannot_be_postponed_is_tried_each_minute(guarded: StewardRun) -> None:
    start, asked, look = guarded.time(), list[float](), guarded.aws.get_schedule

    def get_schedule(*, Name: str) -> dict[str, Any]:
        asked.append((guarded.time() - start) / MINUTE)
        return look(Name=Name)

    def turn() -> None:
        guarded.aws.no_scheduler = "ThrottlingException" if guarded.time() > start + MINUTE else ""

    guarded.aws.get_schedule = get_schedule  # type: ignore[method-assign]
    assert not guarded.run(20, turn)
    first, *gaps = [later - sooner for sooner, later in itertools.pairwise(asked[1:])]
    assert 12 < first < 13 and len(gaps) >= 6 and all(0.9 < gap < 1.3 for gap in gaps)


def test_while_s3_is_away_the_stewards_own_bound_ends_the_nodes_and_not_aws(guarded: StewardRun) -> None:
    """Scheduler answers, and the gang commits first."""
    begun = guarded.time()

    def turn() -> None:
        guarded.s3.away = refusal("InternalError", 500) if guarded.time() > begun + 4 * MINUTE else None
        if guarded.aws.desired:
            assert left(guarded) >= LONGEST_SILENCE - QUARTER - timedelta(seconds=20)

    assert not guarded.run(45, turn)
    assert guarded.aws.desired == 0, "after `blind_timeout`, which is 30 minutes here"


def schedules(story: StewardRun, check: Callable[[], None], **more: Any) -> SilenceSchedules:
    lease: Any = type("Lease", (), {"check": staticmethod(check)})()
    account: Any = story.aws
    clock: Any = type("Clock", (), {"monotonic": staticmethod(story.time), "now": staticmethod(story.time.wall)})()
    return SilenceSchedules(account, Names("story"), lease, clock, **more)


def test_a_steward_that_another_has_replaced_changes_no_schedule(guarded: StewardRun) -> None:
    def check() -> None:
        raise LeaseLost("another steward has the campaign")

    before = dict(guarded.aws.schedules)
    for change in (schedules(guarded, check).postpone, schedules(guarded, check).switch_off):
        with pytest.raises(LeaseLost):
            change()
    assert guarded.aws.schedules == before


def test_borrowed_nodes_have_no_schedule_and_aws_is_not_asked(story: StewardRun) -> None:
    story.aws.no_scheduler = "AccessDeniedException"
    borrowed = schedules(story, lambda: None, exist=False)
    borrowed.postpone()
    borrowed.switch_off()
    assert borrowed.troubles() == ()


def test_of_nodes_that_were_asked_for_again_since_it_fired_nothing_is_recorded(
    guarded: StewardRun,
) -> None:
    """A driver has asked for them in between: what went is long back, and what goes later went later."""
    assert not guarded.run(5)
    went = guarded.time.wall() - timedelta(minutes=3)
    for name in (NODES, NOTICE):
        guarded.aws.schedules[name] |= {"State": "ENABLED", "ScheduleExpression": f"at({went:%Y-%m-%dT%H:%M:%S})"}
    start = guarded.time()

    def turn() -> None:
        if guarded.time() > start + MINUTE:
            guarded.aws.desired = 0

    guarded.run(3, turn)
    assert guarded.aws.desired == 0
    assert "nodes.at-zero" not in [event.kind for event in guarded.store().events()]

"""AWS's own schedules, which end the GPU nodes also in an account in which CodeBuild runs no build.

The launch's are postponed by each step, never beyond the deadline, and off once training runs; then the steward's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.aws.schedules import fired_at
from infra.campaign import launch_budget
from infra.campaign.closing import SILENT
from infra.cluster.steward_config import LONGEST_SILENCE
from infra.errors import LeaseLost
from infra.plan.estimates.clock import launch_wait
from infra.record.payloads.attempts import NodesAtZero
from infra.spec.names import Names
from tests.example import example_spec
from tests.unit.campaign.test_nobody_left import BEFORE_A_STEWARD, MOMENTS, NODES, TRAINING, cost_on_page, lived
from tests.worlds.closer import FIRST_CONTACT, FIRST_PLAN
from tests.worlds.s3 import refusal

AROUND = {"Arn": "a", "CreationDate": "c", "LastModificationDate": "l", "ResponseMetadata": {}}
KEPT = {"GroupName": "default", "Target": {"Arn": "t", "RoleArn": "r", "Input": "{}"}, "State": "DISABLED",
        "ScheduleExpression": "at(2026-12-01T12:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"}}  # fmt: skip


class Scheduler:
    def __init__(self, code: str = "") -> None:
        self.code, self.asked = code, list[dict[str, Any]]()

    def get_schedule(self, Name: str) -> dict[str, Any]:
        if self.code == "unreachable":
            raise EndpointConnectionError(endpoint_url="https://scheduler.us-east-1.amazonaws.com")
        if self.code:
            raise ClientError({"Error": {"Code": self.code, "Message": ""}}, "GetSchedule")
        return {"Name": Name, **KEPT, **AROUND}

    def update_schedule(self, **asked: Any) -> None:
        self.asked.append(asked)


def test_a_driver_without_its_lease_changes_no_schedule() -> None:
    scheduler = Scheduler()
    driver = context(scheduler, timedelta(days=2))

    def guard() -> None:
        raise LeaseLost("another driver has it")

    driver.guard = guard
    for change in (launch_budget.postpone, launch_budget.switch_off):
        with pytest.raises(LeaseLost):
            change(driver)
    assert scheduler.asked == []


def context(scheduler: Scheduler, left: timedelta, **nodes: Any) -> Any:
    spec = example_spec(
        recovery={"capacity_timeout": "20m", "startup_timeout": "10m"}, **({"nodes": nodes} if nodes else {})
    )
    return SimpleNamespace(
        spec=spec,
        names=Names(spec),
        deadline=datetime.now(UTC) + left,
        account=SimpleNamespace(client=lambda service: scheduler),
        guard=lambda: None,
    )


@pytest.mark.parametrize(("left", "bound"), [(timedelta(days=2), timedelta(hours=1)), (timedelta(minutes=9),) * 2])
def test_both_schedules_are_postponed_by_what_the_spec_lets_nodes_wait_and_keep_all_else(
    monkeypatch: pytest.MonkeyPatch, left: timedelta, bound: timedelta
) -> None:
    scheduler, now = Scheduler(), datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setattr(launch_budget, "datetime", SimpleNamespace(now=lambda zone: now))
    driver = context(scheduler, left)
    driver.deadline = now + left
    launch_budget.postpone(driver)
    names = [f"bivouac-example-{one}" for one in ("silence", "silence-notice", "launch", "launch-notice")]
    assert [one["Name"] for one in scheduler.asked] == names
    for one in scheduler.asked:
        moment = datetime.strptime(one["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=UTC)
        assert moment - now == bound and not set(one) & set(AROUND)
        # Those of a dead steward go on if it has armed them, and stay off if none has.
        assert one["State"] == ("ENABLED" if "launch" in one["Name"] else KEPT["State"])
        assert one["Target"] == KEPT["Target"] and one["FlexibleTimeWindow"] == KEPT["FlexibleTimeWindow"]


def test_once_training_runs_they_are_off_and_their_time_stays() -> None:
    scheduler = Scheduler()
    launch_budget.switch_off(context(scheduler, timedelta(days=2)))
    assert [(one["State"], one["ScheduleExpression"]) for one in scheduler.asked] == [
        ("DISABLED", KEPT["ScheduleExpression"])
    ] * 2


def test_an_older_campaign_has_none_and_a_refusal_is_not_taken_for_none() -> None:
    older = Scheduler("ResourceNotFoundException")
    launch_budget.postpone(context(older, timedelta(days=2)))
    assert not older.asked
    with pytest.raises(ClientError):
        launch_budget.postpone(context(Scheduler("AccessDeniedException"), timedelta(days=2)))
    with pytest.raises(EndpointConnectionError):  # as itself: whoever drives waits for the network
        launch_budget.postpone(context(Scheduler("unreachable"), timedelta(days=2)))


def test_borrowed_nodes_have_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_budget, "environment", lambda spec: SimpleNamespace(makes_cluster=False))
    scheduler = Scheduler("AccessDeniedException")
    launch_budget.postpone(context(scheduler, timedelta(days=2)))
    assert scheduler.asked == []


def test_reserved_nodes_bill_until_the_deadline_in_any_case_and_are_not_ended_before() -> None:
    scheduler = Scheduler()
    reserved = {
        "instance_type": "p5.48xlarge",
        "count": 2,
        "capacity": "reservation",
        "reservation_id": "cr-0123456789abcdef0",
    }
    launch_budget.postpone(context(scheduler, timedelta(days=2), **reserved))
    assert not [one for one in scheduler.asked if "launch" in one["Name"]]
    assert len(scheduler.asked) == 2, "an earlier steward's, which would end them"


MINUTE = timedelta(minutes=1)
"""Scheduler's precision."""
UNTIL_TRAINING = launch_wait(FIRST_CONTACT)
BOUNDS = {moment: UNTIL_TRAINING if moment in BEFORE_A_STEWARD else LONGEST_SILENCE for moment in MOMENTS}
GONE = "It is gone between the first GPU node and the launch, and CodeBuild runs no closer"
MISHAPS = {moment: GONE if moment in BEFORE_A_STEWARD else "CodeBuild runs no build at all" for moment in MOMENTS}


@pytest.mark.parametrize("moment", MOMENTS)
def test_whoever_dies_for_good_awss_schedules_end_the_gpu_nodes_within_the_bound(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world = lived(monkeypatch, moment)
    died = world.time.wall()
    world.without_builds(world.deadline - died - MINUTE)
    assert world.at_zero is not None and world.gpu_nodes() == 0
    assert world.at_zero - died <= BOUNDS[moment] + MINUTE
    kind = "launch" if moment in BEFORE_A_STEWARD else "silence"
    ours = f"bivouac-{FIRST_CONTACT.campaign}-{kind}"
    assert world.fired == [ours, f"{ours}-notice"], "people hear of it, once, and the deadline has not struck"
    rate = Decimal(str(FIRST_PLAN.totals.usd_per_hour.value))
    paid = rate * Decimal(BOUNDS[moment].total_seconds()) / 3600
    assert paid - Decimal("0.01") < cost_on_page(MISHAPS[moment]) < paid + Decimal("0.01")


def test_nodes_of_a_steward_that_lives_are_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(monkeypatch, "the first attempt starts")
    world.without_builds(timedelta(minutes=TRAINING), world.steward)
    assert world.gpu_nodes() == NODES and not world.fired


@pytest.mark.parametrize("late", [timedelta(), timedelta(minutes=12)], ids=["at once", "before the next postponement"])
def test_a_steward_that_kubernetes_starts_again_in_time_keeps_its_nodes(
    monkeypatch: pytest.MonkeyPatch, late: timedelta
) -> None:
    world = lived(monkeypatch, "the first attempt starts")
    world.without_builds(late)
    world.without_builds(SILENT)
    world.restart()
    world.without_builds(LONGEST_SILENCE - 2 * MINUTE)
    assert world.gpu_nodes() == NODES and not world.fired


def test_after_the_archive_nothing_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(monkeypatch, MOMENTS[-1])
    world.size(world.names.gpu_group, 0)
    world.silence.switch_off()
    world.without_builds(LONGEST_SILENCE + 5 * MINUTE)
    assert not world.fired, "nobody is told of a silence that is none"


def test_the_schedules_of_a_dead_steward_do_not_strike_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver gives the nodes back after 20 minutes; `bivouac run` asks for them again a little later."""
    world = lived(monkeypatch, "training is nearly over")
    world.without_builds(SILENT + MINUTE)
    world.size(world.names.gpu_group, 0)
    world.without_builds(10 * MINUTE)
    launch_budget.postpone(world.context())
    world.size(world.names.gpu_group, NODES)
    world.without_builds(min(UNTIL_TRAINING, world.deadline - world.time.wall()) - 2 * MINUTE)
    assert world.gpu_nodes() == NODES and not world.fired


@pytest.mark.parametrize("moment", ["all are fit", "training is nearly over"])
def test_who_comes_back_days_later_records_when_the_nodes_went_and_pays_no_more(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world = lived(monkeypatch, moment)
    died, before = world.time.wall(), world.spent()
    world.without_builds(timedelta(hours=60))
    assert world.at_zero is not None
    at_zero, context = world.at_zero, world.context()
    for _ in range(2):
        launch_budget.note_fired(context)
    (event,) = [event for event in world.store.events() if event.kind == "nodes.at-zero"]
    assert isinstance(event.payload, NodesAtZero) and event.payload.since is not None
    assert at_zero - MINUTE <= event.payload.since <= at_zero, event.payload.sentence()
    idle, rate = (float(getattr(FIRST_PLAN.totals, f"usd_per_hour{one}").value) for one in ("_idle", ""))
    hours = (event.payload.since - died) / timedelta(hours=1)
    paid = float(before) + hours * rate + (60 - hours) * idle
    assert float(world.spent()) == pytest.approx(paid, abs=0.5), "60 hours of nodes are 242 USD"
    state = world.store.state()
    assert not state.gpu_nodes_up and "preflight" not in state.finished_stages, "`bivouac run` proves new nodes"


def test_nodes_that_are_up_or_that_somebody_else_ended_are_not_recorded_as_a_schedules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lived(monkeypatch, "training is nearly over")
    launch_budget.note_fired(world.context())
    world.size(world.names.gpu_group, 0)
    launch_budget.note_fired(world.context())
    assert not [event for event in world.store.events() if event.kind == "nodes.at-zero"]
    del world.sizes[world.names.gpu_group]
    launch_budget.note_fired(world.context())
    assert not [event for event in world.store.events() if event.kind == "nodes.at-zero"], "the group is torn down"


def test_a_launch_that_follows_a_dead_steward_and_dies_too_ends_by_its_own_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lived(monkeypatch, "the first attempt starts")
    launch_budget.postpone(world.context())
    died = world.time.wall()
    world.without_builds(world.deadline - died - MINUTE)
    assert world.at_zero is not None and world.at_zero - died <= UNTIL_TRAINING + MINUTE


def test_nodes_that_are_up_again_after_a_schedule_has_fired_bill_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(monkeypatch, "training is nearly over")
    world.without_builds(timedelta(hours=60))
    assert world.at_zero is not None
    world.size(world.names.gpu_group, NODES)
    launch_budget.note_fired(world.context())
    assert not [event for event in world.store.events() if event.kind == "nodes.at-zero"]


@pytest.mark.parametrize("call", ["describe_nodegroup", "get_schedule"])
def test_what_aws_refuses_to_say_of_nodes_and_schedules_is_raised(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    world = lived(monkeypatch, "training is nearly over")
    world.without_builds(timedelta(hours=60))

    def refuse(**_: Any) -> Any:
        raise refusal("AccessDeniedException", 403)

    place = world if call == "describe_nodegroup" else world.scheduler
    monkeypatch.setattr(place, call, refuse)
    with pytest.raises(ClientError, match="AccessDenied"):
        launch_budget.note_fired(world.context())


def test_a_campaign_that_lacks_a_schedule_hears_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(monkeypatch, "training is nearly over")
    world.without_builds(timedelta(hours=60))
    name, _ = world.names.silence_schedules
    assert fired_at(world.scheduler, name, world.time.wall()) is not None
    look = world.scheduler.get_schedule

    def get_schedule(Name: str) -> dict[str, Any]:
        if Name == name:
            raise refusal("ResourceNotFoundException", 404)
        return look(Name)

    monkeypatch.setattr(world.scheduler, "get_schedule", get_schedule)
    assert fired_at(world.scheduler, name, world.time.wall()) is None
    launch_budget.note_fired(world.context())
    (event,) = [event for event in world.store.events() if event.kind == "nodes.at-zero"]
    assert isinstance(event.payload, NodesAtZero) and event.payload.since is not None

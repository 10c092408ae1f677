"""The launch budget is postponed by each step, never beyond the deadline, and off once training runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.campaign import launch_budget
from infra.errors import LeaseLost
from infra.spec.names import Names
from tests.example import example_spec

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
    assert [one["Name"] for one in scheduler.asked] == ["bivouac-example-launch", "bivouac-example-launch-notice"]
    for one in scheduler.asked:
        moment = datetime.strptime(one["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=UTC)
        assert moment - now == bound
        assert one["State"] == "ENABLED" and not set(one) & set(AROUND)
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


def test_reserved_nodes_bill_until_the_deadline_in_any_case_and_are_not_ended_before() -> None:
    scheduler = Scheduler()
    reserved = {
        "instance_type": "p5.48xlarge",
        "count": 2,
        "capacity": "reservation",
        "reservation_id": "cr-0123456789abcdef0",
    }
    launch_budget.postpone(context(scheduler, timedelta(days=2), **reserved))
    assert not scheduler.asked

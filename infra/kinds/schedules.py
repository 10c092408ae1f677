"""Schedules and rules, which start other resources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import there
from infra.kinds.kind import Inputs, ResourceKind, Step
from infra.kinds.listed import arn_of, call, code_of, listed
from infra.kinds.thing import Thing, thing


def _schedules(account: Account) -> Iterator[Thing]:
    """Yield schedules with their role, which the listing lacks; schedules have no tags."""
    client = account.client("scheduler")
    for item in every(client, "list_schedules", "Schedules"):
        try:
            whole = client.get_schedule(Name=item["Name"], GroupName=item.get("GroupName", "default"))
            yield thing({**item, **whole}, item["Name"], item["Name"], {})
        except ClientError as error:
            if not says_missing(error):
                yield replace(thing(item, item["Name"], item["Name"], {}), unread=code_of(error))


def _schedule(account: Account, given: Inputs) -> list[str]:
    """Find a schedule, in the default group unless the program names another."""
    find = there("scheduler", "get_schedule", "{groupName}/{name}", GroupName="groupName", Name="name")
    return find(account, {"groupName": "default", **given})


def _remove_rule(account: Account, one: Thing) -> None:
    events = account.client("events")
    targets = [target["Id"] for target in every(events, "list_targets_by_rule", "Targets", Rule=one.id)]
    if targets:
        events.remove_targets(Rule=one.id, Ids=targets)
    events.delete_rule(Name=one.id)


KINDS = (
    ResourceKind(
        "schedule", "scheduler", arn_of("scheduler", ""), list=_schedules,
        step=Step.STARTERS, remove=call("scheduler", "delete_schedule", "Name"),
        type="aws:scheduler/schedule:Schedule", find=_schedule,
    ),
    listed(
        "rule", Step.STARTERS, "events", "list_rules", "Rules", *["Name"] * 2, arn="rule/", remove=_remove_rule,
    ),
)  # fmt: skip

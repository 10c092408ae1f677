"""Schedules and rules, which start other resources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import by_call
from infra.kinds.kind import Inputs, ResourceKind, Step
from infra.kinds.listed import arn_of, code_of, listed_kind
from infra.kinds.thing import Thing, thing

_DEFAULT = "default"
"""The group of schedules that name none."""


def _schedules(account: Account) -> Iterator[Thing]:
    """Yield schedules with their role, which the listing lacks; schedules have no tags."""
    client = account.client("scheduler")
    for item in every(client, "list_schedules", "Schedules"):
        name, group = item["Name"], item.get("GroupName", _DEFAULT)
        id = name if group == _DEFAULT else f"{group}/{name}"
        try:
            yield thing({**item, **client.get_schedule(Name=name, GroupName=group)}, id, name, {})
        except ClientError as error:
            if not says_missing(error):
                yield replace(thing(item, id, name, {}), unread=code_of(error))


def _remove_schedule(account: Account, thing: Thing) -> None:
    """Delete a schedule from its group: names are unique within a group only."""
    group, _, name = thing.id.rpartition("/")
    account.client("scheduler").delete_schedule(Name=name, GroupName=group or _DEFAULT)


def _schedule(account: Account, inputs: Inputs) -> list[str]:
    """Find a schedule, in the default group unless the program names another."""
    find = by_call("scheduler", "get_schedule", "{groupName}/{name}", GroupName="groupName", Name="name")
    return find(account, {"groupName": _DEFAULT, **inputs})


def _remove_rule(account: Account, thing: Thing) -> None:
    events = account.client("events")
    targets = [target["Id"] for target in every(events, "list_targets_by_rule", "Targets", Rule=thing.id)]
    if targets:
        events.remove_targets(Rule=thing.id, Ids=targets)
    events.delete_rule(Name=thing.id)


KINDS = (
    ResourceKind(
        "schedule", "scheduler", arn_of("scheduler", ""), list=_schedules,
        step=Step.STARTERS, remove=_remove_schedule,
        type="aws:scheduler/schedule:Schedule", find=_schedule,
    ),
    listed_kind(
        "rule", Step.STARTERS, "events", "list_rules", "Rules", *["Name"] * 2, arn="rule/", remove=_remove_rule,
    ),
)  # fmt: skip

"""EventBridge Scheduler's schedules that our processes postpone and switch off."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import says_missing

_ANSWER_ONLY = ("Arn", "CreationDate", "LastModificationDate", "ResponseMetadata")
"""Of GetSchedule's answer: UpdateSchedule takes all the rest, and sets to its default what is left out."""


_AT = re.compile(r"at\((\S+)\)")


def at_expression(moment: datetime) -> str:
    """Return the expression of a schedule that fires once, by its timezone UTC."""
    return f"at({moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S})"


def fires_at(client: Any, name: str) -> datetime | None:
    """Return when a schedule fires once, or has fired; None if it is off, or if there is none of this name.

    Raises what AWS answers.
    """
    try:
        schedule = client.get_schedule(Name=name)
    except ClientError as error:
        if says_missing(error):
            return None
        raise
    moment = _AT.fullmatch(schedule["ScheduleExpression"])
    if schedule["State"] != "ENABLED" or moment is None:
        return None
    return datetime.fromisoformat(moment[1]).replace(tzinfo=UTC)


def change_schedule(client: Any, name: str, changes: dict[str, str], guard: Callable[[], None]) -> bool:
    """Change fields of a schedule and keep all others; return False if there is none of this name.

    `guard` raises if we may change nothing any more. Raises what AWS answers.
    """
    try:
        schedule = client.get_schedule(Name=name)
    except ClientError as error:
        if says_missing(error):
            return False
        raise
    guard()
    client.update_schedule(**{key: schedule[key] for key in schedule if key not in _ANSWER_ONLY} | changes)
    return True

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
Schedule = dict[str, Any]
"""Answer of GetSchedule."""


def at_expression(moment: datetime) -> str:
    """Return the expression of a schedule that fires once, by its timezone UTC."""
    return f"at({moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S})"


def fired_at(client: Any, name: str, now: datetime) -> datetime | None:
    """Return when a schedule has fired; None if it has not, or if there is none of this name. Raises what AWS
    answers."""
    schedule = _schedule(client, name)
    return None if schedule is None else firing_before(schedule, now)


def firing_before(schedule: Schedule, now: datetime) -> datetime | None:
    """Return when a schedule, as AWS describes it, has fired by `now`; None if it is off or still to come."""
    moment = _AT.fullmatch(schedule["ScheduleExpression"])
    if schedule["State"] != "ENABLED" or moment is None:
        return None
    time = datetime.fromisoformat(moment[1]).replace(tzinfo=UTC)
    return time if time <= now else None


def change_schedule(client: Any, name: str, changes: dict[str, str], guard: Callable[[Schedule], None]) -> bool:
    """Change fields of a schedule and keep all others; return False if there is none of this name.

    `guard` gets it as it is, which no answer of AWS's shows later, and raises if we may change nothing any more. Raises
    what AWS answers.
    """
    schedule = _schedule(client, name)
    if schedule is None:
        return False
    guard(schedule)
    client.update_schedule(**{key: schedule[key] for key in schedule if key not in _ANSWER_ONLY} | changes)
    return True


def _schedule(client: Any, name: str) -> Schedule | None:
    try:
        return dict(client.get_schedule(Name=name))
    except ClientError as error:
        if says_missing(error):
            return None
        raise

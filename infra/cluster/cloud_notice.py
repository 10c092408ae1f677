"""What EC2 announces for an instance before it happens, from its answer to DescribeInstanceStatus. Pure.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html names the codes, and the words with
which the description of an event begins that is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime

from trainer.contract.frozen import Frozen

_OVER = ("[completed]", "[canceled]")


class CloudNotice(Frozen, extra="ignore"):
    """One announcement of the cloud: the instance stops, reboots or goes at `due`."""

    code: str
    """EC2's word, such as `instance-retirement`."""
    due: AwareDatetime

    def __str__(self) -> str:
        return f"{self.code} at {self.due.isoformat(timespec='seconds')}"


def scheduled(status: Mapping[str, Any]) -> CloudNotice | None:
    """Return the earliest scheduled event of an item of InstanceStatuses that is neither completed nor cancelled; None
    without one. An event without a date is left out: nothing can be planned by it."""
    notices = [
        CloudNotice(code=str(event["Code"]), due=event["NotBefore"])
        for event in status.get("Events") or ()
        if isinstance(event.get("NotBefore"), datetime)
        and event.get("Code")
        and not str(event.get("Description", "")).lower().startswith(_OVER)
    ]
    return min(notices, key=lambda notice: notice.due, default=None)

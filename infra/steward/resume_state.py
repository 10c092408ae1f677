"""The state that a new steward reads from the record: history and the attempt in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.record.events import CampaignState
from infra.steward.decide import Attempt, FailureClass, History


def history(state: CampaignState) -> History:
    """Return the attempts that failed since the last relaunch by a person, and all repairs."""
    ended = tuple(failed(a) for a in state.attempts if a.get("failure") and a["attempt"] > state.judged)
    return History(attempts=ended, repairs=state.repairs)


def failed(told: Mapping[str, Any]) -> Attempt:
    """Return an attempt that failed from what the events of its launch and its end tell."""
    return Attempt(
        number=told["attempt"],
        failure=FailureClass(told["failure"]),
        ended_at=told["ended_at"],
        committed_at_launch=told.get("committed_step", -1),
        committed_at_end=told.get("committed_at_end", told.get("committed_step", -1)),
        dead_nodes=tuple(told.get("dead_nodes", ())),
        first_failed=told.get("first_failed"),
        instances=told.get("instances", {}),
    )


def in_flight(state: CampaignState) -> tuple[int, bool]:
    """Return (newest attempt, whether it is in flight)."""
    newest = state.attempts[-1] if state.attempts else None
    return (newest["attempt"], "ended_at" not in newest) if newest else (0, False)


def done(state: CampaignState) -> str | None:
    """Return how the newest attempt ended well, whose steward may have ended before it recorded more; None: it did
    not."""
    newest = state.attempts[-1] if state.attempts else {}
    return str(newest.get("detail")) if "ended_at" in newest and newest.get("failure") is None else None

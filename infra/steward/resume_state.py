"""The state that a new steward reads from the record: history and the attempt in flight."""

from __future__ import annotations

from collections.abc import Sequence

from infra.record.events import CampaignState, Event
from infra.record.payloads.attempts import AttemptLaunched, AttemptRecord
from infra.record.payloads.stages import Decision
from infra.steward.decide import Attempt, FailureClass, History


def history(state: CampaignState) -> History:
    """Return the attempts that failed since the last relaunch by a person, and all repairs."""
    failures = tuple(to_attempt(record) for record in state.attempts if record.failure and record.number > state.judged)
    return History(attempts=failures, repairs=state.repairs, reboots=state.reboots)


def to_attempt(record: AttemptRecord) -> Attempt:
    """Return an attempt that failed, as the decision takes it."""
    assert record.ended is not None and record.ended_at is not None, "it has failed"
    return Attempt(
        number=record.number,
        failure=FailureClass(str(record.failure)),
        ended_at=record.ended_at,
        committed_at_launch=record.launched.committed_step,
        committed_at_end=record.committed,
        dead_nodes=record.ended.dead_nodes,
        sick_nodes=record.ended.sick_nodes,
        first_failed=record.ended.first_failed,
        instances=record.ended.instances,
        nodes=record.launched.nodes,
        grows_to=record.ended.grows_to,
    )


def in_flight(state: CampaignState) -> tuple[int, bool]:
    """Return (newest attempt, whether it is in flight)."""
    newest = state.attempts[-1] if state.attempts else None
    return (newest.number, newest.ended is None) if newest is not None else (0, False)


def growth_under_way(events: Sequence[Event]) -> tuple[str, int]:
    """Return why the attempt in flight was about to end for a larger gang, and the number of nodes of that; ("", 0) if
    it was not. Its steward may have ended before the commit."""
    for event in reversed(events):
        match event.payload:
            case AttemptLaunched():
                break
            case Decision(action="end-attempt", why=why, grows_to=size):
                return (why or "", size) if size else ("", 0)
    return "", 0


def success_of(state: CampaignState) -> str | None:
    """Return how the newest attempt ended well, whose steward may have ended before it recorded more; None: it did
    not."""
    last_end = state.attempts[-1].ended if state.attempts else None
    return str(last_end.detail) if last_end is not None and last_end.failure is None else None

"""The state that a new steward reads from the record: history and the attempt in flight."""

from __future__ import annotations

from infra.record.events import CampaignState
from infra.record.payloads.attempts import AttemptRecord
from infra.steward.decide import Attempt, FailureClass, History


def history(state: CampaignState) -> History:
    """Return the attempts that failed since the last relaunch by a person, and all repairs."""
    ended = tuple(failed(known) for known in state.attempts if known.failure and known.number > state.judged)
    return History(attempts=ended, repairs=state.repairs)


def failed(known: AttemptRecord) -> Attempt:
    """Return an attempt that failed, as the decision takes it."""
    assert known.ended is not None and known.ended_at is not None, "it has failed"
    return Attempt(
        number=known.number,
        failure=FailureClass(str(known.failure)),
        ended_at=known.ended_at,
        committed_at_launch=known.launched.committed_step,
        committed_at_end=known.committed,
        dead_nodes=known.ended.dead_nodes,
        first_failed=known.ended.first_failed,
        instances=known.ended.instances,
    )


def in_flight(state: CampaignState) -> tuple[int, bool]:
    """Return (newest attempt, whether it is in flight)."""
    newest = state.attempts[-1] if state.attempts else None
    return (newest.number, newest.ended is None) if newest is not None else (0, False)


def done(state: CampaignState) -> str | None:
    """Return how the newest attempt ended well, whose steward may have ended before it recorded more; None: it did
    not."""
    ended = state.attempts[-1].ended if state.attempts else None
    return str(ended.detail) if ended is not None and ended.failure is None else None

"""When a checkpoint is due for S3, and when one must come back. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from infra.record.events import CampaignState


def is_due(state: CampaignState, committed: int, every: timedelta, now: datetime) -> bool:
    """Return whether the step `committed` is newer than the newest copy, and an interval has passed since the last try
    or, before the first, since training began. A failure is not tried again before the next interval."""
    begun = state.attempts[0].launched_at if state.attempts else None
    since = state.copy_tried_at or begun
    return since is not None and committed > state.copied and now - since >= every


def lacks(state: CampaignState, committed: int) -> str:
    """Return why an attempt would find no checkpoint although S3 has a copy; empty if it finds one, or S3 has none.

    `committed`: newest committed step on the shared tier, which can be seen; -1 for none.
    """
    if state.copied < 0:
        return ""
    if committed < 0:
        return "the shared tier holds no checkpoint"
    ended = state.attempts[-1].ended if state.attempts else None
    fetched_for = state.fetched.attempt if state.fetched is not None else 0
    if ended is not None and ended.nothing_sound and fetched_for <= ended.attempt:
        return "no checkpoint on the shared tier is sound"
    return ""

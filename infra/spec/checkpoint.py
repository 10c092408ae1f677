"""The spec's section `checkpoint`: what the ranks know of it, and the copies to S3, which only the steward knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from infra.spec.duration import Duration
from trainer.contract import CheckpointConfig

KEPT_COPIES = 3
"""Newest interval copies in S3 that stay: with one damaged there are still two."""
LONGEST_INTERVAL, SHORTEST_INTERVAL = timedelta(hours=1), timedelta(minutes=5)
"""Bounds of the derived interval: a copy takes minutes itself, so a short campaign makes fewer than ten."""
FEWEST_COPIES = 10
_ARCHIVE_EVERY = "archive_every"


class Checkpoint(CheckpointConfig):
    archive_every: Duration | None = None
    """Interval of the copies of committed checkpoints to S3 while training runs. The loss of the file system then costs
    one interval. None: hourly, more often if that gives fewer than ten copies, at most every five minutes. A section
    with this field alone leaves the cadence of the saves to plan."""

    @property
    def of_ranks(self) -> CheckpointConfig | None:
        """The ranks' configuration; None if the section says nothing about their saves."""
        if self._says_nothing_else:
            return None
        return CheckpointConfig.model_validate(self.model_dump(exclude={_ARCHIVE_EVERY}))

    @property
    def _says_nothing_else(self) -> bool:
        return self.model_fields_set == {_ARCHIVE_EVERY}

    @model_serializer(mode="wrap")
    def _as_it_was_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep the defaults of the saves out of a stored spec that says nothing about them: `of_ranks` must be equal
        for its reader."""
        values: dict[str, Any] = handler(self)
        return {_ARCHIVE_EVERY: values[_ARCHIVE_EVERY]} if self._says_nothing_else else values


def archive_interval(checkpoint: Checkpoint | None, training: timedelta) -> timedelta:
    """Return the interval between copies to S3: the spec's, or the derived one for so long a training."""
    if checkpoint is not None and checkpoint.archive_every is not None:
        return checkpoint.archive_every
    return max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, training / FEWEST_COPIES))

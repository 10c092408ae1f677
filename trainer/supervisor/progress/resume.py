"""Does a resumed job go on from where it was offered? What was known of its steps and losses, kept beside them.

A resumed job begins elsewhere if the first step that it tells lies below the offered one by the steps between two of
its lines, at least 2, and the second one not beyond it. An offered step that lines alone have told may be a few steps
too large for a job of quick steps: it counts as the smallest that it may be. A loss has jumped if, at one step, it
differs from the earlier one by more than ten times the median difference between neighbouring losses (the last 200),
and by more than 1 % of itself.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from trainer.supervisor import seal
from trainer.supervisor.progress.steps import Laps, Steps

NAME = "progress.json"
"""Below the campaign's folder on the shared tier."""
_KEPT, _SEALED = 1000, 16
"""Losses and sealed steps that are kept."""
_OFTEN_S = 10.0
_NEIGHBOURS, _FEWEST, _TIMES, _SHARE = 200, 8, 10.0, 0.01


class Memory:
    def __init__(self, tier: Path, config: str) -> None:
        """`config`: digest of the configuration; with another one losses are not to be compared."""
        self._file, self._config = tier / NAME, config
        self._before: dict[int, float] = {}
        """Losses of earlier starts by their steps."""
        self._now: dict[int, float] = {}
        self._sealed: dict[int, Laps] = {}
        self._doubts: dict[int, int] = {}
        """Sealed step -> by how much it may be too large, where that is not 0."""
        self._interval = 1
        self._scale: float | None = None
        """Median difference between neighbouring losses; None where too few are known."""
        self._offered = 0
        self._first: list[int] = []
        self._written, self._changed = 0.0, False
        self._events = {"resumed_elsewhere", "loss_jumped"}
        """Those that are still to be told in this attempt."""

    def begin(self, resume_step: int) -> Laps | None:
        """Take up what is known, for a job that resumes from `resume_step`, -1 from none. Return how its numbers
        became steps then."""
        if not self._now and not self._before:
            self._read()
        self._before.update(self._now)
        self._now.clear()
        self._offered, self._first = resume_step, []
        known_losses = [self._before[step] for step in sorted(self._before)][-_NEIGHBOURS - 1 :]
        apart = sorted(abs(loss - previous_loss) for previous_loss, loss in zip(known_losses, known_losses[1:]))
        self._scale = apart[len(apart) // 2] if len(apart) >= _FEWEST else None
        return self._sealed.get(resume_step)

    def hear_step(self, step: int, steps: Steps) -> dict[str, Any]:
        """Take a step as it is told; return the fields of an event if it is not what was offered."""
        self._interval, self._changed = max(self._interval, steps.interval), True
        if len(self._first) < 2:
            self._first.append(step)
            first_step, second = self._first[0], self._first[-1]
            least = self._offered - self._doubts.get(self._offered, 0)
            is_elsewhere = second <= least and first_step <= least - max(2, self._interval)
            if len(self._first) == 2 and is_elsewhere and not self._counts_batches(steps):
                return self._event("resumed_elsewhere", offered=self._offered, first=first_step)
        return {}

    def hear_loss(self, step: int, loss: float) -> dict[str, Any]:
        """Take the loss of a step; return the fields of an event if it has jumped."""
        self._now[step] = loss
        earlier_loss = self._before.get(step)
        if earlier_loss is None or self._scale is None:
            return {}
        if abs(loss - earlier_loss) > max(_TIMES * self._scale, _SHARE * max(abs(earlier_loss), abs(loss))):
            return self._event("loss_jumped", step=step, before=earlier_loss, now=loss)
        return {}

    def note_sealed(self, step: int, laps: Laps, doubt: int) -> None:
        """Note a sealed step, how the job's numbers became steps then, and by how much it may be too large."""
        self._sealed[step], self._changed = laps, True
        self._doubts[step] = doubt
        self._written = 0.0  # the next attempt may come from it
        for old in sorted(self._sealed)[:-_SEALED]:
            del self._sealed[old]
        self._doubts = {step: doubt for step, doubt in self._doubts.items() if doubt and step in self._sealed}

    def write(self, is_last: bool = False) -> None:
        """Keep what is known for the next attempt, now and then."""
        if not self._changed or (not is_last and time.monotonic() - self._written < _OFTEN_S):
            return
        self._written, self._changed = time.monotonic(), False
        losses = sorted({**self._before, **dict(self._now)}.items())[-_KEPT:]
        content = {
            "format": 1, "config": self._config, "interval": self._interval, "losses": losses,
            "sealed": {str(step): laps for step, laps in self._sealed.items()}, "doubts": self._doubts,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full tier
            seal.publish(self._file, json.dumps(content).encode())

    def _counts_batches(self, steps: Steps) -> bool:
        """Return whether the numbers are, or may be, batches within an epoch, which begin again by themselves."""
        laps = self._sealed.get(self._offered)
        return steps.has_laps if laps is None else laps.length > 0

    def _event(self, event: str, **fields: Any) -> dict[str, Any]:
        if event not in self._events:
            return {}
        self._events.discard(event)
        return {"event": event, **fields}

    def _read(self) -> None:
        try:
            content = json.loads(self._file.read_bytes())
            if content["config"] == self._config:
                self._before = {int(step): float(loss) for step, loss in content["losses"]}
            self._interval = int(content["interval"])
            self._sealed = {int(step): Laps(*map(int, laps)) for step, laps in content["sealed"].items()}
            self._doubts = {int(step): int(doubt) for step, doubt in content.get("doubts", {}).items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # nothing is known: no step and no loss is held against it

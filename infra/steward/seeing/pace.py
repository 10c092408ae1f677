"""The measured time of a step. It replaces the spec's estimate, of a built-in training and of any job."""

from __future__ import annotations

from datetime import datetime, timedelta

from infra.cluster.steward_config import StewardConfig
from infra.steward.seeing.views import Observation

MEASURED_STEPS = 10
"""Steps after the first one that was seen, whose mean replaces the estimate: the first compiles kernels."""


class Pace:
    def __init__(self) -> None:
        self._first: tuple[int, int, datetime] | None = None
        """(attempt, step, time) of the first step that was seen of the attempt."""
        self._last_step = 0
        self.mean_s: float | None = None
        """Mean seconds of a step of the attempt; None before two of them were seen."""
        self.measured_s: float | None = None
        """The same over `MEASURED_STEPS` or more, of the newest attempt that had so many."""

    def note(self, view: Observation, step: int) -> None:
        """Take the step that an observation shows."""
        self.mean_s = None
        if self._first is None or self._first[0] != view.attempt or step < self._first[1]:
            self._first = (view.attempt, step, view.now) if step > 0 else None
        if self._first is None or step == self._first[1]:
            return
        steps = step - self._first[1]
        self.mean_s = (view.now - self._first[2]).total_seconds() / steps
        if steps >= MEASURED_STEPS and step != self._last_step:  # a gang that hangs takes no longer steps
            self.measured_s = self.mean_s
        self._last_step = step


def interval_and_archive(config: StewardConfig, step_s: float) -> timedelta:
    """Return the time for one more interval of the plan's steps, `step_s` seconds each, and for the archive."""
    every_steps = config.train.checkpoint.every_steps if config.train else 0
    return timedelta(seconds=(config.workload.save_every if config.workload else every_steps) * step_s) + config.archive

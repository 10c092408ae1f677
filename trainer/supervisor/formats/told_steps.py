"""When a job told which step: what is written between two lines is of the step before it."""

from __future__ import annotations

import time
from collections import deque

_FAR, _FARTHEST, _SHORTEST_STEP_S = 10, 64, 1e-3
"""A number in a name is no step of the run beyond so many estimates, or so many times the step that the job has
reached: names may count micro batches."""
_LINES_LATE_S = 0.02
"""A line is read so much later than it was printed."""


def is_far(number: int, step: int) -> bool:
    """Return whether a number in a name is far beyond a step."""
    return number > max(1, _FAR * step)


class ToldSteps:
    """The steps of one attempt."""

    def __init__(self) -> None:
        self.heard: deque[tuple[float, int]] = deque(maxlen=10_000)
        """Time of each line, in seconds since 1970, and its step."""
        self._ends: set[int] = set()
        """The first and the last step of this attempt."""
        self._longest = 0
        """Steps between two told ones."""

    def note(self, step: int, heard_at: float | None = None) -> None:
        """Note that the job tells a step. `heard_at`: in seconds since 1970; None: now."""
        self.heard.append((time.time() if heard_at is None else heard_at, step))
        if step not in self._ends:
            self._longest = max(self._longest, step - max(self._ends, default=step))
            self._ends = {max([step, *self._ends]), min([step, *self._ends])}

    @property
    def are_several(self) -> bool:
        return len(self._ends) > 1

    @property
    def seconds_apart(self) -> float:
        """Return the mean time of the last steps, 0 before two have been told."""
        (first_at, first_step), (last_at, step) = (
            (self.heard[0], self.heard[-1]) if self.heard else ((0.0, 0), (0.0, 0))
        )
        return max(0.0, (last_at - first_at) / max(1, step - first_step))

    def follow(self, time_s: float) -> bool:
        """Return whether the job has told a step after something was written."""
        return bool(self.heard) and self.heard[-1][0] > time_s

    def before(self, time_s: float, default: int) -> int:
        """Return the step that the job had told last when something was written, `default` for none."""
        return self._last_until(time_s + _LINES_LATE_S, default)

    def doubtful_steps(self, time_s: float) -> int:
        """Return how many steps fewer than `before` says the job may have told when something was written: those of
        the lines that were read just after it."""
        step = self.before(time_s, 0)
        first_step = self.heard[0][1] if self.heard else 0
        return step - min(step, self._last_until(time_s, first_step))

    def _last_until(self, time_s: float, default: int) -> int:
        lines = tuple(self.heard)  # at once: another thread hears lines meanwhile
        return next((step for heard_at, step in reversed(lines) if heard_at <= time_s), default)

    def are_passed_by(self, step: int, planned_steps: int) -> bool:
        """Return whether a step is far beyond that which the job has reached by now, or before it tells any, beyond
        what it is estimated to take (0: nobody has said). Lines may be rare, so time counts, too."""
        if not self.are_several:
            return bool(planned_steps) and step > _FAR * planned_steps
        told_at, told_step = self.heard[-1]
        reached_step = told_step + (time.time() - told_at) / max(self.seconds_apart, _SHORTEST_STEP_S)
        return step > _FARTHEST * reached_step + _FAR * self._longest

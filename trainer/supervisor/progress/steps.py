"""The step of a training, out of all numbers that are told as steps.

The rule, in plain words:

1. The step never goes back. A number that is not larger than the last one of its series is read and changes nothing: a
   rank that is behind, a line that is printed twice.
2. Lines of one kind are a series: those that speak of an evaluation, and those that count to the same total (`3/10`).
   The first series leads, which is the step; words of evaluation give way to any other line. A total that is the
   estimate's steps leads for good. A total far beyond them does not lead. Another series takes the lead after ten rises
   while the leading one has reached its total; if that one comes back, it leads again and the other never more.
3. A number far beyond the last one (by more than ten, a twentieth of the estimate, and three times what the series has
   risen by lately) waits for a second, larger one that is near to it. So one line of a configuration is no step.
4. A series that falls back and climbs again is counted on, as batches of a next epoch: at once where the line, or a
   heading, names a later epoch; where its total was nearly reached; else after three climbing numbers that begin where
   the series once began. Where the old series then goes on, the other was none of the training, and that is remembered.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from trainer.supervisor.progress.lines import Line

_TAKES_OVER, _CLIMBS = 10, 3
"""Rises of another series until it leads; numbers of a climb that make a lap."""
_LEAST, _SHARE, _TIMES, _LATELY = 10, 20, 3, 16
_MOST = 64
"""Series of one job."""
_BEYOND = 1.2
"""A total so many times the estimate's steps counts something else."""


class Laps(NamedTuple):
    """How the numbers of a series become steps."""

    step: int
    base: int = 0
    """Steps of the laps that are over."""
    length: int = 0
    """Of the last lap; 0 before there was one."""


class Steps:
    """The step as it is told. `offered`: step that the job resumes from. `before`: what was known of its laps then."""

    def __init__(self, steps: int, offered: int = 0, before: Laps | None = None) -> None:
        self.step: int | None = None
        self._steps, self._offered, self._before = steps, offered, before
        self._near = max(_LEAST, steps // _SHARE)
        self._series: dict[tuple[bool, int | None], _Series] = {}
        self._leader: _Series | None = None

    def count(self, line: Line, certain: bool = False) -> int | None:
        """Return the step if this line has made it rise. `certain`: by the client, whose numbers are steps."""
        if line.step is None:
            return None
        key = (line.evaluation, line.total)
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= _MOST:
                return None
            last = max(self._offered, self.step or 0)
            series = self._series[key] = _Series(line.total, line.evaluation, self._near, last, self._before)
        if not series.count(line.step, line, certain) or not self._leads(series):
            return None
        step = series.offset + series.value
        if self.step is not None and step <= self.step:
            return None
        self.step = step
        return step

    def repeats(self, line: Line) -> bool:
        """Return whether a line is one more of the newest step."""
        series = self._series.get((line.evaluation, line.total))
        return series is not None and series is self._leader and series.top == line.step

    @property
    def interval(self) -> int:
        """Steps between two lines."""
        return 1 if self._leader is None else max(1, self._leader.interval)

    @property
    def laps(self) -> Laps:
        leader = self._leader
        return Laps(self.step or 0) if leader is None else Laps(self.step or 0, leader.base, leader.length)

    @property
    def has_laps(self) -> bool:
        """Return whether its numbers begin again by themselves, or may do so."""
        leader = self._leader
        if leader is None:
            return False
        return leader.length > 0 or leader.names_epochs or leader.total not in (None, self._steps)

    def settle(self) -> int | None:
        """Return the step at the end of a job that told a single number, far beyond the first step, as its step."""
        waiting = [one.waiting for one in self._series.values() if one.waiting and not one.evaluation]
        if self.step is None and waiting and waiting[-1] <= self._steps:
            self.step = waiting[-1]
        return self.step

    def _leads(self, series: _Series) -> bool:
        leader = self._leader
        if series is not leader:
            series.rises += 1
            if not self._takes_over(series, leader):
                return False
            if leader is not None:
                leader.barred = leader.evaluation or series.led or series.is_of(self._steps)
                ahead = (self.step or 0) - series.value
                series.offset = ahead + 1 if ahead > self._near and not series.led and not leader.evaluation else 0
        for other in self._series.values():
            other.rises = 0
        series.led, self._leader = True, series
        return True

    def _takes_over(self, series: _Series, leader: _Series | None) -> bool:
        if series.barred or (leader is not None and leader.is_of(self._steps)):
            return False
        if series.is_of(self._steps) or series.led:
            return True
        far = series.total is not None and series.total > _BEYOND * self._steps
        if leader is None or (leader.evaluation and not series.evaluation):
            return not far or series.rises >= _TAKES_OVER
        return leader.is_over and not far and not series.evaluation and series.rises >= _TAKES_OVER


class _Series:
    def __init__(self, total: int | None, evaluation: bool, near: int, offered: int, before: Laps | None) -> None:
        self.total, self.evaluation, self._near, self._offered = total, evaluation, near, offered
        self._before = before if before is not None and before.length and total in (None, before.length) else None
        self.value = self.offset = self.rises = 0
        self.led = self.barred = False
        self.top: int | None = None
        """Largest number of this lap."""
        self.base = self.length = 0
        self.waiting = 0
        """A number far beyond the last one, until a second one is near to it."""
        self._first = 0
        self._lately: deque[int] = deque(maxlen=_LATELY)
        self._climb: list[int] = []
        self._epoch: int | None = None
        self._headings = 0
        self._left: tuple[int, int] | None = None
        """Base and top of a lap that was left without a word of an epoch or a total."""
        self._single = False
        """Such a lap was none: the series went on."""

    @property
    def interval(self) -> int:
        return max(self._lately, default=0)

    @property
    def names_epochs(self) -> bool:
        return self._epoch is not None

    @property
    def is_over(self) -> bool:
        return self.total is not None and self.top is not None and self.top >= self.total - 1

    def is_of(self, steps: int) -> bool:
        return self.total == steps and not self.evaluation

    def count(self, number: int, line: Line, certain: bool) -> bool:
        """Return whether the series has risen by this number."""
        late = line.epoch is not None and self._epoch is not None and line.epoch < self._epoch
        if late:
            return False
        if self.top is not None and self._begins_lap(number, line):
            self._begin_lap(number)
        elif self.top is not None and number <= self.top:
            return False
        elif not certain and not self._is_near(number):
            self.waiting = number
            return False
        else:
            self._take(number)
        self._epoch, self._headings = line.epoch, line.headings
        self.waiting, self._climb = 0, []
        self.value = self.base + number
        return True

    def _is_near(self, number: int) -> bool:
        last, reach = self._offered if self.top is None else self.top, max(self._near, _TIMES * self.interval)
        if number - last <= reach:
            return True
        return 0 < self.waiting < number <= self.waiting + max(reach, self.waiting - last)

    def _take(self, number: int) -> None:
        """Go on to a larger number of the same lap."""
        if self.top is None:
            self._first = number
            if self.waiting:
                self._lately.append(number - self.waiting)
            if self._before is not None:
                step, base, length = self._before
                self.base, self.length = base + length * max(0, round((step + 1 - base - number) / length)), length
        elif self._left is not None and number > self._left[1] and number - self.top > 2 * max(1, self.interval):
            if number - self._left[1] <= 2 * max(1, self.interval):  # the old series goes on
                self.base, self._single = self._left[0], True
            self._left = None
        else:
            self._lately.append(number - (self.waiting or self.top))
        self.top = number

    def _begins_lap(self, number: int, line: Line) -> bool:
        assert self.top is not None
        if line.epoch is not None and self._epoch is not None:
            return line.epoch > self._epoch
        if number >= self.top and not self._climb:
            return False
        if line.headings > self._headings and number < self.top:
            return True
        if self._single or number > self.top:
            return False
        if self.total is not None and not (self.top >= self.total - max(1, self.interval) and 2 * number <= self.total):
            return False
        begins = number <= self._first + max(1, self.interval)
        if not self._climb:
            self._climb = [number] if begins else []
        elif number > self._climb[-1]:
            self._climb.append(number)
        elif number < self._climb[-1] and begins:
            self._climb = [number]
        return len(self._climb) >= (_CLIMBS if self.total is None else 2)

    def _begin_lap(self, number: int) -> None:
        assert self.top is not None
        first = self._climb[0] if self._climb else number
        self._left = (self.base, self.top) if self.total is None and len(self._climb) >= _CLIMBS else None
        self.length = self.total or self.top - first + max(1, self.interval)
        self.base += self.length
        self.top, self._first = number, first

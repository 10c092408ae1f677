"""The step of a training, out of all numbers that are told as steps.

The rule, in plain words:

1. The step never goes back. A number that is not larger than the last one of its series is read and changes nothing: a
   rank that is behind, a line that is printed twice.
2. Lines of one kind are a series: those that name their number alike, those with words of an evaluation or a
   preparation, and those that count to the same total (`3/10`). The first series leads: its number is the step. One
   whose total is the estimate's steps takes the lead; lines without such words take it from those with them. Others
   take it after ten rises while the leading series stands at its total, or still and is named otherwise, and count on
   from its step.
3. A number far beyond the last one (by more than ten, a tenth of the estimate, and three times what the series has
   risen by lately) waits for a second, larger one that is near to it. So a line of a configuration is no step.
4. A series that falls back and climbs again is counted on, as batches of the next epoch: at once where the line or a
   heading names a later epoch, else after three climbing numbers that begin where the series once began.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from trainer.supervisor.progress.lines import Line

_TAKES_OVER, _CLIMBS, _MOST = 10, 3, 64
"""Rises of another series until it leads; numbers of a climb that make a lap; series of one job."""
_LEAST, _SHARE, _TIMES, _LATELY = 10, 10, 3, 16
_BEYOND = 1.2
"""A total so many times the estimate's steps counts something else, as it seems."""
_UNKNOWN = 1
"""An estimate of so many steps is none: `bivouac init --try` knows no better."""
_NEVER, _WORDS, _FAR, _PLAIN, _EXACT = range(-1, 4)
"""Kinds of series, by their claim to be the training."""


class Laps(NamedTuple):
    """How the numbers of a series become steps."""

    step: int
    base: int = 0
    """Steps of the laps that are over."""
    length: int = 0
    """Of the last lap; 0 before there was one."""


class Steps:
    """The step as it is told. `resume_step`: the job resumes from it. `earlier_laps`: its laps, if known."""

    def __init__(self, steps: int, resume_step: int = 0, earlier_laps: Laps | None = None) -> None:
        self.step: int | None = None
        self._steps, self._offered, self._before = steps, resume_step, earlier_laps
        self._near = max(_LEAST, steps // _SHARE)
        self._series: dict[tuple[bool, int | None, str], _Series] = {}
        self._leader: _Series | None = None

    def count(self, line: Line, certain: bool = False) -> int | None:
        """Return the step if this line has made it rise. `certain`: by the client, whose numbers are steps."""
        if line.step is None:
            return None
        key = (line.evaluation, line.total, line.named)
        if key not in self._series and len(self._series) < _MOST:
            newest_step = max(self._offered, self.step or 0)
            self._series[key] = _Series(self._kind(line), line, self._near, newest_step, self._before)
        series = self._series.get(key)
        if series is None or not series.count(line.step, line, certain) or not self._leads(series):
            return None
        step = series.offset + series.value
        if self.step is not None and step <= self.step:
            return None
        self.step = step
        return step

    def repeats(self, line: Line) -> bool:
        """Return whether a line is one more of the newest step."""
        series = self._series.get((line.evaluation, line.total, line.named))
        return series is not None and series is self._leader and series.top == line.step

    @property
    def interval(self) -> int:
        """Steps between two lines."""
        return 1 if self._leader is None else self._leader.interval

    @property
    def laps(self) -> Laps:
        leader = self._leader
        return Laps(0) if leader is None else Laps(self.step or 0, leader.base, leader.length)

    @property
    def has_laps(self) -> bool:
        """Return whether its numbers begin again by themselves, or may do so."""
        leader = self._leader
        if leader is None:
            return False
        return leader.length > 0 or leader.epoch is not None or leader.total not in (None, self._steps)

    def settle(self) -> int | None:
        """Return the step at the end of a job that told a single number, far beyond the first step, as its step, or
        beyond the last one its total."""
        leader = self._leader
        if leader is not None and leader.waiting and leader.waiting == leader.total:  # a bar's last rewrite
            self.step = max(self.step or 0, leader.offset + leader.base + leader.waiting)
        waiting = [series.waiting for series in self._series.values() if series.kind >= _PLAIN and series.waiting]
        if self.step is None and waiting and waiting[-1] <= self._steps:
            self.step = waiting[-1]
        return self.step

    def _kind(self, line: Line) -> int:
        is_far = line.total is not None and self._steps > _UNKNOWN and line.total > _BEYOND * self._steps
        if line.evaluation:
            return _NEVER if is_far else _WORDS
        return _FAR if is_far else _EXACT if line.total == self._steps else _PLAIN

    def _leads(self, series: _Series) -> bool:
        leader = self._leader
        if series is not leader:
            series.rises += 1
            late, reach = series.rises >= _TAKES_OVER, self._near
            if leader is None:
                takes = late if series.kind == _FAR else series.kind != _NEVER
            elif series.kind >= _PLAIN and series.kind > leader.kind:
                takes = True
            else:
                rests = leader.is_over or series.named != leader.named
                takes, reach = late and rests and series.kind >= leader.kind, -1
            if not takes:
                return False
            ahead = (self.step or 0) - series.value
            series.offset = ahead + 1 if ahead > reach else 0  # it counts on
            self._leader = series
        for other_series in self._series.values():
            other_series.rises = 0
        return True


class _Series:
    def __init__(self, kind: int, line: Line, reach: int, resume_step: int, earlier_laps: Laps | None) -> None:
        self.kind, self.total, self.named, self._near, self._offered = kind, line.total, line.named, reach, resume_step
        self._before = (
            earlier_laps
            if earlier_laps is not None and earlier_laps.length and line.total in (None, earlier_laps.length)
            else None
        )
        self.value = self.offset = self.rises = 0
        self.top: int | None = None
        """Largest number of this lap."""
        self.base = self.length = 0
        self.waiting = 0
        """A number far beyond the last one, until a second one is near to it."""
        self.epoch: int | None = None
        self._first = self._headings = 0
        self._lately: deque[int] = deque(maxlen=_LATELY)
        self._climb: list[int] = []

    @property
    def interval(self) -> int:
        return max(self._lately, default=1)

    @property
    def is_over(self) -> bool:
        return self.total is not None and self.top is not None and self.top >= self.total - 1

    def count(self, number: int, line: Line, certain: bool) -> bool:
        """Return whether the series has risen by this number."""
        if line.epoch is not None and self.epoch == line.epoch + 1:
            return False  # a rank that is behind
        if self.top is None:
            self._first = number
        if self.top is not None and self._begins_lap(number, line, self.top):
            lap_start = self._climb[0] if self._climb else number
            self.length = self.total or self.top - lap_start + self.interval
            self.base += self.length
            self._first = lap_start
        elif self.top is not None and number <= self.top:
            return False
        elif not certain and not self._is_near(number):
            self.waiting = number
            return False
        elif self.top is None:
            self._go_on_from_before(number)
            self._lately.extend([number - self.waiting] if self.waiting else [])
        else:
            self._lately.append(number - (self.waiting or self.top))
        self.top, self.epoch, self._headings = number, line.epoch, line.headings
        self.waiting, self._climb = 0, []
        self.value = self.base + number
        return True

    def _is_near(self, number: int) -> bool:
        peak, reach = self._offered if self.top is None else self.top, max(self._near, _TIMES * self.interval)
        return number - peak <= reach or 0 < self.waiting < number <= self.waiting + max(reach, self.waiting - peak)

    def _go_on_from_before(self, number: int) -> None:
        if self._before is not None:
            step, base, self.length = self._before
            self.base = base + self.length * max(0, round((step + 1 - base - number) / self.length))

    def _begins_lap(self, number: int, line: Line, top: int) -> bool:
        if line.epoch is not None and self.epoch is not None:
            return line.epoch > self.epoch
        begins = number <= self._first + self.interval
        if begins and number < top and line.headings > self._headings:
            return True
        if begins and number < (self._climb or [top])[-1]:
            self._climb = [number]
        elif self._climb and self._climb[-1] < number <= top:
            self._climb.append(number)
        return len(self._climb) >= _CLIMBS

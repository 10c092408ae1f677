"""Rolling robust statistics. Plain floats and no clock: the same values give the same state, bit for bit."""

from __future__ import annotations

import bisect
from collections import deque
from itertools import pairwise
from typing import Any

_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution x this = its standard deviation."""


class Window:
    """The last values, with their median and the median absolute deviation from it."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._values: deque[float] = deque()
        self._sorted: list[float] = []
        self._deviation: float | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._deviation = None
        if len(self._values) == self._length:
            del self._sorted[bisect.bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        bisect.insort(self._sorted, value)

    def clear(self) -> None:
        self._values.clear()
        self._sorted.clear()
        self._deviation = None

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self._values)

    @property
    def median(self) -> float:
        return _median(self._sorted)

    @property
    def deviation(self) -> float:
        """Robust standard deviation."""
        if self._deviation is None:
            middle = self.median
            self._deviation = _TO_SIGMA * _median(sorted([abs(value - middle) for value in self._sorted]))
        return self._deviation

    @property
    def change(self) -> float:
        """Robust standard deviation of the change from one value to the next: a slow movement is no part of it."""
        return _TO_SIGMA * _median(sorted([abs(value - previous) for previous, value in pairwise(self._values)]))

    def state(self) -> list[float]:
        return list(self._values)

    def restore(self, state: Any) -> None:
        self.clear()
        for value in state[-self._length :]:
            self.add(float(value))


def _median(sorted_values: list[float]) -> float:
    half, odd = divmod(len(sorted_values), 2)
    return sorted_values[half] if odd else (sorted_values[half - 1] + sorted_values[half]) / 2

"""Rules that predict from a node's readings that it will fail: errors that memory corrects, heat, a `/dev/shm` that
fills, a rank that becomes slow. Pure.

No rule judges the local disk: a data set that is staged and the first checkpoints fill it by plan.

A rule needs `WINDOW` readings and judges nothing before. The thresholds are ours: no source states one. They are chosen
so that noise raises none: each rule has a test on 10,000 readings.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

EVERY_S = 30.0
"""Between two readings that are kept."""
WINDOW = 42
"""Readings that a rule looks at: 21 minutes, in three parts of fourteen."""
_PART = WINDOW // 3
_GPUS_EACH = 3
"""Readings of which one is taken for errors: an agent asks its GPUs every minute, and a query takes up to 20 s, so
between two that are 90 s apart the GPUs were read anew."""
_GROWING_SHARE, _LEAST_ERRORS = 0.5, 200
"""Share of those intervals in which the corrected errors rose, and the sum of their growth: a burst is no trend."""
_THROTTLED_SHARE = 0.5
_LITTLE_FREE, _FULL_WITHIN_S = 0.2, 900.0
_SLOWEST_SHARE, _LEAST_SLOWNESS, _LEAST_RISE = 0.8, 1.1, 0.05
_FULL = " is full in about "
_SIGMAS = 3.0
"""By how many standard deviations of single readings two parts differ: about six of their medians."""


class NodeReading(NamedTuple):
    """What is known of a node at one time; None: not known then."""

    at_s: float
    corrected: int | None = None
    """Memory errors that ECC has corrected on its GPUs since the driver was loaded."""
    is_throttled: bool | None = None
    """A GPU lowers its clocks for heat."""
    shm_free: float | None = None
    """Free share of the pod's `/dev/shm`, 0 to 1."""
    slowness: float | None = None
    """Forward time of the node's rank / the median of all ranks, where it is the gang's slowest."""


def is_of_room(decline: str) -> bool:
    """Return whether a decline is one of room, also of the local disk in an older record. A new pod has a new
    `/dev/shm`, so it stands for no longer than its gang, and speaks against no hardware."""
    return _FULL in decline


def decline_of(readings: Sequence[NodeReading]) -> str:
    """Return why a node is about to fail, by its newest readings, oldest first; empty if nothing tells."""
    newest = readings[-WINDOW:]
    if len(newest) < WINDOW:
        return ""
    return _errors(newest) or _heat(newest) or _room(newest) or _slowness(newest)


def _errors(readings: Sequence[NodeReading]) -> str:
    counts = [reading.corrected for reading in readings if reading.corrected is not None]
    if len(counts) < WINDOW:
        return ""
    steps = list(pairwise(counts[::_GPUS_EACH]))
    growth = [new - old for old, new in steps if new > old]  # a driver begins at 0
    if len(growth) < _GROWING_SHARE * len(steps) or sum(growth) < _LEAST_ERRORS:
        return ""
    return f"its GPUs correct ever more memory errors: {sum(growth)} within {_minutes(readings)}"


def _heat(readings: Sequence[NodeReading]) -> str:
    states = [reading.is_throttled for reading in readings if reading.is_throttled is not None]
    if len(states) < WINDOW or sum(states) < _THROTTLED_SHARE * WINDOW:
        return ""
    return f"heat lowers the clocks of a GPU: in {100 * sum(states) // WINDOW} % of the last {_minutes(readings)}"


def _room(readings: Sequence[NodeReading]) -> str:
    shares = [reading.shm_free for reading in readings if reading.shm_free is not None]
    if len(shares) < WINDOW or shares[-1] > _LITTLE_FREE or (fall := _rise([-share for share in shares])) <= 0:
        return ""
    middle_s = readings[-1 - _PART // 2].at_s - readings[_PART // 2].at_s
    left_s = shares[-1] * middle_s / fall
    if left_s >= _FULL_WITHIN_S:
        return ""
    return f"/dev/shm{_FULL}{left_s / 60:.0f} minutes: {100 * shares[-1]:.0f} % are free"


def _slowness(readings: Sequence[NodeReading]) -> str:
    slow = [reading.slowness for reading in readings if reading.slowness is not None]
    if len(slow) < _SLOWEST_SHARE * WINDOW:
        return ""
    newest_median, rise = statistics.median(slow[-(len(slow) // 3) :]), _rise(slow)
    if rise < _LEAST_RISE or newest_median < _LEAST_SLOWNESS:
        return ""
    return (
        f"a rank of it becomes slower: {newest_median:.2f} of the median's time, {newest_median - rise:.2f} at the "
        f"beginning of the last {_minutes(readings)}"
    )


def _rise(values: Sequence[float]) -> float:
    """Return by how much the last third's median is above the first's; 0 where the second is not between them, or where
    the difference is within the noise."""
    part = len(values) // 3
    parts = [values[start : start + part] for start in (0, part, len(values) - part)]
    low, middle, high = map(statistics.median, parts)
    noise = max(_deviation(parts[0]), _deviation(parts[-1]))
    return high - low if low < middle < high and high - low >= _SIGMAS * noise else 0.0


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation by the median absolute deviation, as of a normal distribution."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def _minutes(readings: Sequence[NodeReading]) -> str:
    return f"{(readings[-1].at_s - readings[0].at_s) / 60:.0f} minutes"

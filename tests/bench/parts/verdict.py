"""The verdict of a benchmark: the figure beside its limit, its peer and the spread of both.

A benchmark fails only where the medians differ by more than the runs do: on a loaded machine a figure beyond its limit
may be chance. Where the runs differ by more than half of the limit nothing is decided, in neither direction.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TOO_WIDE = 0.5
"""Spread, as a part of the limit, from which on a measurement decides nothing."""


@dataclass(frozen=True)
class Verdict:
    """One figure against its limit: `limit` times the peer's, or `limit` itself where there is no peer."""

    what: str
    ours: tuple[float, ...]
    limit: float
    peer_name: str = ""
    peer: tuple[float, ...] = ()
    at_least: bool = False
    """The limit is the least; else the most."""
    unit: str = "s"

    @property
    def excess(self) -> float:
        """How far the median is beyond the limit; negative: it keeps it."""
        difference = statistics.median(self.ours) - self._bound
        return -difference if self.at_least else difference

    @property
    def spread(self) -> float:
        """How far the difference between figure and limit may be chance: the spread of both."""
        return spread(self.ours) + (self.limit * spread(self.peer) if self.peer else 0.0)

    @property
    def outcome(self) -> Literal["kept", "missed", "undecided"]:
        if self.spread > TOO_WIDE * self._bound or 0 < self.excess <= self.spread:
            return "undecided"
        return "missed" if self.excess > 0 else "kept"

    @property
    def words(self) -> str:
        side = "at least" if self.at_least else "at most"
        text = f"{self.what}: {_several(self.ours, self.unit)}"
        if not self.peer:
            return f"{text}; limit {side} {self.limit:g} {self.unit}: {self.outcome}"
        ratio = statistics.median(self.ours) / statistics.median(self.peer)
        peer = f"{self.peer_name} {_several(self.peer, self.unit)}"
        return f"{text}; {peer}: {ratio:.3g} of it; limit {side} {self.limit:g}: {self.outcome}"

    @property
    def _bound(self) -> float:
        return self.limit * statistics.median(self.peer) if self.peer else self.limit


def spread(values: Sequence[float]) -> float:
    """Return half of the range in which the middle half of the values lies; of fewer than four, half of the range."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return (upper - lower) / 2


def judge(*verdicts: Verdict) -> int:
    """Print every verdict, with the machine's load; return 1 if one is missed, else 0."""
    for verdict in verdicts:
        print(verdict.words)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return int(any(verdict.outcome == "missed" for verdict in verdicts))


def _several(values: Sequence[float], unit: str) -> str:
    ends = f"{min(values):.3g} to {max(values):.3g}"
    return f"{statistics.median(values):.3g} {unit} ({ends}, {len(values)} runs, spread {spread(values):.2g})"

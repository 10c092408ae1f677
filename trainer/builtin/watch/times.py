"""Detectors of times: a slow decline of throughput, a slow rank. An attempt begins anew with them: it may have other
nodes. No alarm of theirs changes a result, since times differ between two runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from trainer.builtin.watch.detectors import Alarm
from trainer.builtin.watch.statistics import Window

RECENT = 50
DECLINE = 1.05
"""Median of the recent steps / the least median so far. Source: the rule of EROICA (5 % over the recent best)."""
SLOW = 1.15
"""A rank's time / the median over the ranks: a rank that is a fifth slower passes it at once, and one of 256 with 2 %
of noise never (`make bench-detection`). NVRx calls a score below 0.75 (1.33) a straggler; MegaScale lost 10 % to half a
percent of its hosts. Ranks of one kind of GPU differ by a few percent."""
_RANKS_WINDOW = 32
"""Steps over which the median of a rank's ratio is taken: one hiccup is no slow rank."""
_EVERY = 8
"""Steps between two looks at the ranks."""


class ThroughputDetector:
    name = "throughput"

    def __init__(self) -> None:
        self._recent, self._best, self._said = Window(RECENT), 0.0, False
        self._steps = 0

    def look(self, step: int, seconds: float) -> Alarm | None:
        """`seconds`: of the whole step without a save's stall."""
        self._recent.add(seconds)
        self._steps += 1
        if self._steps < RECENT or self._steps % 5:
            return None
        now = self._recent.median
        if not self._best or now < self._best:
            self._best = now
        bound = self._best * DECLINE
        if now <= bound:
            self._said = False
            return None
        if self._said:
            return None
        self._said = True
        text = f"a step takes {now:.3f} s, {self._best:.3f} s at its best"
        return Alarm(self.name, now, bound, max(0, step - RECENT // 2), text)


class Straggler:
    name = "straggler"

    def __init__(self) -> None:
        self._ratios: deque[list[float]] = deque(maxlen=_RANKS_WINDOW)
        self._said: set[int] = set()

    def look(self, step: int, forward_s: Sequence[float]) -> tuple[Alarm, int] | None:
        """`forward_s`: of each rank, without waits. Return the alarm and the rank."""
        ratios = relative(forward_s)
        if len(ratios) < 2:
            return None
        self._ratios.append(ratios)
        if len(self._ratios) < _RANKS_WINDOW or step % _EVERY:
            return None
        medians = np.median(np.asarray(self._ratios), axis=0)
        slow = {int(rank): float(medians[rank]) for rank in np.flatnonzero(medians > SLOW)}
        self._said &= set(slow)
        # More than a few at once share a cause, which is not theirs.
        if not slow or len(slow) > max(1, len(ratios) // 8) or set(slow) <= self._said:
            return None
        worst = max(set(slow) - self._said, key=slow.__getitem__)
        self._said.add(worst)
        ratio = slow[worst]
        text = f"rank {worst} needs {ratio:.2f} x the median rank's time for a forward pass"
        return Alarm(self.name, ratio, SLOW, max(0, step - _RANKS_WINDOW // 2), text), worst


def relative(seconds: Sequence[float]) -> list[float]:
    """Return each rank's time / the lower median over all ranks; of two ranks that is the faster one."""
    middle = sorted(seconds)[(len(seconds) - 1) // 2]
    return [rank_seconds / middle for rank_seconds in seconds] if middle > 0 else []

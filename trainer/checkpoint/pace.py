"""How often to save, re-evaluated while running: what a save was seen to cost, and how often the job was seen to fail.

Rank 0 decides from its own clock; the others follow what it says in the exchange of the same step.
"""

from __future__ import annotations

import collections
import statistics
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainer.checkpoint.fence import FENCE_NAME
from trainer.contract import TrainConfig
from trainer.contract.cadence import choose
from trainer.events import emit

_STEPS_REMEMBERED = 64
_SAVES_REMEMBERED = 8
_FEWEST_QUIET_STEPS = 3


@dataclass
class Pace:
    """Fed with every step and save; `every` is the number of steps between saves from now on."""

    every: int
    steps: int
    mtbf_s: float
    grace_s: float | None = None
    fixed: bool = False
    """The spec names the interval: what saving costs is measured and said, and nothing is changed."""
    _quiet: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=_STEPS_REMEMBERED))
    _costs: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=_SAVES_REMEMBERED))
    _stall_s: float = 0.0
    _busy: list[float] = field(default_factory=list)
    _saving: bool = False
    _said_grace: bool = False

    def stepped(self, seconds: float, writing: bool) -> None:
        """A step's duration, and whether a checkpoint was being written beside it."""
        (self._busy if writing else self._quiet).append(seconds)

    def saved(self, stall_s: float) -> None:
        self._stall_s, self._busy, self._saving = stall_s, [], True

    def dip_s(self) -> float:
        """Seconds that the steps beside the last save took longer than quiet ones, all together."""
        if len(self._quiet) < _FEWEST_QUIET_STEPS:
            return 0.0
        base = statistics.median(self._quiet)
        return max(0.0, sum(self._busy) - base * len(self._busy))

    def overhead(self) -> float:
        """Part of the time that saves cost at the present interval."""
        if not self._costs or not self._quiet:
            return 0.0
        cost = statistics.median(self._costs)
        return cost / (cost + self.every * statistics.median(self._quiet))

    def committed(self, write_s: float) -> int:
        """The last save is durable everywhere: choose again; returns `every`."""
        if not self._saving or len(self._quiet) < _FEWEST_QUIET_STEPS:
            return self.every
        self._saving = False
        self._costs.append(self._stall_s + self.dip_s())
        cost, step_s = statistics.median(self._costs), statistics.median(self._quiet)
        self._warn_of_grace(write_s)
        if self.fixed:
            return self.every
        best = choose(step_s=step_s, steps=self.steps, stall_s=cost, write_s=write_s, mtbf_s=self.mtbf_s)
        if best.every_steps != self.every:
            before, self.every = self.every, best.every_steps
            emit(
                "cadence",
                every_steps=self.every,
                before=before,
                why=best.bound,
                stall_s=round(self._stall_s, 4),
                dip_s=round(self.dip_s(), 4),
                cost_s=round(cost, 4),
                write_s=round(write_s, 3),
                step_s=round(step_s, 4),
                mtbf_s=round(self.mtbf_s),
                overhead=round(self.overhead(), 5),
            )
        return self.every

    def _warn_of_grace(self, write_s: float) -> None:
        emergency = self._stall_s + write_s
        if self.grace_s is not None and not self._said_grace:
            self._said_grace = True
            event = "grace_fits" if emergency <= self.grace_s else "grace_too_short"
            emit(event, emergency_save_s=round(emergency, 3), grace_s=self.grace_s)


def job_mtbf_s(config: TrainConfig, nodes: int, shared: Path) -> float:
    """Mean seconds between failures of the whole job: the estimate per node counts as one failure's worth of
    evidence, each attempt of this campaign as another, over the time since its first one."""
    prior = config.checkpoint.node_mtbf_hours * 3600 / max(1, nodes)
    try:
        claimed = sorted(path.stat().st_mtime for path in (shared / FENCE_NAME).iterdir())
    except OSError:
        claimed = []
    failures = max(0, len(claimed) - 1)
    seen_s = max(0.0, datetime.now().timestamp() - claimed[0]) if claimed else 0.0
    return (prior + seen_s) / (1 + failures)

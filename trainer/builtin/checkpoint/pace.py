"""The checkpoint interval, adjusted during training to the measured cost of saves and the observed failures.

Rank 0 decides by its clock; the others get its decision in the exchange of the same step.
"""

from __future__ import annotations

import collections
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from trainer.builtin.checkpoint.fence import Marks, losses
from trainer.contract import TrainConfig
from trainer.contract.cadence import TOO_DEAR, choose
from trainer.events import emit

_STEPS_REMEMBERED = 64
_SAVES_REMEMBERED = 8
_RESERVE = 1.25
"""Factor on the measured cost of saves: costs vary, and their sum must stay within the bound."""
_FEWEST_QUIET_STEPS = 3


@dataclass
class Pace:
    """Gets every step and save; `every` is the number of steps between saves from now on."""

    every: int
    steps: int
    mtbf_s: float
    grace_s: float | None = None
    fixed: bool = False
    """The spec sets the interval: the cost of saves is only measured and reported when it is too high."""
    _quiet: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=_STEPS_REMEMBERED))
    _costs: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=_SAVES_REMEMBERED))
    _stall_s: float = 0.0
    _busy: list[float] = field(default_factory=list)
    _saving: bool = False
    _fits: bool | None = None
    _dear: bool = False

    def add_step(self, seconds: float, writing: bool) -> None:
        """Add a step's duration; `writing`: a checkpoint was being written beside it."""
        (self._busy if writing else self._quiet).append(seconds)

    def begin_save(self, stall_s: float) -> None:
        """Note the begin of a save. If the last one has not ended, all steps since count as its writing."""
        if self._saving:
            self.finish_save(sum(self._busy))
        self._stall_s, self._busy, self._saving = stall_s, [], True

    def step_s(self) -> float:
        """Return the median of quiet steps; of all steps while too few are quiet, as when writing never pauses."""
        quiet = self._quiet if len(self._quiet) >= _FEWEST_QUIET_STEPS else [*self._quiet, *self._busy]
        return statistics.median(quiet) if quiet else 0.0

    def dip_s(self) -> float:
        """Return the extra seconds of all steps beside the last save, compared with quiet ones."""
        return max(0.0, sum(self._busy) - self.step_s() * len(self._busy))

    def _cost_s(self) -> float:
        """Return the mean cost of a save: the bound is on the sum, and a few expensive saves dominate it."""
        return statistics.fmean(self._costs)

    def overhead(self) -> float:
        """Return the share of the time that saves cost at the present interval."""
        if not self._costs:
            return 0.0
        cost = self._cost_s()
        return cost / (cost + self.every * self.step_s())

    def finish_save(self, write_s: float, shared_s: float = 0.0) -> int:
        """Choose again, after the last save is durable everywhere, and return `every`.

        `write_s`: seconds of writing to the local tier; `shared_s`: of the copy to the shared one.
        """
        step_s = self.step_s()
        if not self._saving or not step_s:
            return self.every
        self._saving = False
        self._costs.append(self._stall_s + self.dip_s())
        self._say_whether_it_fits(self._stall_s + write_s + shared_s)
        if not self.fixed:
            self._choose(self._cost_s() * _RESERVE, step_s, write_s)
        self._say_whether_it_is_dear()
        return self.every

    def _choose(self, cost: float, step_s: float, write_s: float) -> None:
        best = choose(step_s=step_s, steps=self.steps, stall_s=cost, write_s=write_s, mtbf_s=self.mtbf_s)
        if best.every_steps == self.every:
            return
        previous, self.every = self.every, best.every_steps
        emit(
            "cadence",
            every_steps=self.every,
            before=previous,
            why=best.bound,
            stall_s=round(self._stall_s, 4),
            dip_s=round(self.dip_s(), 4),
            cost_s=round(cost, 4),
            write_s=round(write_s, 3),
            step_s=round(step_s, 4),
            mtbf_s=round(self.mtbf_s),
            overhead=round(self.overhead(), 5),
        )

    def _say_whether_it_fits(self, emergency_s: float) -> None:
        """Report whether an emergency save alone fits the grace period, and when that changes."""
        if self.grace_s is not None and (fits := emergency_s <= self.grace_s) != self._fits:
            self._fits = fits
            event = "grace_fits" if fits else "grace_too_short"
            emit(event, emergency_save_s=round(emergency_s, 3), grace_s=self.grace_s)

    def _say_whether_it_is_dear(self) -> None:
        if (dear := self.overhead() > TOO_DEAR) != self._dear:
            self._dear = dear
            event = "saving_too_dear" if dear else "saving_no_longer_dear"
            emit(event, overhead=round(self.overhead(), 5), wanted=TOO_DEAR, every_steps=self.every)


def job_mtbf_s(config: TrainConfig, nodes: int, shared: Path | Marks) -> float:
    """Return the mean seconds between failures of the whole job. The estimate per node counts as one failure, and each
    loss of work in this campaign as one more, over the time since its first attempt. An attempt and a restart in place
    count alike: in Daly's model the time that a restart takes lowers the efficiency, but does not move the interval."""
    prior = config.checkpoint.node_mtbf_hours * 3600 / max(1, nodes)
    try:
        failures, start_s = losses(shared)
    except OSError:
        return prior
    return (prior + max(0.0, time.time() - start_s)) / (1 + failures)

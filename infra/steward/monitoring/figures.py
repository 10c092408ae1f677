"""Figures that the steward exports beside those of its look: time by cause, the projected end, MFU's denominator."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from infra.cluster.steward_config import StewardConfig
from infra.record.lease import Lease
from infra.report.causes import TimeCause
from infra.steward.seeing.lookout import Lookout
from infra.steward.seeing.views import FailureClass, History, Observation
from trainer.contract import Phase
from trainer.contract.job import Status

_CAUSES = (
    (Phase.EVALUATING, TimeCause.EVALUATION),
    (Phase.SAVING, TimeCause.SAVING),
    (Phase.FINISHING, TimeCause.SAVING),
)
"""Phase -> cause of a gang's time, where no rank trains."""
DIP = "dip"
"""The part of useful time that saves in the background take: the report counts it as useful."""
_QUIET_STEPS, _FEWEST_QUIET_STEPS = 100, 5


class Dip:
    """Measures by how much steps are slower while a checkpoint is written beside them.

    Once step c is committed, the steps since c were beside its save, and those before it were quiet. The dip is the
    mean of the former - the median of the latter, times the number of the former; steps that no look saw count too.
    """

    def __init__(self) -> None:
        self._quiet = deque[float](maxlen=_QUIET_STEPS)
        self._steps = dict[int, float]()
        """Step -> seconds, since the last commit."""
        self._committed = -1

    def note(self, step: int, step_s: float | None, committed_step: int) -> float:
        """Take a look's newest step, its seconds, and the newest step committed; return the seconds of a dip that
        has ended. A step that goes back, after a restart, begins anew."""
        if step < max(self._steps, default=0):
            self._steps, self._committed = {}, committed_step
        if step_s is not None:
            self._steps[step] = step_s
        if committed_step <= self._committed:
            return 0.0
        busy_seconds = [seconds for number, seconds in self._steps.items() if number > committed_step]
        self._quiet.extend(seconds for number, seconds in self._steps.items() if number <= committed_step)
        self._steps, self._committed = {}, committed_step
        if not busy_seconds or len(self._quiet) < _FEWEST_QUIET_STEPS:
            return 0.0
        return max(0.0, statistics.fmean(busy_seconds) - statistics.median(self._quiet)) * (step - committed_step)


class CheckpointAges:
    """Since when the newest checkpoint of each tier is committed; unknown until this steward has seen its step rise."""

    def __init__(self) -> None:
        self._newest = dict[str, int]()
        self._since = dict[str, float]()

    def note(self, steps: dict[str, int], now: float) -> dict[str, float]:
        """Take tier -> newest step committed, -1 for none or unseen; return tier -> seconds since it rose."""
        for tier, step in steps.items():
            if tier in self._newest and step > self._newest[tier]:
                self._since[tier] = now
            self._newest[tier] = max(step, self._newest.get(tier, step))
        return {tier: now - rise_time for tier, rise_time in self._since.items()}


def cause_of(view: Observation, highest_step: int) -> str:
    """Return the cause of the time since the last look, one of the report's. `highest_step`: of all attempts so far;
    steps below it are run again. A gang of which nothing is heard has not started, or has failed since it stepped."""
    if not view.in_flight:
        return (TimeCause.REPLACE if view.held_since is None else TimeCause.IDLE).value
    phases = {pod.trainer_phase for pod in view.pods}
    if Phase.TRAINING in phases:
        return (TimeCause.REDO if view.step < highest_step else TimeCause.USEFUL).value
    if phases <= {None} and view.step > 0:
        return TimeCause.REPLACE.value
    return next((cause for phase, cause in _CAUSES if phase in phases), TimeCause.STARTUP).value


def step_seconds(statuses: Iterable[Status]) -> float | None:
    """Return the seconds of the newest step, the stall of a save before it left out, of the slowest node; None before
    the first step."""
    seconds = [
        status.step_seconds - ((status.figures and status.figures.checkpoint_s) or 0.0)
        for status in statuses
        if status.step_seconds is not None
    ]
    return max(seconds, default=None)


def projected_usd(view: Observation, steps: int, step_s: float | None, archive: timedelta) -> float | None:
    """Return the cost at the end of training and archive at the present rate: spent + rate x (steps left x `step_s` +
    archive). None until the pace is measured, and where no attempt runs, whose rate is no training's."""
    if step_s is None or not view.in_flight:
        return None
    hours_left = (max(0, steps - view.step) * step_s + archive.total_seconds()) / 3600
    return float(view.spent_usd) + float(view.usd_per_hour) * hours_left


def peak(config: StewardConfig, nodes: int, statuses: Iterable[Status]) -> dict[str, float] | None:
    """Return device, dtype and number of the accelerators -> their dense peak in FLOP/s: what MFU is a part of. None
    unless a rank tells MFU: without a known accelerator there is neither. `nodes`: of the gang."""
    if config.train is None or config.train.peak_bf16_tflops is None:
        return None
    if not any(status.figures is not None and status.figures.mfu is not None for status in statuses):
        return None
    count = config.ranks_per_node * nodes
    return {f"{count} of {config.spec.nodes.instance_type}, bf16 dense": count * config.train.peak_bf16_tflops * 1e12}


def failures(history: History) -> dict[str, int]:
    """Return class of failure -> attempts that ended by it: all classes, since the first one would raise no counter."""
    counts = Counter(attempt.failure for attempt in history.attempts)
    return {failure.value: counts[failure] for failure in FailureClass}


def further_figures(
    config: StewardConfig,
    view: Observation,
    history: History,
    lookout: Lookout,
    lease: Lease,
    events_written: int,
    file_system: dict[str, float],
) -> dict[str, Any]:
    """Return the fields of the metrics that a look does not see. The lease's clock runs while the machine sleeps."""
    copied_at = lookout.record_figures.get("copied_at")
    left_s = lease.covers_until - time.clock_gettime(time.CLOCK_BOOTTIME)
    return {
        "failures": failures(history),
        "reserve_s": lookout.interval_and_archive.total_seconds(),
        "projected_usd": projected_usd(view, config.steps, lookout.pace.measured_s, config.archive),
        "peak": peak(config, view.pods_wanted, lookout.observer.statuses.values()),
        "source_errors": dict(lookout.sources.failures),
        "lease_left_s": max(0.0, left_s),
        "events_written": events_written,
        "file_system": file_system,
        **lookout.record_figures,
        "copy_age_s": None if copied_at is None else (view.now - copied_at).total_seconds(),
    }

"""Figures that the steward exports beside those of its look: time by cause, the projected end, MFU's denominator."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from infra.cluster.steward_config import StewardConfig
from infra.record.lease import Lease
from infra.report.causes import TimeCause
from infra.steward.seeing.lookout import Lookout
from infra.steward.seeing.views import Observation
from trainer.contract import Phase
from trainer.contract.job import Status

_CAUSES = (
    (Phase.EVALUATING, TimeCause.EVALUATION),
    (Phase.SAVING, TimeCause.SAVING),
    (Phase.FINISHING, TimeCause.SAVING),
)
"""Phase -> cause of a gang's time, where no rank trains."""


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


def further_figures(
    config: StewardConfig, view: Observation, lookout: Lookout, lease: Lease, events_written: int
) -> dict[str, Any]:
    """Return the fields of the metrics that a look does not see. The lease's clock runs while the machine sleeps."""
    left_s = lease.covers_until - time.clock_gettime(time.CLOCK_BOOTTIME)
    return {
        "projected_usd": projected_usd(view, config.steps, lookout.pace.measured_s, config.archive),
        "peak": peak(config, view.pods_wanted, lookout.observer.statuses.values()),
        "source_errors": dict(lookout.sources.failures),
        "lease_left_s": max(0.0, left_s),
        "events_written": events_written,
    }

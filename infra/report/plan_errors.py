"""The plan's error: its figures beside those that the campaign measured."""

from __future__ import annotations

from statistics import median

from infra.report.model import MoneySpent, PlanError, StageRun
from infra.report.record import Record
from infra.report.trainer_log import TrainerLog


def plan_errors(
    record: Record, stages: tuple[StageRun, ...], cost: MoneySpent, log: TrainerLog
) -> tuple[PlanError, ...]:
    """Return step time, MFU, clock and cost; `measured` is None of what the campaign has not measured.

    A step's time is the median of all, so that the first ones with their compilation do not count. A rehearsal has
    other machines than its plan: its MFU, clock and cost are not the plan's.
    """
    totals, work = record.plan.totals, {figure.name: figure for figure in record.plan.work}
    seconds = [line.seconds for lines in log.steps.values() for line in lines if line.seconds > 0]
    measured = {"step time": round(median(seconds), 6)} if seconds else {}
    if record.site is None:
        if seconds and "implied MFU" in work:  # the work of a step is given, so its product with the time is constant
            measured["implied MFU"] = float(work["implied MFU"].value * work["step time"].value) / measured["step time"]
        if any(row.stage == "teardown" and row.ending == "finished" for row in stages):
            measured["clock"] = round(max(row.ended_s for row in stages), 3)
            measured["cost"] = float(cost.total_usd)
    figures = [work[name] for name in ("step time", "implied MFU") if name in work]
    figures += (totals.clock, totals.usd)
    return tuple(PlanError(figure=figure, measured=measured.get(figure.name)) for figure in figures)

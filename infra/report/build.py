"""Construction of the report from any part of a campaign's record. Pure."""

from __future__ import annotations

from statistics import median

from infra.record.events import CampaignState, fold
from infra.record.payloads.outputs import ProvisionOutput
from infra.record.payloads.stages import Certified
from infra.report import trainer_log, verdict
from infra.report.causes import TimeCause
from infra.report.facts import facts, spec_text
from infra.report.golden import golden
from infra.report.interruptions import interruptions
from infra.report.ledger import ledger
from infra.report.model import (
    CertificateSummary,
    Happened,
    LookRow,
    MoneySpent,
    PlanError,
    PlannedStage,
    Report,
    StageRun,
    TrainingCurves,
)
from infra.report.money import money, shares
from infra.report.record import Record
from infra.report.timeline import attempts, gaps, marks, stages
from infra.report.trainer_log import TrainerLog


def build(record: Record) -> Report:
    """Return everything on the page; what the record lacks stays empty."""
    log = trainer_log.read(record)
    stage_rows, attempt_rows = stages(record), attempts(record, log)
    book = ledger(record, stage_rows, attempt_rows, log)
    state = fold(record.events)
    broken = interruptions(record, attempt_rows, book)
    cost, certificate = money(record, book, state), _certificate(record, state)
    parts = (_training(record, state, log), broken, cost, golden(record, state), certificate)
    useful = book.seconds(TimeCause.USEFUL)
    goodput = useful / book.paid_s if book.paid_s else None
    gpu_goodput = useful / book.gpu_s if book.gpu_s else None
    clock_s = round(max((row.ended_s for row in stage_rows), default=0.0), 3)
    shared = shares(record, book) if book.paid_s else ()
    words, level = verdict.status(state, stage_rows, certificate)
    site = record.site or {}
    return Report(
        campaign=record.spec.campaign,
        purpose=record.spec.purpose,
        owner=record.spec.owner,
        target=record.spec.target,
        made_at=record.at,
        begun_at=record.begun_at,
        status=words,
        level=level,
        verdict=verdict.verdict(record, parts, state, clock_s),
        notices=verdict.notices(record, parts, state, stage_rows),
        figures=verdict.figures(parts, goodput, gpu_goodput, book.paid_s),
        goodput=goodput,
        gpu_goodput=gpu_goodput,
        paid_s=round(sum(row.seconds for row in shared), 3),
        gpu_s=round(book.gpu_s, 3),
        clock_s=clock_s,
        facts=facts(record, state, log),
        spec=spec_text(record),
        stages=stage_rows,
        attempts=attempt_rows,
        gpu_up=book.gpu_up,
        marks=marks(record),
        gaps=gaps(stage_rows, record.now_s, is_over=state.ended or certificate is not None),
        training=parts[0],
        interruptions=broken,
        shares=shared,
        money=cost,
        plan=_plan(record, stage_rows),
        plan_errors=plan_errors(record, stage_rows, cost, log),
        golden=parts[3],
        certificate=certificate,
        emulated=tuple(str(item) for item in site.get("emulated", ())),
        not_rehearsed=tuple(str(item) for item in site.get("not_rehearsed", ())),
        happened=tuple(
            Happened(at_s=record.seconds(e.at), writer=e.writer, kind=e.kind, text=e.sentence()) for e in record.events
        ),
    )


def _training(record: Record, state: CampaignState, log: TrainerLog) -> TrainingCurves:
    newest_logged = max((line.step for lines in log.steps.values() for line in lines), default=0)
    end_steps = [attempt.ended.step or 0 for attempt in state.attempts if attempt.ended is not None]
    return TrainingCurves(
        losses=trainer_log.thin(trainer_log.losses(log)),
        norms=trainer_log.thin(trainer_log.norms(log)),
        alarms=trainer_log.alarms(record),
        evaluations=trainer_log.evaluations_of(log),
        unigram_loss=ProvisionOutput.known(state.finished_stages).unigram_loss,
        repeats=trainer_log.repeats(log, trainer_log.relaunched_after(record)),
        steps_logged=newest_logged,
        steps_done=newest_logged or max(end_steps, default=0),
        steps_wanted=record.spec.job.steps,
    )


def _plan(record: Record, rows: tuple[StageRun, ...]) -> tuple[PlannedStage, ...]:
    actual: dict[str, float] = {}
    for row in rows:
        actual[row.stage] = actual.get(row.stage, 0.0) + row.seconds
    return tuple(
        PlannedStage(
            stage=line.stage,
            planned_s=float(line.seconds),
            actual_s=round(actual[line.stage], 3) if line.stage in actual else None,
            formula=line.formula,
        )
        for line in record.plan.clock
    )


def _certificate(record: Record, state: CampaignState) -> CertificateSummary | None:
    """Combine the event, which has the conclusion, and the stored certificate, which has each look."""
    conclusion, document = state.certificate, record.certificate or {}
    if conclusion is None:
        return None
    rows = tuple(map(LookRow.model_validate, document.get("looks", ())))
    certificates = [event for event in record.events if isinstance(event.payload, Certified)]
    return CertificateSummary(
        clean=conclusion.clean,
        at=certificates[-1].at,
        principal=document.get("principal"),
        looks=len(rows) if conclusion.looks is None else conclusion.looks,
        listed=sum(row.listed for row in rows),
        found=conclusion.found,
        suspects=tuple(map(str, document.get("suspects", ()) if conclusion.suspects is None else conclusion.suspects)),
        could_not_look=conclusion.could_not_look,
        kept=tuple(document.get("kept", ())) if conclusion.kept is None else conclusion.kept,
        rows=rows,
    )


def plan_errors(
    record: Record, stages: tuple[StageRun, ...], cost: MoneySpent, log: TrainerLog
) -> tuple[PlanError, ...]:
    """Return step time, MFU, clock and cost; `actual` is None of what the campaign has not measured.

    A step's time is the median of all, so that the first ones with their compilation do not count. A rehearsal has
    other machines than its plan: its MFU, clock and cost are not the plan's.
    """
    totals, work = record.plan.totals, {figure.name: figure for figure in record.plan.work}
    seconds = [line.seconds for lines in log.steps.values() for line in lines if line.seconds > 0]
    actual = {"step time": round(median(seconds), 6)} if seconds else {}
    if record.site is None:
        if seconds and "implied MFU" in work:  # the work of a step is given, so its product with the time is constant
            actual["implied MFU"] = float(work["implied MFU"].value * work["step time"].value) / actual["step time"]
        if any(row.stage == "teardown" and row.ending == "finished" for row in stages):
            actual["clock"] = round(max(row.ended_s for row in stages), 3)
            actual["cost"] = float(cost.total_usd)
    figures = [work[name] for name in ("step time", "implied MFU") if name in work]
    figures += (totals.clock, totals.usd)
    return tuple(PlanError(figure=figure, measured=actual.get(figure.name)) for figure in figures)

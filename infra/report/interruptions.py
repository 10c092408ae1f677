"""Interruptions of the campaign: cause, answer and cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from infra.console.words import clock, plural
from infra.record.events import Event
from infra.record.payloads.attempts import AttemptEnded, AttemptRestartedInPlace, NodeQuarantined, NodeVerdict, short
from infra.record.payloads.checkpoints import CheckpointRefused
from infra.record.payloads.stages import DriverTookOver, StageFailed, StageStarted
from infra.record.payloads.training import TrainingFinished
from infra.report.causes import TimeCause
from infra.report.ledger import TimeLedger
from infra.report.model import AttemptTime, Interruption, Loss
from infra.report.money import allot, resolution
from infra.report.record import Record

COST = (TimeCause.REPLACE, TimeCause.STARTUP, TimeCause.REDO)
"""Causes of a failure's cost in order: detection and replacement, the new start, the repeated steps."""
MOST_EVIDENCE = 6


def interruptions(record: Record, attempts: Sequence[AttemptTime], book: TimeLedger) -> tuple[Interruption, ...]:
    """Return unfit nodes, failed stages and attempts, and lost drivers, ordered by time."""
    events = record.events
    rows = [_failure(record, events, attempts, row, book) for row in attempts if row.failure is not None]
    for event in events:
        now = record.seconds(event.at)
        match event.payload:
            case DriverTookOver() as takeover:
                rows.append(_takeover(now, takeover, attempts))
            case NodeVerdict(fit=False) as verdict:
                rows.append(_unfit(now, verdict))
            case StageFailed() as failure:
                rows.append(_stage(record, event.at, failure))
            case AttemptRestartedInPlace() as restart:
                rows.append(_in_place(now, restart))
    in_order = sorted(rows, key=lambda row: row.at_s)
    return tuple(row.model_copy(update={"number": number}) for number, row in enumerate(in_order, 1))


def _failure(
    record: Record, events: Sequence[Event], attempts: Sequence[AttemptTime], row: AttemptTime, book: TimeLedger
) -> Interruption:
    following = next((row_after for row_after in attempts if row_after.attempt > row.attempt), None)
    at_s = row.last_step_s if row.last_step_s is not None else row.launched_s
    costs = [
        Loss(cause=cause, seconds=book.micros(cause, row.attempt) / 1e6, usd=book.usd(cause, row.attempt))
        for cause in COST
        if book.micros(cause, row.attempt)
    ]
    amounts = allot([item.usd for item in costs], resolution(record))
    resume_step = following.from_step if following is not None and following.first_step_s is not None else None
    return Interruption(
        at_s=at_s,
        attempt=row.attempt,
        cause=f"{row.failure} failure",
        what=row.detail or "no detail was recorded",
        evidence=_evidence(record, events, row),
        answer=_answer(record, events, row, following),
        action=_action(record, events, row, following),
        detected_s=round(max(row.ended_s - at_s, 0.0), 3),
        again_s=_elapsed(at_s, following.first_step_s if following else None),
        caught_up_s=_elapsed(at_s, (following.redone_s or following.first_step_s) if following else None),
        resumed_from=resume_step,
        steps_lost=max(row.last_step - resume_step, 0) if resume_step is not None else 0,
        steps_repeated=following.repeated if following else 0,
        losses=tuple(item.model_copy(update={"usd": usd}) for item, usd in zip(costs, amounts, strict=True)),
        seconds=sum(book.micros(cause, row.attempt) for cause in COST) / 1e6,
        usd=sum(amounts, Decimal(0)),
    )


def _elapsed(at_s: float, then_s: float | None) -> float | None:
    return None if then_s is None else round(then_s - at_s, 3)


def _evidence(record: Record, events: Sequence[Event], row: AttemptTime) -> tuple[str, ...]:
    """Return the record's evidence: dead nodes, the last step seen, checkpoints refused at the restart."""
    rows = []
    for event in events:
        match event.payload:
            case AttemptEnded(attempt=row.attempt) as end:
                rows += [f"dead: {', '.join(map(short, end.dead_nodes))}"] if end.dead_nodes else []
                rows += [f"failed first: {short(end.first_failed)}"] if end.first_failed else []
                rows += _at_fault(end.culprit)
                rows += [f"stacks of {plural(len(end.stacks), 'pod')}: {end.stacks[0]}"] if end.stacks else []
                rows.append(f"last step seen {end.step}, newest committed {end.committed_at_end}")
            case NodeQuarantined(node=node, reason=reason) if _within_s(record, event, row.ended_s, row.next_launch_s):
                rows.append(f"{short(node)}: {reason}")
            case CheckpointRefused(attempt=attempt, step=step, tier=tier) as refused if attempt == row.attempt + 1:
                rows.append(f"checkpoint of step {step} refused: {refused.place} on the {tier} tier")
    if len(rows) > MOST_EVIDENCE:
        rows = [*rows[:MOST_EVIDENCE], f"and {len(rows) - MOST_EVIDENCE} more: see the record"]
    return tuple(rows)


def _at_fault(culprit: dict[str, Any] | None) -> list[str]:
    if not culprit or not culprit.get("ranks"):
        return []
    ranks = ", ".join(str(rank) for rank in culprit["ranks"])
    return [f"rank {ranks} on {', '.join(map(short, culprit.get('nodes', ())))}: {culprit.get('why')}"]


def _within_s(record: Record, event: Event, begin_s: float, end_s: float | None) -> bool:
    return begin_s <= record.seconds(event.at) <= (record.now_s if end_s is None else end_s)


def _answer(
    record: Record, events: Sequence[Event], row: AttemptTime, following: AttemptTime | None
) -> tuple[str, ...]:
    answers = []
    for event in events:
        if not _within_s(record, event, row.ended_s, row.next_launch_s):
            continue
        match event.payload:
            case NodeQuarantined(node=node, instance=instance):
                answers.append(f"{short(node)} ({instance}) quarantined and given back")
            case TrainingFinished(outcome=outcome, why=why):
                answers.append(f"training {outcome}: {why}")
    if following is not None:
        new = [node for node in following.nodes if node not in row.nodes]
        replacement = f" with {', '.join(new[:4])} instead" if new and row.nodes else ""
        start = f"from the checkpoint of step {following.from_step:,}" if following.from_step else "from the beginning"
        answers.append(f"attempt {following.attempt} {start}{replacement}")
    return tuple(answers) or ("none yet",)


def _action(record: Record, events: Sequence[Event], row: AttemptTime, following: AttemptTime | None) -> str:
    events_between = [event for event in events if _within_s(record, event, row.ended_s, row.next_launch_s)]
    if any(isinstance(event.payload, NodeQuarantined) for event in events_between):
        return "replaced"
    if following is not None:
        return "restarted"
    ends = [event.payload.outcome for event in events_between if isinstance(event.payload, TrainingFinished)]
    return str(ends[-1]) if ends else "none yet"


def _stage(record: Record, failed_at: datetime, failure: StageFailed) -> Interruption:
    now, stage = record.seconds(failed_at), failure.stage
    events_after = ((event.at, event.payload) for event in record.events if event.at > failed_at)
    starts = (start for start, payload in events_after if isinstance(payload, StageStarted) and payload.stage is stage)
    restart_s = next(map(record.seconds, starts), None)
    return Interruption(
        at_s=now,
        cause=f"{stage} failed",
        what=str(failure.error),
        answer=("none yet",) if restart_s is None else (f"entered again after {clock(restart_s - now)}",),
        action="none yet" if restart_s is None else "entered again",
        again_s=_elapsed(now, restart_s),
        seconds=_elapsed(now, restart_s),
    )


def _takeover(now: float, takeover: DriverTookOver, attempts: Sequence[AttemptTime]) -> Interruption:
    training = any(row.launched_s <= now <= row.ended_s for row in attempts)
    return Interruption(
        at_s=now,
        cause="driver gone",
        what=f"{takeover.previous} no longer drove",
        answer=(
            f"{takeover.holder} took over",
            "training went on meanwhile: the steward needs no driver" if training else "the stage was entered again",
        ),
        action="taken over",
        seconds=0.0 if training else None,
    )


def _in_place(now: float, restart: AttemptRestartedInPlace) -> Interruption:
    seconds = restart.seconds or 0.0
    process = f"rank {restart.culprit}" if restart.culprit is not None else "a rank"
    made_step = "" if restart.step is None else f" and made step {restart.step:,}"
    return Interruption(
        at_s=max(now - seconds, 0.0),
        cause="process died",
        what=f"{process} on {short(restart.of_node)}, attempt {restart.attempt}: {restart.cause}",
        answer=(f"its pods stayed: all ranks started again{made_step}",),
        action="restarted in place",
        again_s=seconds,
        seconds=seconds,
    )


def _unfit(now: float, verdict: NodeVerdict) -> Interruption:
    bad = [p for p in verdict.probes if not p.get("ok", True) and p.get("looked", True)]
    findings = "; ".join(f"{p.get('name')}: {p.get('seen')}, wanted {p.get('wanted')}" for p in bad)
    return Interruption(
        at_s=now,
        cause="unfit node",
        what=f"{short(verdict.node)}: {findings or 'unfit'}",
        answer=(f"{verdict.instance} replaced before training; its time is in preflight",),
        action="replaced",
    )

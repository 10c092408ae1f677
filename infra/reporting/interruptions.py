"""What interrupted the campaign, what was done about it, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from infra.estimates.figure import cents
from infra.events import Event, Kind
from infra.reporting.ledger import Ledger
from infra.reporting.model import AttemptTime, Cause, Interruption, Loss
from infra.reporting.record import Record
from infra.reporting.timeline import ordered, short

_COST = (Cause.REPLACE, Cause.STARTUP, Cause.REDO)
"""Detection and replacement, the new start, the steps run again: what a failure costs, in the order it is paid."""


def interruptions(record: Record, attempts: Sequence[AttemptTime], book: Ledger) -> tuple[Interruption, ...]:
    """In the order of time: unfit nodes before training, failed attempts, drivers that went away."""
    events = ordered(record)
    found = [_failure(record, events, attempts, row, book) for row in attempts if row.failure is not None]
    for event in events:
        match event.kind:
            case Kind.DRIVER_TOOK_OVER:
                found.append(_takeover(record, event, attempts))
            case Kind.NODE_VERDICT if not event.data.get("fit", True):
                found.append(_unfit(record, event))
    return tuple(sorted(found, key=lambda row: row.at_s))


def _failure(
    record: Record, events: list[Event], attempts: Sequence[AttemptTime], row: AttemptTime, book: Ledger
) -> Interruption:
    following = next((later for later in attempts if later.attempt > row.attempt), None)
    costs = []
    for cause in _COST:
        spans = [span for span in book.spans if span.interruption == row.attempt and span.cause is cause]
        if spans:
            usd = book.usd(spans)
            costs.append(Loss(cause=cause, seconds=round(sum(s.seconds for s in spans), 3), usd=cents(usd)))
    mine = [span for span in book.spans if span.interruption == row.attempt and span.cause in _COST]
    return Interruption(
        at_s=row.last_step_s if row.last_step_s is not None else row.ended_s,
        attempt=row.attempt,
        cause=f"{row.failure} failure",
        what=row.detail or "no detail was recorded",
        answer=_answer(record, events, row, following),
        resumed_from=following.from_step if following else None,
        steps_repeated=following.repeated if following else 0,
        losses=tuple(costs),
        seconds=round(sum(span.seconds for span in mine), 3),
        usd=cents(book.usd(mine)),
    )


def _answer(record: Record, events: list[Event], row: AttemptTime, following: AttemptTime | None) -> tuple[str, ...]:
    until = following.launched_s if following is not None else record.now_s
    found = []
    for event in events:
        if not row.ended_s <= record.seconds(event.at) <= until:
            continue
        if event.kind is Kind.NODE_QUARANTINED:
            found.append(f"{short(event.data['node'])} ({event.data.get('instance')}) quarantined and given back")
        if event.kind is Kind.DECISION and event.data.get("action") == "finish":
            found.append(f"training ended: {event.data.get('why')}")
    if following is not None:
        where = f" on {', '.join(following.nodes)}" if following.nodes else ""
        start = f"from the checkpoint of step {following.from_step}" if following.from_step else "from the beginning"
        found.append(f"attempt {following.attempt} {start}{where}")
    return tuple(found) or ("none yet",)


def _takeover(record: Record, event: Event, attempts: Sequence[AttemptTime]) -> Interruption:
    now = record.seconds(event.at)
    training = any(row.launched_s <= now <= row.ended_s for row in attempts)
    return Interruption(
        at_s=now,
        attempt=None,
        cause="driver gone",
        what=f"{event.data.get('previous')} no longer drove",
        answer=(
            f"{event.data.get('holder')} took over",
            "training went on meanwhile: the steward needs no driver" if training else "the stage was entered again",
        ),
        seconds=0.0 if training else None,
    )


def _unfit(record: Record, event: Event) -> Interruption:
    bad = [p for p in event.data.get("probes", ()) if not p.get("ok", True)]
    seen = "; ".join(f"{p.get('name')}: {p.get('seen')}, wanted {p.get('wanted')}" for p in bad)
    return Interruption(
        at_s=record.seconds(event.at),
        attempt=None,
        cause="unfit node",
        what=f"{short(event.data['node'])}: {seen or 'unfit'}",
        answer=(f"{event.data.get('instance')} replaced before training; its time is in preflight",),
    )

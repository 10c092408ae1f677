"""The one meter of money: what has billed by the hour, and what the plan estimates of the rest. Pure.

GPU nodes count from preflight's request: EC2 bills from their start, not from the steward's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from infra.plan.estimates.cost import CostLine
from infra.record.events import Event, Stage, ordered
from infra.record.payloads import Payload
from infra.record.payloads.attempts import AttemptLaunched, NodesAtZero, NodeShare, PilotProven
from infra.record.payloads.outputs import BakeOutput
from infra.record.payloads.stages import DataBegun, DataEnded, DriverTookOver, StageFailed, StageFinished, StageStarted
from infra.record.payloads.training import (
    ArchiveFailed,
    ArchiveUnproven,
    ArchiveVerified,
    Relaunched,
    TrainingFinished,
)

_MICROSECOND = timedelta(microseconds=1)
_HOUR = 3_600_000_000
"""Microseconds."""
_BUILDERS = Fraction(2)
"""The most builders that stand while a bake runs; its outputs say for how long each has."""
_WITHOUT_STACK = (Stage.CHECK, Stage.PLAN, Stage.BAKE, Stage.CERTIFY, Stage.REPORT)


class Billing(StrEnum):
    """Resources that begin and end to bill together."""

    STACK = "stack"
    BUILDER = "builder"
    DATA_NODES = "data nodes"
    GPU_NODES = "GPU nodes"

    @classmethod
    def of(cls, line: CostLine) -> Billing:
        if line.gpu:
            return cls.GPU_NODES
        return cls(line.name) if line.name in (cls.BUILDER, cls.DATA_NODES) else cls.STACK


Bills = dict[Billing, Fraction]
"""Share of the nodes that bill."""


class Up(NamedTuple):
    """Time for which resources billed, and the share of their nodes that did."""

    begun: datetime
    ended: datetime
    share: Fraction


@dataclass(frozen=True)
class Reading:
    metered: Mapping[str, Decimal]
    """Line that bills by the hour -> its USD so far."""
    estimated: Mapping[str, Decimal]
    """Line that bills by size, or at once -> the part of the plan's USD that has passed."""
    usd_per_hour: Decimal
    """What another hour adds now. Nodes of a capacity block add nothing while its fee covers them."""
    prepaid: bool
    """A fee that was paid at once still covers the GPU nodes."""
    windows: Mapping[Billing, tuple[Up, ...]]
    gpu_share: Fraction
    """Share of the GPU nodes that bills now."""

    @property
    def metered_usd(self) -> Decimal:
        return sum(self.metered.values(), Decimal(0))

    @property
    def estimated_usd(self) -> Decimal:
        return sum(self.estimated.values(), Decimal(0))

    @property
    def spent_usd(self) -> Decimal:
        return self.metered_usd + self.estimated_usd


def price(line: CostLine, micros: int | Fraction) -> Decimal:
    """Return USD for a time in microseconds."""
    return line.usd_per_hour * micros.numerator / (_HOUR * micros.denominator)


def read(lines: Iterable[CostLine], events: Iterable[Event], now: datetime) -> Reading:
    """Return the money of a campaign up to `now`, or to its newest event if that is later."""
    record = ordered(events)
    end = max([now, *(event.at for event in record[-1:])])
    windows, bills = _windows(record, end)
    hourly, by_size = list[CostLine](), list[CostLine]()
    for line in lines:
        (hourly if line.usd_per_hour else by_size).append(line)
    durations = {
        part: sum((_micros(window) * window.share for window in ups), Fraction(0)) for part, ups in windows.items()
    }
    amounts = {line.name: price(line, durations[Billing.of(line)]) for line in hourly}
    gpu_usd = sum((amounts[line.name] for line in hourly if line.gpu), Decimal(0))
    progress = _progress(record, windows, end)
    estimates = {
        fee.name: _estimate(fee, progress, gpu_usd) if any(windows.values()) else Decimal(0) for fee in by_size
    }
    prepaid = any(estimates[line.name] for line in by_size if line.upfront_usd is not None)
    adding = [line for line in hourly if not (line.gpu and prepaid)]
    rate = sum((price(fee, _HOUR * bills.get(Billing.of(fee), Fraction(0))) for fee in adding), Decimal(0))
    return Reading(amounts, estimates, rate, prepaid, windows, bills.get(Billing.GPU_NODES, Fraction(0)))


def _windows(record: tuple[Event, ...], end: datetime) -> tuple[dict[Billing, tuple[Up, ...]], Bills]:
    """Return the times for which each part billed, and what bills at the end."""
    windows: dict[Billing, tuple[Up, ...]] = {part: () for part in Billing}
    bills, starts = Bills(), dict[Billing, datetime]()
    for time, event in [*((_moment(event), event) for event in record), (end, None)]:
        bills_now = {} if event is None else bills | _changes(event.payload, bills)
        for part in Billing:
            share = bills.get(part, Fraction(0))
            if share != bills_now.get(part, 0):
                if share and time > starts[part]:
                    windows[part] += (Up(starts[part], time, share),)
                starts[part] = time
        if event is None:
            break
        bills = bills_now
        match event.payload:
            case StageFinished(outputs=BakeOutput() as outputs):
                windows[Billing.BUILDER] = _builder_windows(windows[Billing.BUILDER], time, outputs)
            case Relaunched(bake=BakeOutput(builder_s=float(builder_s))) if builder_s:
                # It bakes outside the stage, right before.
                begun = max([time - timedelta(seconds=builder_s), *(up.ended for up in windows[Billing.BUILDER])])
                up = Up(begun, time, Fraction(1))
                windows[Billing.BUILDER] += (up._replace(share=_share(builder_s, up)),) if begun < time else ()
    return windows, bills


def _share(seconds: float, up: Up) -> Fraction:
    """Return the share with which a window counts so many seconds."""
    return Fraction(round(seconds * 1_000_000), _micros(up))


def _builder_windows(windows: tuple[Up, ...], end: datetime, outputs: BakeOutput) -> tuple[Up, ...]:
    """Return the windows, with what builders stood in the bake that has ended just now: none where the inputs were
    baked before. Earlier versions had one after the other, and noted no time."""
    if not windows or windows[-1].ended != end:
        return windows
    *others, last = windows
    share = Fraction(1)
    if outputs.builder_s is not None:
        share = _share(outputs.builder_s, last)
    elif outputs.baked is False:
        share = Fraction(0)
    return (*others, last._replace(share=share)) if share else tuple(others)


def _moment(event: Event) -> datetime:
    """Return the time from which an event's change bills."""
    went_at = event.payload.since if isinstance(event.payload, NodesAtZero) else None
    return event.at if went_at is None else min(event.at, went_at)


def _changes(payload: Payload, bills: Bills) -> Bills:
    """Return what an event changes of what bills."""
    full, zero = Fraction(1), Fraction(0)
    match payload:
        case StageStarted(stage=stage):
            stack = {} if stage in _WITHOUT_STACK else {Billing.STACK: full}
            nodes = {Billing.GPU_NODES: full} if stage is Stage.PREFLIGHT else {}
            return {Billing.BUILDER: _BUILDERS if stage is Stage.BAKE else zero, **stack, **nodes}
        case StageFinished(stage=Stage.TEARDOWN):
            return dict.fromkeys(Billing, zero)
        case StageFinished(stage=Stage.PROVISION):
            return {Billing.BUILDER: zero, Billing.DATA_NODES: zero}
        case StageFailed(gave_nodes_back=True):
            return {Billing.BUILDER: zero, Billing.GPU_NODES: zero}
        case StageFinished() | StageFailed() | DriverTookOver():
            return {Billing.BUILDER: zero}
        case DataBegun() | DataEnded():
            return {Billing.DATA_NODES: Fraction(isinstance(payload, DataBegun))}
        case AttemptLaunched(nodes=nodes) if nodes:
            return {}  # those that bill were counted before
        case PilotProven() | AttemptLaunched():
            return {Billing.GPU_NODES: max(full, bills.get(Billing.GPU_NODES, full))}
        case NodesAtZero():
            return {Billing.GPU_NODES: zero}
        case NodeShare(share=share):
            return {Billing.GPU_NODES: share}
    return {}


def _micros(window: Up) -> int:
    return (window.ended - window.begun) // _MICROSECOND


def _progress(
    record: tuple[Event, ...], windows: Mapping[Billing, tuple[Up, ...]], end: datetime
) -> dict[str, Fraction]:
    """Return how far each sort of the plan's estimates has passed: a share, or microseconds."""
    gpu, archive_end = windows[Billing.GPU_NODES], ArchiveVerified | ArchiveUnproven | ArchiveFailed
    launch = next((event.at for event in record if isinstance(event.payload, AttemptLaunched)), end)
    finish = max((event.at for event in record if isinstance(event.payload, TrainingFinished)), default=end)
    return {
        "at once": Fraction(1),
        "nodes": max((window.share for window in gpu), default=Fraction(0)),
        "archive": Fraction(any(isinstance(event.payload, archive_end) for event in record)),
        "training": Fraction((finish - launch) // _MICROSECOND),
        "waiting": Fraction(sum(map(_micros, windows[Billing.STACK])) - sum(map(_micros, gpu))),
    }


def _estimate(line: CostLine, progress: Mapping[str, Fraction], gpu_usd: Decimal) -> Decimal:
    """Return the part of a line by size that has passed, or what a fee exceeds the cost of the GPU nodes by."""
    if line.upfront_usd is not None:
        return max(Decimal(0), line.upfront_usd - gpu_usd)
    part = progress[line.passes] / (Fraction(line.hours) * _HOUR if line.hours else 1)
    part = min(max(part, Fraction(0)), Fraction(1))
    return line.usd * part.numerator / part.denominator

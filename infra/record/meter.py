"""The one meter of money: what has billed by the hour, and what the plan estimates of the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from infra.plan.estimates.cost import CostLine
from infra.record.billing import Billing, Bills, billing_after
from infra.record.events import Event, Kind, ordered

_MICROSECOND = timedelta(microseconds=1)
_HOUR = 3_600_000_000
"""Microseconds."""
_WAITS = (Billing.STACK, Billing.GPU_NODES)
_ARCHIVED = (Kind.ARCHIVE_VERIFIED, Kind.ARCHIVE_UNPROVEN, Kind.ARCHIVE_FAILED)


class Up(NamedTuple):
    """Time for which resources billed, and the share of their nodes that did."""

    begun: datetime
    ended: datetime
    share: Fraction

    @property
    def micros(self) -> Fraction:
        return (self.ended - self.begun) // _MICROSECOND * self.share


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


def billing_of(line: CostLine) -> Billing:
    if line.gpu:
        return Billing.GPU_NODES
    return Billing(line.name) if line.name in (Billing.BUILDER, Billing.DATA_NODES) else Billing.STACK


def price(line: CostLine, micros: int | Fraction) -> Decimal:
    """Return USD for a time in microseconds."""
    share = Fraction(micros)
    return line.usd_per_hour * share.numerator / (_HOUR * share.denominator)


def read(lines: Iterable[CostLine], events: Iterable[Event], now: datetime) -> Reading:
    """Return the money of a campaign up to `now`, or to its newest event if that is later."""
    rows, record = tuple(lines), ordered(events)
    until = max([now, *(event.at for event in record[-1:])])
    windows, bills = _windows(record, until)
    hourly = [line for line in rows if line.usd_per_hour]
    metered = {line.name: price(line, sum(up.micros for up in windows[billing_of(line)])) for line in hourly}
    gpu_usd = sum((metered[line.name] for line in hourly if line.gpu), Decimal(0))
    sized, passed = [line for line in rows if not line.usd_per_hour], _Passed(record, windows, until)
    rest = {one.name: one.upfront_usd - gpu_usd for one in sized if passed.begun and one.upfront_usd is not None}
    prepaid = any(usd > 0 for usd in rest.values())
    adding = [line for line in hourly if not (line.gpu and prepaid)]
    return Reading(
        metered=metered,
        estimated={one.name: max(Decimal(0), rest.get(one.name, one.usd * passed.part(one))) for one in sized},
        usd_per_hour=sum((price(one, _HOUR * bills.get(billing_of(one), 0)) for one in adding), Decimal(0)),
        prepaid=prepaid,
        windows=windows,
        gpu_share=bills.get(Billing.GPU_NODES, Fraction(0)),
    )


def _windows(record: tuple[Event, ...], until: datetime) -> tuple[dict[Billing, tuple[Up, ...]], Bills]:
    """Return the times for which each part billed, and what bills at the end."""
    windows: dict[Billing, tuple[Up, ...]] = {part: () for part in Billing}
    bills, since = Bills(), dict[Billing, datetime]()

    def change(after: Bills, at: datetime) -> None:
        for part in Billing:
            share = bills.get(part, Fraction(0))
            if share != after.get(part, 0):
                if share and at > since[part]:
                    windows[part] += (Up(since[part], at, share),)
                since[part] = at

    for event in record:
        after = billing_after(bills, event.kind, event.data)
        change(after, event.at)
        bills = after
        if event.kind is Kind.STAGE_FINISHED and (event.data.get("outputs") or {}).get("baked") is False:
            windows[Billing.BUILDER] = ()  # the inputs were baked before: there was no builder
    change({}, until)
    return windows, bills


class _Passed:
    """Parts of the plan's estimates that have passed: traffic with the nodes, storage with its content and its time."""

    def __init__(self, record: tuple[Event, ...], windows: Mapping[Billing, tuple[Up, ...]], until: datetime) -> None:
        self.begun, gpu = any(windows.values()), windows[Billing.GPU_NODES]
        launched = next((event.at for event in record if event.kind is Kind.ATTEMPT_LAUNCHED), until)
        finished = max((event.at for event in record if event.kind is Kind.TRAINING_FINISHED), default=until)
        stack, nodes = (
            sum((up.ended - up.begun for up in each), timedelta()) for each in (windows[Billing.STACK], gpu)
        )
        self._share = {
            "at once": Fraction(1),
            "nodes": max((up.share for up in gpu), default=Fraction(0)),
            "archive": Fraction(any(event.kind in _ARCHIVED for event in record)),
        }
        self._lasted = {"training": finished - launched, "waiting": stack - nodes}

    def part(self, line: CostLine) -> Decimal:
        """Return the part between 0 and 1."""
        part = self._share.get(line.passes, Fraction(1))
        if line.hours and line.passes in self._lasted:
            part = Fraction(self._lasted[line.passes] // _MICROSECOND) / (Fraction(line.hours) * _HOUR)
        part = min(max(part, Fraction(0)), Fraction(self.begun))
        return Decimal(part.numerator) / part.denominator

"""Hourly price of a leftover, from its listing and the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from infra.kinds import Thing, kind_named


def usd_per_hour(kind: str, thing: Thing) -> Decimal | None:
    """Return 0 if it no longer bills by the hour, None if it bills and no price is known."""
    return Decimal(0) if thing.leaving else kind_named(kind).price(thing.traits)


def total(rates: Iterable[Decimal | None]) -> tuple[Decimal, int]:
    """Return the sum of the known rates and the number of unknown ones."""
    rows = list(rates)
    return sum((rate for rate in rows if rate is not None), Decimal(0)), sum(rate is None for rate in rows)


def sum_text(rates: Iterable[Decimal | None]) -> str:
    """Return the sum as text."""
    usd, unknown = total(rates)
    suffix = f", and {unknown} whose price is not in the catalogue" if unknown else ""
    return f"together {rate_text(usd)} USD/h{suffix}"


def rate_text(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.quantize(Decimal('0.001'))}"

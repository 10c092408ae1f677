"""Hourly price of a leftover, from its listing and the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from infra.kinds import Thing, kind_named


def usd_per_hour(kind: str, one: Thing) -> Decimal | None:
    """Return 0 if it no longer bills by the hour, None if it bills and no price is known."""
    return Decimal(0) if one.leaving else kind_named(kind).price(one.traits)


def total(rates: Iterable[Decimal | None]) -> tuple[Decimal, int]:
    """Return the sum of the known rates and the number of unknown ones."""
    several = list(rates)
    return sum((one for one in several if one is not None), Decimal(0)), sum(one is None for one in several)


def together(rates: Iterable[Decimal | None]) -> str:
    """Return the sum as text."""
    known, unknown = total(rates)
    more = f", and {unknown} whose price is not in the catalogue" if unknown else ""
    return f"together {shown(known)} USD/h{more}"


def shown(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.quantize(Decimal('0.001'))}"

"""What a thing that is left bills by the hour, from what its listing shows and the catalogue's prices."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from infra.kinds import Thing, kind_named


def usd_per_hour(kind: str, one: Thing) -> Decimal | None:
    """0 for what costs nothing by the hour, or no more; None where it bills and no price is known."""
    return Decimal(0) if one.leaving else kind_named(kind).price(one.traits)


def total(rates: Iterable[Decimal | None]) -> tuple[Decimal, int]:
    """The sum of what is known, and how many are not."""
    several = list(rates)
    return sum((one for one in several if one is not None), Decimal(0)), sum(one is None for one in several)


def together(rates: Iterable[Decimal | None]) -> str:
    """The sum in words, with what it leaves out."""
    known, unknown = total(rates)
    more = f", and {unknown} whose price is not in the catalogue" if unknown else ""
    return f"together {shown(known)} USD/h{more}"


def shown(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.quantize(Decimal('0.001'))}"

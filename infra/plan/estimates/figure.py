"""A value with its unit and formula."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from trainer.contract.frozen import Frozen

CENT = Decimal("0.01")


class Figure(Frozen):
    name: str
    value: Decimal
    unit: str
    formula: str
    """The calculation with its numbers."""


def figure(name: str, value: Decimal | int | float, unit: str, formula: str, digits: int = 3) -> Figure:
    """Return a figure rounded to `digits` after the point, so that equal inputs give equal text everywhere."""
    return Figure(name=name, value=round_to(value, digits), unit=unit, formula=formula)


def round_to(value: Decimal | int | float, digits: int) -> Decimal:
    """Round half up, without trailing zeros or an exponent."""
    exact = value if isinstance(value, Decimal) else Decimal(str(value))
    result = exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return result.quantize(Decimal(1)) if result == result.to_integral_value() else result.normalize()


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, rounding=ROUND_HALF_UP)

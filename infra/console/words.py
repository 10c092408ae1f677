"""Sizes, times and amounts as text for people."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal


def clock(seconds: float) -> str:
    """Return 12.3 s, 4 min 05 s, 3 h 20 min, 2 d 4 h: at most two units."""
    if seconds < 0:
        return f"-{clock(-seconds)}"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 86400} d {total % 86400 // 3600} h"


def stamp(seconds: float) -> str:
    """Return the time since the beginning as 0:03:07, or 2 d 04:03:07."""
    days, daytime = divmod(round(seconds), 86400)
    hours, minutes, second = daytime // 3600, daytime // 60 % 60, daytime % 60
    return f"{days} d {hours:02d}:{minutes:02d}:{second:02d}" if days else f"{hours}:{minutes:02d}:{second:02d}"


def moment(instant: datetime) -> str:
    """Return date and time in UTC."""
    return instant.astimezone(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0")


def plural(count: int, singular: str, plural_form: str | None = None) -> str:
    return f"{count:,} {singular if count == 1 else plural_form or singular + 's'}"


def size(count: int) -> str:
    """Return bytes with a decimal prefix."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def usd(amount: Decimal | float) -> str:
    """Return an amount to the cent; less than half a cent is not zero."""
    value = Decimal(str(amount))
    if 0 < value < Decimal("0.005"):
        return "< $0.01"
    return f"${value:,.2f}"


def fine(amount: Decimal, *, sign: bool = False) -> str:
    """Return an amount with all its digits, for parts that have to add up as printed."""
    mark = "\u2212" if amount < 0 else "+" if sign and amount else ""
    return f"{mark}${abs(amount):,f}"


def share(part: float) -> str:
    return f"{100 * part:.1f} %"

"""SVG elements as escaped markup, scales, and ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 1000.0
CHARACTER = 6.4
"""Mean width of a character at the charts' 12 px, to test whether a label fits."""

Attribute = str | float | None


def tag(name: str, *children: Markup | str, **attributes: Attribute) -> Markup:
    """Return an element; `class_` is `class`, other underscores are dashes, None omits an attribute."""
    text = "".join(
        f' {"class" if key == "class_" else key.replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)
    return Markup(f"<{name}{text}>{inner}</{name}>")


def drawing(height: float, label: str, children: Iterable[Markup]) -> Markup:
    """Return a whole picture; screen readers read `label`."""
    return tag("svg", *children, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)


def text(x: float, y: float, content: str, class_: str = "label", anchor: str = "start") -> Markup:
    return tag("text", content, x=x, y=y, class_=class_, text_anchor=anchor if anchor != "start" else None)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, title: str = "", radius: float = 0) -> Markup:
    """Return a rectangle of at least 1 px, so that short times are visible."""
    inner = (tag("title", title),) if title else ()
    return tag(
        "rect", *inner, x=x, y=y, width=max(width, 1.0), height=height, class_=class_, rx=radius if radius else None
    )


def text_width(content: str) -> float:
    return CHARACTER * len(content)


@dataclass(frozen=True)
class Scale:
    """Map from values to positions."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.begin + (value - self.low) / span * (self.end - self.begin)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return round numbers within the range, 1, 2 or 5 times a power of ten apart."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    lowest = math.ceil(low / step - 1e-9)
    return [index * step for index in range(lowest, math.floor(high / step + 1e-9) + 1)]


_TIME_STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)
_TICKS = 8


def time_ticks(high: float) -> list[float]:
    """Return ticks in seconds at usual units of time."""
    step = next((step for step in _TIME_STEPS if high / step <= _TICKS), 604800 * math.ceil(high / 604800 / _TICKS))
    return [float(value) for value in range(0, int(high) + 1, step)]


def time_label(seconds: float, high: float) -> str:
    """Return a time in the unit of the whole axis."""
    if high < 120:
        return f"{seconds:.0f} s"
    if high < 600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    if high < 7200:
        return f"{seconds / 60:.0f} min"
    if high < 172800:
        return f"{seconds / 3600:g} h" if seconds % 3600 == 0 else f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.3g} d"


def _value(value: Attribute) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

"""Shares of time and money: one bar each, cut by cause in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from infra.console.words import clock, share, usd
from infra.report.charts.svg import WIDTH, Scale, drawing, rect, text, text_width
from infra.report.model import Report

LEFT, HEIGHT = 64.0, 34.0


def bars(report: Report) -> Markup:
    if not report.shares:
        return Markup("")
    time = [(row.cause, row.label, row.time_share, clock(row.seconds)) for row in report.shares]
    money = [(row.cause, row.label, row.money_share, usd(row.usd)) for row in report.shares]
    parts, bottom = [*_bar("time", time, 4.0)], HEIGHT + 12.0
    if report.money.by_time_usd:
        parts += _bar("money", money, 4.0 + bottom)
        bottom += HEIGHT + 12
    x_axis = Scale(0, 100, LEFT, WIDTH)
    for percent in range(0, 101, 20):
        anchor = {0: "start", 100: "end"}.get(percent, "middle")
        parts.append(text(x_axis(percent), bottom + 8, f"{percent} %", "tick", anchor))
    parts.append(text(x_axis(50), bottom + 26, "share of all paid time, and of all money", "axisname", "middle"))
    return drawing(bottom + 32, "Shares of time and money by cause", parts)


def _bar(name: str, rows: Sequence[tuple[str, str, float, str]], y: float) -> Iterator[Markup]:
    yield text(LEFT - 12, y + HEIGHT / 2 + 4, name, "row", "end")
    x, room = LEFT, WIDTH - LEFT
    for cause, label, part, amount in rows:
        width = part * room
        # A gap of one pixel separates neighbours of similar colour.
        yield rect(x, y, max(width - 1, 0.5), HEIGHT, f"cause {cause}", f"{label}: {amount}, {share(part)}")
        for content in (f"{label} {100 * part:.0f} %", f"{100 * part:.0f} %"):
            if text_width(content) + 10 < width:
                yield text(x + width / 2, y + HEIGHT / 2 + 4, content, f"on {cause}", "middle")
                break
        x += width

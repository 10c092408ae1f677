"""Writes the table of drills into a page: fault, who saw it and when, what was done, which alert, what was lost."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.rehearsal.drills.judge import DrillResult
from infra.spec.drills.scenarios import scenarios

BEGIN, END = "<!-- drills: written by `bivouac drill --page` -->", "<!-- /drills -->"
_HEAD = ("fault", "seen by", "s", "action", "page, s", "new commit, s", "lost steps", "USD", "day", "as expected")


def table(results: Iterable[DrillResult]) -> str:
    """Return the table as Markdown; of the alerts, those of severity `page`."""
    lines = [_row(_HEAD), _row("---" for _ in _HEAD)]
    for result in results:
        pages = {name: seconds for name, seconds in sorted(result.alerts.items()) if _is_page(name)}
        alerts_text = ", ".join(f"{name} {seconds:.0f}" for name, seconds in pages.items()) or "none"
        lines.append(
            _row(
                (
                    result.fault, kind_of_sign(result), _seconds(result.sign_s), result.action, alerts_text,
                    _seconds(result.committed_s) if result.ended_s is None else f"end {result.ended_s:.0f}",
                    str(result.lost_steps), f"{result.lost_usd:.2f}", result.day,
                    "yes" if not result.problems else "no",
                )
            )
        )  # fmt: skip
    return "\n".join(lines)


def lines(result: DrillResult) -> list[str]:
    """Return what a fault has led to, in words."""
    alerts_text = ", ".join(f"{name} after {seconds:.1f} s" for name, seconds in result.alerts.items()) or "none"
    sign = f"{result.sign_by} after {result.sign_s:.1f} s: {result.sign}" if result.sign_s is not None else "by nobody"
    end_text = "none" if result.ended_s is None else f"none, ended after {result.ended_s:.1f} s"
    recovery = end_text if result.committed_s is None else f"after {result.committed_s:.1f} s"
    left = "unknown" if result.left is None else ", ".join(result.left) or "nothing"
    return [
        f"{result.fault}: {'; '.join(result.problems) or 'as expected'}",
        f"  struck at step {result.step} of {result.campaign}",
        f"  seen {sign}",
        f"  alert: {alerts_text}",
        f"  action: {result.action}",
        f"  new committed step: {recovery}",
        f"  lost: {result.lost_steps} steps, {result.lost_usd} USD",
        f"  left: {left}",
    ]


def kind_of_sign(result: DrillResult) -> str:
    """Return who has seen the fault, or that nobody has."""
    return result.sign_by or "nobody"


def write(page: Path, results: Iterable[DrillResult]) -> None:
    """Put the table, and which faults it lacks, between the marks of a page. Raises `UserError` for a page without."""
    text = page.read_text()
    head, begin, tail = text.partition(BEGIN)
    _, end, foot = tail.partition(END)
    if not begin or not end:
        raise UserError("the page has no place for the table", seen=page, cure=f"write the lines {BEGIN} and {END}")
    rows = tuple(results)
    unproven = ", ".join(sorted(scenarios().keys() - {result.fault for result in rows})) or "none"
    lacking = textwrap.fill(f"Faults without a result: {unproven}.", 120, break_on_hyphens=False)
    page.write_text(f"{head}{BEGIN}\n\n{table(rows)}\n\n{lacking}\n\n{END}{foot}")


def _is_page(name: str) -> bool:
    rule = alerts().get(name)
    return rule is None or rule.severity == "page"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

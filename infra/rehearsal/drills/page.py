"""Writes two tables of drills into a page: of each fault who saw it and when, what was done, and what was lost; of each
alert which fault has raised it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.rehearsal.drills.judge import DrillResult
from infra.spec.drills.scenarios import scenarios

BEGIN, END = "<!-- drills: written by `bivouac drill --page` -->", "<!-- /drills -->"
_HEAD = ("fault", "seen by", "s", "action", "page, s", "new commit, s", "lost steps", "USD", "day", "as expected")
_ALERTS_HEAD = ("alert", "severity", "raised by", "after, s", "day")


def fault_rows(results: Iterable[DrillResult]) -> dict[str, str]:
    """Return fault -> its row in Markdown; of the alerts, those of severity `page`."""
    rows = dict[str, str]()
    for result in results:
        pages = {name: seconds for name, seconds in sorted(result.alerts.items()) if _is_page(name)}
        alerts_text = ", ".join(f"{name} {seconds:.0f}" for name, seconds in pages.items()) or "none"
        rows[result.fault] = _row(
            (
                result.fault, kind_of_sign(result), _seconds(result.sign_s), result.action, alerts_text,
                _seconds(result.committed_s) if result.ended_s is None else f"end {result.ended_s:.0f}",
                str(result.lost_steps), f"{result.lost_usd:.2f}", result.day,
                "yes" if not result.problems else "no",
            )
        )  # fmt: skip
    return rows


def alert_rows(results: Iterable[DrillResult]) -> dict[str, str]:
    """Return alert -> its row in Markdown, with a fault that is expected to raise it, else the first that has."""
    raised = dict[str, tuple[DrillResult, float]]()
    for result in results:
        scenario = scenarios().get(result.fault)
        for name, seconds in result.alerts.items():
            if name not in raised or (scenario is not None and name in scenario.expect.alerts):
                raised[name] = (result, seconds)
    return {
        name: _row((name, rule.severity, raised[name][0].fault, f"{raised[name][1]:.0f}", raised[name][0].day))
        for name, rule in alerts().items()
        if name in raised
    }


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
    """Put the tables, and what they lack, between the marks of a page. Rows of the page stay where no result here has
    that fault or alert: others' drills have made them. Raises `UserError` for a page without marks."""
    text = page.read_text()
    head, begin, tail = text.partition(BEGIN)
    old_text, end, foot = tail.partition(END)
    if not begin or not end:
        raise UserError("the page has no place for the table", seen=page, cure=f"write the lines {BEGIN} and {END}")
    own_results = tuple(results)
    old_rows = {line.split("|")[1].strip(): line for line in old_text.splitlines() if line.startswith("| ")}
    fault_lines, fault_lack = _table(_HEAD, scenarios(), old_rows | fault_rows(own_results))
    alert_lines, alert_lack = _table(_ALERTS_HEAD, alerts(), old_rows | alert_rows(own_results))
    paragraphs = [
        fault_lines, f"Faults without a result: {fault_lack}.",
        alert_lines, f"Alerts that none of these drills has raised: {alert_lack}.",
    ]  # fmt: skip
    wrapped = [one if one.startswith("|") else textwrap.fill(one, 120, break_on_hyphens=False) for one in paragraphs]
    page.write_text("\n\n".join((head + BEGIN, *wrapped, END + foot)))


def _table(head: Sequence[str], names: Iterable[str], rows: Mapping[str, str]) -> tuple[str, str]:
    """Return the table of the names that have a row, and the names that have none."""
    all_names = tuple(names)
    lines = [_row(head), _row("---" for _ in head), *(rows[name] for name in all_names if name in rows)]
    return "\n".join(lines), ", ".join(sorted(name for name in all_names if name not in rows)) or "none"


def _is_page(name: str) -> bool:
    rule = alerts().get(name)
    return rule is None or rule.severity == "page"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

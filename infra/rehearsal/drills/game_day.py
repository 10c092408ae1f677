"""The page of a game day: each fault over all kept drills, as HTML for people, Markdown and JSON for programs."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from markupsafe import Markup

from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.rehearsal.drills.judge import DrillResult
from infra.report.page import new_environment
from infra.spec.drills.scenarios import Scenario, scenarios
from trainer.contract.frozen import Frozen

HTML, MARKDOWN, JSON = "game-day.html", "game-day.md", "game-day.json"
_HEAD = (
    "fault", "drills", "as expected", "seen by", "seen, s", "page, s", "action", "new commit or end, s", "lost steps",
    "USD", "same losses",
)  # fmt: skip


class Spread(Frozen):
    """A distribution in two numbers: median, and the 95th percentile by the nearest rank, which is the greatest value
    of fewer than 20."""

    count: int
    median: float
    p95: float

    @property
    def text(self) -> str:
        """Return it for people; of a single value that value alone."""
        return f"{self.median:.0f}" if self.count == 1 else f"{self.median:.0f} / {self.p95:.0f}"


class FaultDay(Frozen):
    """What the drills of one fault have shown. Seconds count from the strike."""

    fault: str
    what: str
    drills: int
    as_expected: int
    seen_by: dict[str, int]
    """Who wrote the first sign -> number of drills; `nobody`: the record has no sign."""
    seen_s: Spread | None
    pages: dict[str, Spread]
    """Alerts of severity `page` that fired."""
    actions: dict[str, int]
    caught_up_s: Spread | None
    committed_s: Spread | None
    """Until a new step was committed, or until the end that the fault must bring."""
    never_committed: int
    """Drills after which neither came."""
    lost_steps: Spread
    usd: Spread
    total_usd: Decimal
    compared_steps: int
    """Steps that its campaigns trained a second time, by whichever fault, with both losses known."""
    equal_steps: int
    """Of those, the steps whose loss is the first one's, bit for bit."""
    unclean: int
    """Drills that left something behind, or whose certificate is missing."""
    problems: dict[str, int]
    days: tuple[str, str]

    @property
    def same_losses(self) -> str:
        """Return the equality with the undisturbed run of the same steps, in words."""
        if self.compared_steps:
            return f"{self.equal_steps:,} of {self.compared_steps:,}"
        return "not compared" if self.lost_steps.p95 else "none repeated"


class GameDay(Frozen):
    """All faults, and what no drill has shown."""

    made: datetime
    faults: tuple[FaultDay, ...]
    unexercised: dict[str, str]
    """Scenarios without a drill -> what happens in them."""
    silent_alerts: dict[str, str]
    """Alerts of severity `page` that no drill has raised -> what they say."""
    compared_steps: int
    equal_steps: int
    """As each fault has them, but each campaign once."""

    @property
    def drills(self) -> int:
        return sum(fault.drills for fault in self.faults)

    @property
    def as_expected(self) -> int:
        return sum(fault.as_expected for fault in self.faults)

    @property
    def total_usd(self) -> Decimal:
        return sum((fault.total_usd for fault in self.faults), Decimal(0))


def spread(values: Iterable[float]) -> Spread | None:
    """Return median and 95th percentile; None of no values."""
    ascending = sorted(values)
    if not ascending:
        return None
    middle = len(ascending) // 2
    median = ascending[middle] if len(ascending) % 2 else (ascending[middle - 1] + ascending[middle]) / 2
    return Spread(count=len(ascending), median=median, p95=ascending[math.ceil(0.95 * len(ascending)) - 1])


def game_day(results: Sequence[DrillResult], made: datetime) -> GameDay:
    """Return what all these drills have shown, the faults in the order of their table."""
    by_fault: dict[str, list[DrillResult]] = {}
    for result in results:
        by_fault.setdefault(result.fault, []).append(result)
    fired_alerts = {name for result in results for name in result.alerts}
    compared_steps, equal_steps = _equality(results)
    # A fault that a later version has renamed stays on the page.
    order = [*scenarios(), *sorted(by_fault.keys() - scenarios().keys())]
    return GameDay(
        made=made,
        faults=tuple(_fault_day(name, by_fault[name], scenarios().get(name)) for name in order if name in by_fault),
        unexercised={name: scenario.sentence for name, scenario in scenarios().items() if name not in by_fault},
        silent_alerts={
            name: rule.summary
            for name, rule in alerts().items()
            if rule.severity == "page" and name not in fired_alerts
        },
        compared_steps=compared_steps,
        equal_steps=equal_steps,
    )


def write_game_day(folder: Path, day: GameDay) -> list[Path]:
    """Write the three files and return their paths. Raises `UserError` without a drill, or where that is not
    possible."""
    if not day.faults:
        raise UserError("no drill has left a result", seen="no results", cure="run `bivouac drill FAULT…` first")
    texts = {HTML: html(day), MARKDOWN: markdown(day), JSON: json.dumps(day.model_dump(mode="json"), indent=1) + "\n"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as error:
        detail = f"{error.filename}: {error.strerror}"
        raise UserError("the game day cannot be written", seen=detail, cure="choose a folder of yours") from error
    return [folder / name for name in texts]


def html(day: GameDay) -> str:
    """Return one self-contained HTML file, in the style of a campaign's report."""
    environment = new_environment()
    style, _, _ = environment.loader.get_source(environment, "style.css")  # type: ignore[union-attr]
    environment.filters |= {
        "counted": counted,
        "stamp": lambda instant: f"{instant:%Y-%m-%d %H:%M} UTC",
        # A summary has places for Prometheus' values, which a rule that never fired does not have.
        "plain": lambda summary: re.sub(r"\{\{.*?\}\}", "…", summary),
    }
    return environment.get_template("game-day.html.j2").render(day=day, style=Markup(style))


def markdown(day: GameDay) -> str:
    """Return the same table as Markdown."""
    lines = [
        f"# Game day, {day.made:%Y-%m-%d}",
        "",
        f"{day.drills} drills of {len(day.faults)} faults; {day.as_expected} went as expected. "
        "Two numbers are the median and the 95th percentile.",
        "",
        _row(_HEAD),
        _row("---" for _ in _HEAD),
        *(_row(_cells(fault)) for fault in day.faults),
        "",
        f"Never exercised: {', '.join(day.unexercised) or 'none'}.",
        "",
        f"Alerts that page and that no drill has raised: {', '.join(day.silent_alerts) or 'none'}.",
        "",
    ]
    for fault in day.faults:
        lines += [f"- {fault.fault}: {problem} ({count} times)" for problem, count in fault.problems.items()]
    return "\n".join(lines).rstrip() + "\n"


def counted(counts: dict[str, int]) -> str:
    """Return names with their numbers; of one name the name alone."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _fault_day(name: str, results: Sequence[DrillResult], scenario: Scenario | None) -> FaultDay:
    compared_steps, equal_steps = _equality(results)
    pages: dict[str, list[float]] = {}
    for result in results:
        for alert, seconds in result.alerts.items():
            rule = alerts().get(alert)
            if rule is None or rule.severity == "page":
                pages.setdefault(alert, []).append(seconds)
    return FaultDay(
        fault=name,
        what=scenario.what if scenario is not None else "this version has no such fault",
        drills=len(results),
        as_expected=sum(not result.problems for result in results),
        seen_by=_counts(result.sign_by or "nobody" for result in results),
        seen_s=_spread_of(results, lambda result: result.sign_s),
        pages={alert: _certain(seconds) for alert, seconds in sorted(pages.items())},
        actions=_counts(result.action for result in results),
        caught_up_s=_spread_of(results, lambda result: result.caught_up_s),
        committed_s=_spread_of(
            results, lambda result: result.committed_s if result.ended_s is None else result.ended_s
        ),
        never_committed=sum(result.committed_s is None and result.ended_s is None for result in results),
        lost_steps=_certain([result.lost_steps for result in results]),
        usd=_certain([float(result.lost_usd) for result in results]),
        total_usd=sum((result.lost_usd for result in results), Decimal(0)),
        compared_steps=compared_steps,
        equal_steps=equal_steps,
        unclean=sum(result.left is None or bool(result.left) for result in results),
        problems=_counts(problem for result in results for problem in result.problems),
        days=(min(result.day for result in results), max(result.day for result in results)),
    )


def _equality(results: Sequence[DrillResult]) -> tuple[int, int]:
    """Return the compared and the equal steps of these drills' campaigns, each once."""
    campaigns = {result.campaign: result for result in results if result.compared_steps}
    compared_steps = sum(result.compared_steps for result in campaigns.values())
    return compared_steps, sum(result.equal_steps for result in campaigns.values())


def _spread_of(results: Sequence[DrillResult], value: Callable[[DrillResult], float | None]) -> Spread | None:
    return spread(seconds for result in results if (seconds := value(result)) is not None)


def _certain(values: Sequence[float]) -> Spread:
    distribution = spread(values)
    assert distribution is not None, "a fault has at least one drill"
    return distribution


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _cells(fault: FaultDay) -> tuple[str, ...]:
    pages = ", ".join(f"{name} {spread.text}" for name, spread in fault.pages.items()) or "none"
    return (
        fault.fault,
        str(fault.drills),
        str(fault.as_expected),
        counted(fault.seen_by),
        "" if fault.seen_s is None else fault.seen_s.text,
        pages,
        counted(fault.actions),
        "never" if fault.committed_s is None else fault.committed_s.text,
        fault.lost_steps.text,
        f"{fault.total_usd:.2f}",
        fault.same_losses,
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

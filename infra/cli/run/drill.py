"""`bivouac drill NAME…`: the stock rehearsal with these faults, and what followed held against what is expected."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra import target
from infra.cli.answers import aside, write_json
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.errors import UserError
from infra.spec.drills.scenarios import Scenario, scenarios


def drill_command(
    names: list[str] | None,
    draws: int,
    seed: int,
    show_list: bool,
    page: Path | None,
    console: Console,
    *,
    report: Path | None = None,
    as_json: bool = False,
) -> int:
    """List the scenarios, or run some and return 1 if an expectation does not hold; then, or alone, write the page of a
    game day into `report`. Raises `UserError` for an unknown name, or none."""
    if show_list:
        return _list(console, as_json)
    if unknown := sorted(set(names or ()) - scenarios().keys()):
        raise UserError("no drill of this name", seen=", ".join(unknown), cure=f"one of {', '.join(scenarios())}")
    if refusals := {name: scenarios()[name].absent_because for name in names or () if scenarios()[name].absent_because}:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UserError("a rehearsal cannot strike with it", seen=reasons, cure="leave it out")
    if names and all(scenarios()[name].stage == "teardown" for name in names):
        cure = "name one of the training before it, such as rank-killed"
        raise UserError("nothing says when such a campaign may end", seen=", ".join(names), cure=cure)
    if not names and not draws and page is None:
        if report is not None:
            return _report(report, console, as_json)
        raise UserError("no drill was named", cure="`bivouac drill --list` shows them")
    distinct_names, progress = list(dict.fromkeys(names or ())), aside(console, as_json)
    drill_report = target.drill(distinct_names, draws, seed, page, lambda line: say(progress, line))
    if as_json:
        write_json(console, drill_report.rows)
    else:
        for line in drill_report.lines:
            say(console, line)
    if report is not None:
        _report(report, progress, as_json=False)
    return int(drill_report.is_missed)


def _report(folder: Path, console: Console, as_json: bool) -> int:
    paths = target.game_day(folder)
    if as_json:
        write_json(console, [str(path) for path in paths])
    else:
        say(console, f"the game day is in {', '.join(map(str, paths))}")
    return 0


def _list(console: Console, as_json: bool) -> int:
    if as_json:
        write_json(console, {name: scenario.model_dump(mode="json") for name, scenario in scenarios().items()})
        return 0
    table = Listing("fault", "~what happens", "~what is expected", has_rule=True)
    for name, scenario in scenarios().items():
        table.row(name, scenario.what, _expected(scenario))
    table.show(console)
    return 0


def _expected(scenario: Scenario) -> str:
    if scenario.absent_because:
        return f"not struck in a rehearsal: {scenario.absent_because}"
    expect = scenario.expect
    end_text = f"the attempt ends ({expect.failure})" if expect.failure else "the attempt ends"
    parts = [end_text if expect.attempts else "the attempt goes on", *expect.events]
    parts.append(f"alert {', '.join(expect.alerts)}" if expect.alerts else "no alert that pages")
    if expect.seen_within_s is not None:
        parts.append(f"seen within {expect.seen_within_s:.0f} s")
    if expect.outcome is not None:
        parts.append(f"the training ends as {expect.outcome} within {expect.ends_within_s:.0f} s")
    elif expect.committed_within_s is None:
        parts.append(f"nothing is left within {expect.ends_within_s:.0f} s")
    else:
        parts.append(f"a new step is committed within {expect.committed_within_s:.0f} s")
    return ", ".join(parts)

"""`bivouac plan SPEC`: cost, time and checkpoints of the campaign. No network."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import Checked, checked
from infra.cli.prepare.summary import summary
from infra.cli.rendering import print_plan
from infra.console.plain_console import say
from infra.errors import UserError
from infra.plan.checks import failed
from infra.plan.plan import Plan, make_plan


def plan_command(path: Path, json: bool, console: Console) -> int:
    """Print a plan, if one can be made. Exit code 0, or 64 when the spec has errors. `json`: one object on stdout: the
    plan without errors (`Plan.model_validate` reads it back), else the findings as `bivouac check` prints them."""
    check = checked(path)
    bad, plan = failed(check.findings), _plan(check)
    if json and plan is not None and not bad:
        write_json(console, plan.model_dump())
        return 0
    if plan is not None and check.spec is not None and not json:
        for word, sentence in summary(plan, check.spec):
            say(console, f"{word:<8} {sentence}")
        console.print()
        print_plan(console, plan)
        console.print()
    show(path, check.findings, json, console)
    return UserError.exit_code if bad else 0


def _plan(check: Checked) -> Plan | None:
    """Return the plan, None if the spec's errors leave no layout."""
    if check.spec is None or check.facts is None:
        return None
    try:
        return make_plan(check.spec, check.facts)
    except UserError:
        if failed(check.findings):
            return None
        raise

"""`bivouac preview SPEC`: what `run` would change in AWS now, and the drift. Reads only, also beside a driver."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from infra import target
from infra.cli.answers import write_json
from infra.cli.options import site_steps, stderr
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import checked
from infra.errors import UserError
from infra.plan.checks import failed
from infra.plan.checks.finding import Level
from infra.plan.plan import make_plan

_COLOUR = {Level.ERROR: "red", Level.WARNING: "yellow", Level.INFO: "dim"}


def preview_command(
    path: Path,
    as_json: bool,
    console: Console,
    *,
    as_markdown: bool = False,
    old_spec: Path | None = None,
    look_inside: bool = True,
) -> int:
    """Print a preview. Exit code 0: nothing to change, 2: changes, 64: refused, or an error by a rule. `before`: the
    old spec, for the change of the bill. `inside`: also look into the cluster."""
    check = checked(path)
    if failed(check.findings) or check.spec is None or check.facts is None:
        if as_markdown:
            from infra.preview.markdown import checks_comment

            console.file.write(checks_comment(path.name, check.findings))
        else:
            show(path, check.findings, as_json, console)
        return UserError.exit_code
    old = None if old_spec is None else checked(old_spec)
    old_plan = make_plan(old.spec, old.facts) if old is not None and old.spec and old.facts else None
    target.enter_for(check.spec, site_steps(stderr))
    from infra.engine import explain
    from infra.preview import markdown, preview
    from infra.preview.read_only import read_only_context

    try:
        context = read_only_context(check.spec, make_plan(check.spec, check.facts), stderr)
        with context.progress.stage("preview", "the stacks against AWS and against the spec; nothing is touched"):
            result = preview.preview(context, old_plan, look_inside=look_inside)
    except UserError as error:
        if not as_markdown:
            raise
        console.file.write(markdown.refusal_comment(check.spec.campaign, error))
        return error.exit_code
    if as_json:
        write_json(console, preview.as_facts(result))
    elif as_markdown:
        console.file.write(markdown.comment(result))
    else:
        if any(finding.drifted for finding in result.looks):
            explain.print_drift(console, result.looks, context.spec.campaign)
        explain.print_plan(console, result.looks)
        explain.print_costs(console, result.costs)
        for line in result.changed or ():
            console.print(f"  {line.month_usd:+12,.2f} USD a month against the spec before: {line.what}")
        for finding in result.findings:
            finding_text = f"{finding.resource}: {finding.message}; seen: {finding.seen}; cure: {finding.cure}"
            console.print(f"[{_COLOUR[finding.level]}]{finding.level.value}[/] {escape(finding_text)}", soft_wrap=True)
    return result.exit_code

"""`bivouac preview SPEC`: what `run` would do to AWS now, and what drifted. Reads only; a driver may be at work."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra import target
from infra.checks import failed
from infra.commands.check import checked, refuse, show, write_json
from infra.errors import UserError
from infra.plan import make_plan

CHANGES = 2
"""Exit code when there is something to change."""


def preview_command(path: Path, as_json: bool, console: Console) -> int:
    """Exit code 0: nothing to change, 2: changes, 64: refused."""
    seen = checked(path)
    if failed(seen.findings) or seen.spec is None or seen.facts is None:
        show(path, seen.findings, as_json, console)
        return UserError.exit_code
    aside = Console(stderr=True, highlight=False)
    target.enter_for(seen.spec, lambda step: aside.print(f"{'site':<10} {step}"))
    from infra.lifecycle import explain
    from infra.lifecycle.looking import look_at_stacks, looking, refuse_other_spec
    from infra.lifecycle.refusal import refusals, standing

    context = looking(seen.spec, make_plan(seen.spec, seen.facts), aside)
    where = standing(context)
    try:
        refuse_other_spec(context)
        if where.falling:
            raise UserError(
                "its teardown has begun: nothing is made any more",
                seen=context.spec.campaign,
                cure=f"`bivouac down {context.spec.campaign}` continues it; a new campaign needs another name",
            )
    except UserError as error:
        return refuse(error, as_json, console)
    with context.progress.stage("preview", "the stacks against AWS and against the spec; nothing is touched"):
        looks = look_at_stacks(context)
    refused = tuple(one for each in looks for one in refusals(each, where, context.spec.campaign))
    costs = explain.cost_changes(looks, context.plan)
    drifted, planned = (any(rows) for rows in ([x.drifted for x in looks], [x.planned for x in looks]))
    if as_json:
        money = [{"what": one.what, "usd_per_hour": str(one.usd_per_hour), "usd_per_month": str(one.usd_per_month),
                  "usd_per_campaign": str(one.usd_per_campaign)} for one in costs]  # fmt: skip
        write_json(console, {"campaign": context.spec.campaign, **explain.as_facts(looks, refused), "costs": money})
    else:
        if drifted:
            explain.print_drift(console, looks, context.spec.campaign)
        explain.print_plan(console, looks)
        explain.print_costs(console, costs)
        explain.print_refusals(console, refused)
    if refused:
        return UserError.exit_code
    return CHANGES if planned or drifted else 0

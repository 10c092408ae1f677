"""`bivouac relaunch NAME`: a new attempt on the warm cluster with a mended spec or code, then on to the end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra import target
from infra.campaign.relaunch import committed_step, difference, refuse_unfit, relaunch, taken_up
from infra.campaign.stages import run_campaign
from infra.cli.answers import aside, ending, write_json
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import checked
from infra.cli.records import record_of
from infra.console.plain_console import say
from infra.console.terminal import ask_yes
from infra.errors import UserError
from infra.plan.checks import Level, failed
from infra.plan.plan import Plan, make_plan
from infra.session.session import opened, stored_plan, stored_spec
from infra.spec.campaign import Spec


def relaunch_command(
    campaign: str, region: str, path: Path | None, now: bool, consent: bool, console: Console, *, as_json: bool = False
) -> int:
    """Relaunch; exit code as of `run`. Raises `UserError` for what cannot be relaunched, `LeaseHeld` while a driver
    lives."""
    output, console = console, aside(console, as_json)
    store = record_of(campaign, region)
    old = stored_spec(store)
    new, plan = (old, stored_plan(store, old)) if path is None else _mended_spec(path, old, console)
    diff = difference(old, new)
    state = store.state()
    going_on = path is not None and taken_up(state, diff, now)
    if going_on:
        console.print(f"configuration {state.version}, with this spec, is already in force: continuing with it")
    else:
        refuse_unfit(state, diff, committed_step(store, state), now)
    for change in diff:
        say(console, f"{change.field}: {change.old} -> {change.new}")
    if target.spends(new) and not consent and not going_on and not ask_yes("Relaunch?", console):
        raise UserError("nothing was relaunched", seen="no", cure="answer yes, or give --yes")
    target.give_inputs(new)
    with opened(old, stored_plan(store, old), console, target.site_facts()) as context:
        if not going_on:
            relaunch(context, new, plan, diff, now, target.renewal(old))
        run_campaign(context, steps=target.steps(old))
        outcome = context.state().outcome
        if as_json:
            write_json(output, ending(context))
        say(console, f"report: {context.results / 'report.html'}")
        return 0 if outcome == "done" else 75


def _mended_spec(path: Path, old: Spec, console: Console) -> tuple[Spec, Plan]:
    check = checked(path, fetches=lambda text: say(console, text))
    if failed(check.findings) or check.spec is None or check.facts is None:
        show(path, check.findings, False, console)
        raise UserError("the mended spec cannot be run", seen=path, cure="mend what is listed above")
    show(path, tuple(f for f in check.findings if f.level is Level.WARNING), False, console)
    if check.spec.campaign != old.campaign:
        raise UserError("this is another campaign's spec", seen=check.spec.campaign, cure=f"campaign: {old.campaign}")
    return check.spec, make_plan(check.spec, check.facts)

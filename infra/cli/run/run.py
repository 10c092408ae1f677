"""`bivouac run SPEC`: the whole campaign, continued from where it is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra import target
from infra.cli.answers import aside, ending, write_json
from infra.cli.options import site_steps
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import checked, with_answers, with_memory
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.console.terminal import ask_yes
from infra.errors import NO_GOLDEN, TemporaryError, UserError
from infra.folders import cache_root, refuse_unwritable, results_folder
from infra.plan.checks import Level, failed
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import environment
from infra.record import rehearsals
from infra.record.events import CampaignState, Event
from infra.record.payloads.stages import StageFinished
from infra.session.context import Context
from infra.spec.campaign import Spec


def run_command(path: Path, consent: bool, console: Console, *, as_json: bool = False, detach: bool = False) -> int:
    """Run a campaign; exit code 0 only when it ended with a proven checkpoint and a clean
    certificate, or with `detach` when training runs."""
    output, console = console, aside(console, as_json)
    check = with_memory(checked(path, fetches=lambda text: say(console, text)), console)
    if failed(check.findings) or check.spec is None or check.facts is None:
        show(path, check.findings, as_json, output)
        return UserError.exit_code
    spec, plan = check.spec, make_plan(check.spec, check.facts)
    refuse_unwritable(results_folder(spec.campaign, spec.account, spec.region), "BIVOUAC_RESULTS")
    refuse_unwritable(cache_root(), "BIVOUAC_CACHE")
    target.enter_for(spec, site_steps(console), anywhere=True)
    check = with_answers(check, console)
    if failed(check.findings):
        show(path, check.findings, as_json, output)
        return UserError.exit_code
    show(path, tuple(f for f in check.findings if f.level is not Level.INFO), False, console)
    _confirm(spec, plan, consent, console)
    return _drive(spec, plan, console, output if as_json else None, detach)


def _confirm(spec: Spec, plan: Plan, consent: bool, console: Console) -> None:
    """Ask before money is spent; a rehearsal spends none."""
    total = plan.totals.usd.value
    console.print(
        f"{'plan':<10} {plan.layout.nodes} x {spec.nodes.instance_type}, {plan.layout.world_size} ranks, "
        f"{spec.job.steps} steps, checkpoint every {plan.checkpoint.every_steps}; on AWS {total} USD"
    )
    if target.spends(spec):
        say(console, f"{'rehearsal':<10} {rehearsals.sentence(spec)}")
    if target.spends(spec) and not consent and not ask_yes("Spend it?", console):
        raise UserError("nothing was started", seen="no", cure="answer yes, or give --yes")


def _drive(spec: Spec, plan: Plan, console: Console, machine: Console | None, detach: bool) -> int:
    """Drive the campaign. `machine`: console for the result as JSON."""
    # Pulumi and boto3 take a second to import: only a run that really starts pays for it.
    from infra.campaign.stages import run_campaign
    from infra.session.session import opened

    with opened(spec, plan, console, target.site_facts()) as context:
        if context.state().ended:
            end_text = f"campaign {spec.campaign} has ended: see {context.results}, or give the next one a new name"
            say(console, end_text)
            if machine is not None:
                write_json(machine, ending(context))
            return _exit_code(context.state())
        if not run_campaign(context, detach, target.steps(spec)):
            if machine is not None:
                write_json(machine, ending(context) | {"detached": True})
            _say_who_goes_on(context, console)
            return 0
        if machine is not None:
            write_json(machine, ending(context))
        _split(context.store.events()).show(console)
        say(console, f"report: {context.results / 'report.html'}")
        state = context.state()
        if state.outcome != "done":
            console.print(f"training ended as {state.outcome}: see the report")
        if state.archive is None:
            console.print("it ended without a proven checkpoint: see the report")
        missed_faults = target.missed_faults(spec)
        for fault in missed_faults:
            fault_text = f"training ended before this fault struck: {{{fault}}}; give it more steps, or an earlier step"
            say(console, f"{'rehearsal':<10} {fault_text}")
        return TemporaryError.exit_code if missed_faults else _exit_code(state)


def _say_who_goes_on(context: Context, console: Console) -> None:
    """Print what happens without a driver, and how to come back."""
    name, place = context.spec.campaign, environment(context.spec)
    latest = f"; it begins at the latest half an hour after the deadline, {context.deadline:%Y-%m-%d %H:%M} UTC"
    for line in (
        "training runs; this driver leaves, and the steward carries training to its archive",
        f"{place.ender}{latest if place.makes_cluster else ''}",
        f"to look: `bivouac status {name}`; to come back: the same `bivouac run`; to end it now: `bivouac down {name}`",
    ):
        say(console, f"{'detached':<10} {line}")


def _exit_code(state: CampaignState) -> int:
    """Return 0 only if training reached its last step and its checkpoint is proven in the archive; all campaigns are
    torn down and certified."""
    if state.archive is None:
        return NO_GOLDEN
    return 0 if state.outcome == "done" else TemporaryError.exit_code


def _split(events: tuple[Event, ...]) -> Listing:
    """Return the seconds by stage."""
    table = Listing("stage", "seconds", title="time by stage")
    total = 0.0
    for event in events:
        if isinstance(event.payload, StageFinished):
            total += event.payload.seconds
            table.row(event.payload.stage, f"{event.payload.seconds:.1f}")
    table.row("all", f"{total:.1f}")
    return table

"""`bivouac down NAME`: stop, archive what is sound, tear down, certify. Needs only the name and credentials."""

from __future__ import annotations

import time

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console

from infra import target
from infra.campaign import launch_budget
from infra.campaign.stages import StageStep, run_step
from infra.cli.answers import aside, ending, write_json
from infra.cli.end.consent import ask, stakes
from infra.cli.end.orphans import Forgotten, orphans_command
from infra.cli.records import record_of
from infra.console.plain_console import say
from infra.errors import NO_GOLDEN, UserError, first_line
from infra.plan.survey import environment
from infra.preview.read_only import read_only_context
from infra.record import borrowing
from infra.record.events import Stage
from infra.record.holder import Holder
from infra.record.store import STOP, CampaignStore
from infra.session.context import Context
from infra.session.session import DRIVER_LEASE, holder_of, opened, stored_plan, stored_spec


def down_command(
    campaign: str, region: str, abandon: bool, console: Console, *, consent: bool, as_json: bool = False
) -> int:
    """End a campaign after a yes. Exit code 0, or 73 if it ended without a proven checkpoint. Of one that is over
    nothing is changed: neither record nor report, whose times and money would count another teardown."""
    output, console = console, aside(console, as_json)
    try:
        store = record_of(campaign, region)
    except UserError as unknown:
        if not abandon or borrowing.recall(campaign) is not None:
            raise
        # Nothing can be archived without its record: all that has its tag is removed.
        loss = (("lost", f"all that has the tag of {campaign}: without its record nobody knows what it holds"),)
        ask("Type its name to give it up", loss, console, consent=consent, flag=True, word=campaign)
        return orphans_command(region, True, as_json, output, Forgotten(campaign, True, unknown))
    spec = stored_spec(store)
    machine = output if as_json else None
    if store.state().over:
        advice = "" if spec.borrows_nodes else f"; `bivouac sweep {campaign}` looks again for leftovers"
        words = f"campaign {campaign} is over and stays as it is{advice}"
        say(console, words)
        return _report_end(read_only_context(spec, None, console), console, machine)
    question, word = ("Type its name to lose that", campaign) if abandon else ("Tear it down?", "")
    ask(question, stakes(store, spec, abandon, console), console, consent=consent, flag=abandon, word=word)
    if environment(spec).makes_cluster:
        target.have_engine()  # before anybody is asked to stop: this may be another machine than the driver's
    if not abandon:
        # Before the lease: a living driver stops the campaign, and we wait for its lease.
        ask_to_stop(store)
        _await_driver(store, console)
    with opened(spec, stored_plan(store, spec), console, target.site_facts()) as context:
        end(context, abandon)
        return _report_end(context, console, machine)


def _report_end(context: Context, console: Console, machine: Console | None) -> int:
    """Say how it ended, and return the exit code. `machine`: console for the end as JSON."""
    if machine is not None:
        write_json(machine, ending(context))
    if context.state().ended_without_golden:
        console.print("it ended without a proven checkpoint: see the report")
        return NO_GOLDEN
    return 0


def ask_to_stop(store: CampaignStore) -> None:
    store.put_json(STOP, {"asked_by": str(Holder.this_process())})


def end(context: Context, abandon: bool = False) -> None:
    """End a campaign whose lease is ours: archive what is sound, tear down, certify, report."""
    try:
        launch_budget.note_fired(context)
    except (ClientError, BotoCoreError) as error:
        context.progress.note(f"whether a schedule of AWS's has ended the GPU nodes is not known: {first_line(error)}")
    context.outputs |= context.state().finished_stages
    if not abandon and _can_archive(context):
        _run(context, Stage.SUPERVISE, Stage.ARCHIVE)
    _tear_down(context, abandon)
    _run(context, Stage.CERTIFY, Stage.REPORT)


def _await_driver(store: CampaignStore, console: Console) -> None:
    """Wait, with a line every few seconds, until no living driver holds the campaign."""
    reported_at = 0.0
    while (holder := holder_of(store, DRIVER_LEASE)) is not None and holder.endswith("(living)"):
        if time.monotonic() - reported_at > 10.0:
            reported_at = time.monotonic()
            say(console, f"waiting for the driver to finish the campaign: {holder}")
        time.sleep(1.0)


def _can_archive(context: Context) -> bool:
    """Return whether training has begun and nothing is archived, copied as it is, or torn down yet."""
    state = context.state()
    safe = state.archive is not None or (state.closed and state.copied_as_it_is)
    return bool(state.attempts) and not safe and Stage.TEARDOWN not in state.finished_stages


def _tear_down(context: Context, abandon: bool) -> None:
    take_down = target.end(context.spec)
    step = next(step for step in target.steps(context.spec) if step.stage is Stage.TEARDOWN)
    run_step(context, StageStep(step.stage, step.purpose, lambda c: take_down(c, abandon)))


def _run(context: Context, *stages: Stage) -> None:
    for step in target.steps(context.spec):
        if step.stage in stages:
            run_step(context, step)

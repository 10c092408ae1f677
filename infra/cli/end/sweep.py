"""`bivouac sweep NAME`: shows leftovers of a torn down campaign; removes what is provably its own after a yes."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import typer
from rich.console import Console

from infra import target
from infra.campaign.stages import STEPS, run_step
from infra.cli.answers import write_json
from infra.cli.end.orphans import Forgotten, orphans_command
from infra.cli.records import record_of
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.console.terminal import ask_yes
from infra.errors import NotProven, UserError
from infra.inventory import sweep
from infra.inventory.stakes import refuse_unproven
from infra.inventory.sweep import Leftover, Sight, Swept, rate_text, sum_text
from infra.record.events import Stage
from infra.record.identity import read_identity
from infra.record.payloads.base import data_of
from infra.record.payloads.stages import Abandoned
from infra.session.context import Context
from infra.session.session import opened, stored_plan, stored_spec


def clean_command(
    campaign: str | None, orphans: bool, consent: bool, abandon: bool, region: str, as_json: bool, console: Console
) -> int:
    """Sweep one campaign, or with `orphans` all dead campaigns of the account; return the exit code of that."""
    if orphans and abandon:
        raise typer.BadParameter("one campaign is given up at a time: bivouac sweep NAME --abandon")
    if orphans:
        return orphans_command(region, consent, as_json, console)
    if campaign is None:
        raise typer.BadParameter("give the name of a campaign, or --orphans")
    return sweep_command(campaign, region, consent, as_json, console, abandon)


def sweep_command(
    campaign: str, region: str, consent: bool, json: bool, console: Console, abandon: bool = False
) -> int:
    """Sweep a campaign. Exit code 0 when nothing is left, else 74. Raises `UserError` while it is alive. `abandon`:
    what may hold the only checkpoints goes too. Without a record only tags tell what is the campaign's."""
    try:
        store = record_of(campaign, region)
    except UserError as unknown:
        return orphans_command(region, consent, json, console, Forgotten(campaign, abandon, unknown))
    spec = stored_spec(store)
    target.refuse_standing(spec, "sweep")
    quiet = Console(file=io.StringIO()) if json else console
    # Takes the lease: a living driver still owns everything.
    with opened(spec, stored_plan(store, spec), quiet, target.site_facts()) as context:
        _refuse_alive(context, abandon)
        with context.progress.stage("sweep", f"what is left of {campaign}"):
            sight = sweep.look(context)
            if abandon:
                sight = replace(sight, left=tuple(replace(row, foreign="") for row in sight.left))
        _show(sight, quiet)
        leftovers = [row for row in sight.left if row.removable]
        swept = Swept((), ())
        if leftovers and (consent or (not json and ask_yes(f"Remove {len(leftovers)}?", console))):
            with context.progress.stage("sweep", f"removing {len(leftovers)}"):
                swept = sweep.remove(context, leftovers)
            for row, reason in swept.stuck:
                say(quiet, f"left: {row}: {reason}")
        certify = next(step for step in STEPS if step.stage is Stage.CERTIFY)
        refusal: NotProven | None = None
        try:
            run_step(context, certify)
        except NotProven as error:
            refusal = error
        if json:
            rows = _rows(sight) | {
                "removed": [str(row) for row in swept.removed],
                "stuck": [{"what": str(row), "why": reason} for row, reason in swept.stuck],
                "certificate": data_of(context.state().certificate),
            }
            write_json(console, rows)
            return 0 if refusal is None else refusal.exit_code
        if refusal is not None:
            raise refusal
        return 0


def _refuse_alive(context: Context, abandon: bool = False) -> None:
    state = context.state()
    teardown_begun = Stage.TEARDOWN in state.finished_stages or any(
        getattr(event.payload, "stage", None) == Stage.TEARDOWN for event in context.store.events()
    )
    if not teardown_begun:
        raise UserError(
            f"campaign {context.spec.campaign} has not been torn down",
            seen=f"stages finished: {', '.join(state.finished_stages) or 'none'}",
            cure=f"`bivouac down {context.spec.campaign}` first; sweep removes only what that leaves",
        )
    # A teardown that was refused has removed nothing, and the file system may hold the only checkpoints.
    try:
        refuse_unproven(state, context.spec.campaign, read_identity(context.store))
    except NotProven:
        if not abandon:
            raise
        context.store.append(Abandoned(who=context.operator_arn))


def _show(sight: Sight, console: Console) -> None:
    if not sight.left and not sight.suspects:
        console.print("nothing is left")
    if sight.left:
        table = Listing("kind", "what", "~evidence", "created", ">USD/h", "~sweep")
        for row in sight.left:
            rate = rate_text(row.usd_per_hour)
            creation = f"{row.created:%Y-%m-%d %H:%M}" if row.created else "unknown"
            table.row(row.kind, row.thing.label, str(row.evidence), creation, rate, _fate(row))
        table.show(console)
        say(console, sum_text(row.usd_per_hour for row in sight.left))
    for suspect in sight.suspects:
        say(console, f"suspect, not touched: {suspect}")
    for kind, reason in sight.blind.items():
        say(console, f"could not look: {kind}: {reason}")


def _fate(row: Leftover) -> str:
    if row.foreign:
        return f"leaves it: of another campaign of this name, {row.foreign}: see `bivouac sweep --orphans`"
    return "removes it" if row.removable else "leaves it: not provably the campaign's, or removed by hand"


def _rows(sight: Sight) -> dict[str, Any]:
    return {
        "left": [
            {
                "kind": row.kind, "id": row.thing.id, "name": row.thing.name, "evidence": str(row.evidence),
                "created": row.created.isoformat() if row.created else None, "usd_per_hour": row.usd_per_hour,
                "removable": row.removable,
            }
            for row in sight.left
        ],
        "suspects": [str(row) for row in sight.suspects], "could_not_look": sight.blind,
    }  # fmt: skip

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
from infra.console.terminal import agreed
from infra.errors import NotProven, UserError
from infra.inventory import sweep
from infra.inventory.rates import shown, together
from infra.inventory.stakes import refuse_unproven
from infra.inventory.sweep import Left, Sight, Swept
from infra.record.events import Stage
from infra.record.identity import read_identity
from infra.record.payloads.stages import Abandoned
from infra.session.context import Context
from infra.session.session import opened, stored_plan, stored_spec


def clean_command(
    campaign: str | None, orphans: bool, yes: bool, abandon: bool, region: str, as_json: bool, console: Console
) -> int:
    """Sweep one campaign, or with `orphans` all dead campaigns of the account; return the exit code of that."""
    if orphans and abandon:
        raise typer.BadParameter("one campaign is given up at a time: bivouac sweep NAME --abandon")
    if orphans:
        return orphans_command(region, yes, as_json, console)
    if campaign is None:
        raise typer.BadParameter("give the name of a campaign, or --orphans")
    return sweep_command(campaign, region, yes, as_json, console, abandon)


def sweep_command(campaign: str, region: str, yes: bool, json: bool, console: Console, abandon: bool = False) -> int:
    """Sweep a campaign. Exit code 0 when nothing is left, else 74. Raises `UserError` while it is alive. `abandon`:
    what may hold the only checkpoints goes too. Without a record only tags tell what is the campaign's."""
    try:
        store = record_of(campaign, region)
    except UserError as unknown:
        return orphans_command(region, yes, json, console, Forgotten(campaign, abandon, unknown))
    spec = stored_spec(store)
    quiet = Console(file=io.StringIO()) if json else console
    # Takes the lease: a living driver still owns everything.
    with opened(spec, stored_plan(store, spec), quiet, target.about()) as context:
        _refuse_alive(context, abandon)
        with context.progress.stage("sweep", f"what is left of {campaign}"):
            seen = sweep.look(context)
            if abandon:
                seen = replace(seen, left=tuple(replace(one, foreign="") for one in seen.left))
        _show(seen, quiet)
        wanted = [one for one in seen.left if one.removable]
        swept = Swept((), ())
        if wanted and (yes or (not json and agreed(f"Remove {len(wanted)}?", console))):
            with context.progress.stage("sweep", f"removing {len(wanted)}"):
                swept = sweep.remove(context, wanted)
            for one, why in swept.stuck:
                say(quiet, f"left: {one}: {why}")
        certify = next(step for step in STEPS if step.stage is Stage.CERTIFY)
        refused: NotProven | None = None
        try:
            run_step(context, certify)
        except NotProven as error:
            refused = error
        if json:
            rows = _rows(seen) | {
                "removed": [str(one) for one in swept.removed],
                "stuck": [{"what": str(one), "why": why} for one, why in swept.stuck],
                "certificate": context.state().certificate,
            }
            write_json(console, rows)
            return 0 if refused is None else refused.exit_code
        if refused is not None:
            raise refused
        return 0


def _refuse_alive(context: Context, abandon: bool = False) -> None:
    state = context.state()
    begun = Stage.TEARDOWN in state.finished_stages or any(
        getattr(event.payload, "stage", None) == Stage.TEARDOWN for event in context.store.events()
    )
    if not begun:
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


def _show(seen: Sight, console: Console) -> None:
    if not seen.left and not seen.suspects:
        console.print("nothing is left")
    if seen.left:
        table = Listing("kind", "what", "~evidence", "created", ">USD/h", "~sweep")
        for one in seen.left:
            rate, created = shown(one.usd_per_hour), f"{one.created:%Y-%m-%d %H:%M}" if one.created else "unknown"
            table.row(one.kind, one.thing.label, str(one.evidence), created, rate, _fate(one))
        table.show(console)
        say(console, together(one.usd_per_hour for one in seen.left))
    for suspect in seen.suspects:
        say(console, f"suspect, not touched: {suspect}")
    for kind, why in seen.blind.items():
        say(console, f"could not look: {kind}: {why}")


def _fate(one: Left) -> str:
    if one.foreign:
        return f"leaves it: of another campaign of this name, {one.foreign}: see `bivouac sweep --orphans`"
    return "removes it" if one.removable else "leaves it: not provably the campaign's, or removed by hand"


def _rows(seen: Sight) -> dict[str, Any]:
    return {
        "left": [
            {
                "kind": one.kind, "id": one.thing.id, "name": one.thing.name, "evidence": str(one.evidence),
                "created": one.created.isoformat() if one.created else None, "usd_per_hour": one.usd_per_hour,
                "removable": one.removable,
            }
            for one in seen.left
        ],
        "suspects": [str(one) for one in seen.suspects],
        "could_not_look": seen.blind,
    }  # fmt: skip

"""`bivouac repair NAME`: repairs what was changed or deleted by hand, as far as a living campaign allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from infra import target
from infra.cli.answers import aside, write_json
from infra.cli.records import record_of
from infra.console.terminal import agreed
from infra.errors import LeaseHeld, UserError
from infra.session.context import Context
from infra.session.session import opened, stored_plan, stored_spec

if TYPE_CHECKING:
    from infra.engine.drift import StackLook


def repair_command(campaign: str, region: str, yes: bool, console: Console, *, as_json: bool = False) -> int:
    """Repair; exit code 0 when no drift is left. Raises `UserError` with the reason if it is not allowed."""
    said = aside(console, as_json)
    store = record_of(campaign, region)
    spec = stored_spec(store)
    try:
        with opened(spec, stored_plan(store, spec), said, target.about()) as context:
            return _repair(context, yes, said, console if as_json else None)
    except LeaseHeld as error:
        raise LeaseHeld(
            error.what,
            seen=error.seen,
            cure="end that driver with Ctrl-C (the steward continues by itself), repair, then `bivouac run` again",
        ) from error


def _repair(context: Context, yes: bool, console: Console, machine: Console | None) -> int:
    """Repair. `machine`: console for the remaining drift as JSON."""
    from infra.campaign.repairs.repair import carry_out
    from infra.engine import explain
    from infra.engine.refusal import error_of, refusals, standing
    from infra.preview.read_only import look_at_stacks

    campaign, where = context.spec.campaign, standing(context)
    if where.falling or not where.begun:
        raise UserError(
            "there is nothing to repair",
            seen="its teardown has begun" if where.falling else "it was never begun",
            cure=f"`bivouac down {campaign}`" if where.falling else "bivouac run",
        )
    with context.progress.stage("look", "the stacks against AWS; nothing is touched"):
        looks = look_at_stacks(context)
    explain.print_drift(console, looks, campaign)
    explain.print_plan(console, looks)
    refused = tuple(one for each in looks for one in refusals(each, where, campaign))
    if refused:
        raise error_of(refused, campaign)
    begun = context.state().lost is not None  # by a driver that was killed in it, perhaps
    wrong = [each for each in looks if each.planned or each.drifted or (begun and each.stack == context.names.stack)]
    if not wrong:
        _answer(machine, campaign, (), looks)
        return 0
    if target.spends(context.spec) and not yes and not agreed("Do it?", console):
        raise UserError("nothing was repaired", seen="no", cure="answer yes, or give --yes")
    with context.progress.stage("repair", "refresh the state from AWS, then apply the spec"):
        carry_out(context, wrong)
    with context.progress.stage("look", "compare again"):
        again = look_at_stacks(context, {each.stack for each in wrong})
    explain.print_drift(console, again, campaign)
    _answer(machine, campaign, wrong, again)
    return 0 if not any(each.drifted or each.planned for each in again) else 1


def _answer(machine: Console | None, campaign: str, wrong: Sequence[StackLook], again: Sequence[StackLook]) -> None:
    from infra.engine import explain

    if machine is not None:
        repaired = [each.stack for each in wrong]
        write_json(machine, {"campaign": campaign, "repaired": repaired, **explain.as_facts(again, ())})

"""`bivouac repair NAME`: repairs what was changed or deleted by hand, as far as a living campaign allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from infra import target
from infra.cli.answers import aside, write_json
from infra.cli.records import record_of
from infra.console.terminal import ask_yes
from infra.errors import LeaseHeld, UserError
from infra.session.context import Context
from infra.session.session import opened, stored_plan, stored_spec

if TYPE_CHECKING:
    from infra.engine.drift import StackLook


def repair_command(campaign: str, region: str, consent: bool, console: Console, *, as_json: bool = False) -> int:
    """Repair; exit code 0 when no drift is left. Raises `UserError` with the reason if it is not allowed."""
    people = aside(console, as_json)
    store = record_of(campaign, region)
    spec = stored_spec(store)
    target.refuse_standing(spec, "repair")
    try:
        with opened(spec, stored_plan(store, spec), people, target.site_facts()) as context:
            return _repair(context, consent, people, console if as_json else None)
    except LeaseHeld as error:
        raise LeaseHeld(
            error.what,
            seen=error.seen,
            cure="end that driver with Ctrl-C (the steward continues by itself), repair, then `bivouac run` again",
        ) from error


def _repair(context: Context, consent: bool, console: Console, machine: Console | None) -> int:
    """Repair. `machine`: console for the remaining drift as JSON."""
    from infra.campaign.repairs.repair import carry_out
    from infra.engine import explain
    from infra.engine.refusal import error_of, refusals, standing
    from infra.preview.read_only import look_at_stacks

    campaign, position = context.spec.campaign, standing(context)
    if position.falling or not position.begun:
        raise UserError(
            "there is nothing to repair",
            seen="its teardown has begun" if position.falling else "it was never begun",
            cure=f"`bivouac down {campaign}`" if position.falling else "bivouac run",
        )
    with context.progress.stage("look", "the stacks against AWS; nothing is touched"):
        looks = look_at_stacks(context)
    explain.print_drift(console, looks, campaign)
    explain.print_plan(console, looks)
    reasons = tuple(reason for look in looks for reason in refusals(look, position, campaign))
    if reasons:
        raise error_of(reasons, campaign)
    midway = context.state().lost is not None  # by a driver that was killed in it, perhaps
    wrong = [look for look in looks if look.planned or look.drifted or (midway and look.stack == context.names.stack)]
    if not wrong:
        _answer(machine, campaign, (), looks)
        return 0
    if target.spends(context.spec) and not consent and not ask_yes("Do it?", console):
        raise UserError("nothing was repaired", seen="no", cure="answer yes, or give --yes")
    with context.progress.stage("repair", "refresh the state from AWS, then apply the spec"):
        carry_out(context, wrong)
    with context.progress.stage("look", "compare again"):
        later_looks = look_at_stacks(context, {look.stack for look in wrong})
    explain.print_drift(console, later_looks, campaign)
    _answer(machine, campaign, wrong, later_looks)
    return 0 if not any(look.drifted or look.planned for look in later_looks) else 1


def _answer(
    machine: Console | None, campaign: str, wrong: Sequence[StackLook], later_looks: Sequence[StackLook]
) -> None:
    from infra.engine import explain

    if machine is not None:
        stacks = [look.stack for look in wrong]
        write_json(machine, {"campaign": campaign, "repaired": stacks, **explain.as_facts(later_looks, ())})

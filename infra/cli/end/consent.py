"""The question before `bivouac down` ends or removes something, and what a person is shown to answer it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console

from infra import target
from infra.campaign import billing
from infra.cli.look.status import facts_of
from infra.console.plain_console import say
from infra.console.terminal import ask_yes, has_terminal
from infra.errors import NotProven, UserError
from infra.inventory.stakes import refuse_unproven
from infra.preview.read_only import read_only_context
from infra.record.identity import read_identity
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec


def ask(
    question: str, lines: Iterable[tuple[str, str]], console: Console, *, consent: bool, flag: bool, word: str = ""
) -> None:
    """Show the lines, which are made only now, and ask. Raise `UserError` unless the answer is yes, or `word` if given.

    `consent`: nothing is asked. `flag`: an option says as much as a yes where nobody can answer,
    without a terminal.
    """
    if consent or (flag and not has_terminal()):
        return
    if not has_terminal():
        cure = "give --yes, or run it on a terminal"
        raise UserError(f"nobody can answer: {question}", seen="standard input is no terminal", cure=cure)
    for label, text in lines:
        say(console, f"  {label:<8} {text}")
    if not ask_yes(question, console, word):
        raise UserError("nothing was changed", seen="no", cure=f"answer {word or 'yes'}, or give --yes")


def stakes(store: CampaignStore, spec: Spec, abandon: bool, console: Console) -> Iterator[tuple[str, str]]:
    """Yield what stands, how far training is, what an end would lose, and what the campaign costs."""
    facts, state = facts_of(store)
    live, bill = facts["live"], billing.bill(read_only_context(spec, None, console))
    yield spec.campaign, f"on {facts['target']}: {facts['stage']}; driver {facts['driver']}"
    yield "stands", bill.sentence(spec.campaign)
    price_note = "" if target.spends(spec) or spec.borrows_nodes else " on AWS; a rehearsal costs nothing"
    rate = (
        "nodes that others could use" if spec.borrows_nodes else f"{bill.bound}{24 * bill.usd_per_hour:,.2f} USD a day"
    )
    yield "keeping", f"{rate}, {facts['spent_usd']:,.2f} USD so far{price_note}"
    newest = max(state.newest_committed, live.get("committed_step", -1))
    commit_text = f"committed step {newest}" if newest >= 0 else "no committed checkpoint is known"
    training = facts["training"]
    step = f"step {training['step']} of {training['steps']}, " if training else ""
    yield "training", step + commit_text if state.attempts else "no attempt was launched"
    # The record hears of a commit at an attempt's end; a steward that looks has told of it already.
    newest_state = (
        state if newest == state.newest_committed else state.model_copy(update={"committed_at_finish": newest})
    )
    try:
        refuse_unproven(newest_state, spec.campaign, read_identity(store))
        loss = "nothing: the archive has it" if state.archive else "nothing: no attempt left anything to archive"
    except NotProven as error:
        loss = f"all that is not archived: {error.seen}"
        if not abandon:
            loss = f"what is not committed; the rest is archived first, or nothing is torn down: {error.seen}"
    yield "lost", loss

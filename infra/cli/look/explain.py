"""`bivouac explain [NAME] [EVENT]`: what the steward does after each kind of failure, and why an event was decided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.look.endings import LIMITS, rows
from infra.cli.look.reasons import event_number, of_memory, reasons
from infra.cli.records import kept_record, record_of
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.errors import UserError
from infra.record.faults import KnownFaults, read_faults
from infra.record.store import CampaignStore
from infra.session.session import stored_spec
from infra.spec.sections import LIMITS_WINDOW, Recovery
from trainer.contract.exits import HARDWARE_SIGNALS, RESTARTABLE


def explain_command(campaign: str | None, event: str | None, region: str, as_json: bool, console: Console) -> int:
    """Print the table of failures, or why an event of a campaign was decided. Raises `UserError` if neither the account
    nor the results folder has the campaign, or its record no such event."""
    if campaign is None:
        _print_table(Recovery(), as_json, console)
        return 0
    try:
        store = record_of(campaign, region)
    except UserError as error:
        record = kept_record(campaign, region, error)
        events, recovery, known = record.events, record.spec.recovery, None
    else:
        events, recovery, known = store.events(), stored_spec(store).recovery, _known_faults(store)
    number = event_number(events, event)
    lines = [*reasons(events, number, recovery, campaign), *of_memory(events[number - 1], known)]
    if as_json:
        write_json(console, [line._asdict() for line in lines])
        return 0
    for line in lines:
        say(console, f"{line.label:<8} {line.text}")
    return 0


def _known_faults(store: CampaignStore) -> KnownFaults | None:
    """Return the account's memory of faults; None if it cannot be read."""
    try:
        return read_faults(store.s3, store.bucket, datetime.now(UTC))
    except (ClientError, BotoCoreError):
        return None


def _print_table(recovery: Recovery, as_json: bool, console: Console) -> None:
    table = rows(recovery)
    if as_json:
        write_json(console, [row._asdict() for row in table])
        return
    listing = Listing("class", "~the attempt ends", "~then the steward", "~and it counts against")
    for row in table:
        listing.row(row.failure or "none", row.how, row.follows, ", ".join(row.limits) or "nothing")
    listing.show(console)
    defaults = ", ".join(f"{name} {getattr(recovery, name)}" for name in LIMITS)
    signals = " and ".join(signal.name for signal in HARDWARE_SIGNALS)
    for text in (
        f"Limits are fields of the spec's `recovery`: {defaults} by default. Restarts and replacements count within "
        f"{LIMITS_WINDOW // timedelta(hours=1)} hours. Past a limit, the steward archives and ends the training.",
        f"Before an attempt ends, a rank's end by {', '.join(RESTARTABLE)} on a well node restarts all ranks in place, "
        f"up to `restarts_in_place` ({recovery.restarts_in_place}) times in an attempt of the built-in trainer; "
        f"{signals} do not, since they may be the hardware's. It counts against no other limit.",
        "With `recovery.act: log` the steward only says what it would do after a failure, and a person does it; a "
        "stop, the budget and the deadline are kept.",
        "`bivouac explain NAME NUMBER` says why an event was decided; `bivouac events NAME` prints the numbers.",
    ):
        say(console, text)

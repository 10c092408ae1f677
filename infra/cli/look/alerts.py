"""`bivouac alerts NAME`: the alerts of a campaign, by its record: those that fire now, and those that have ended."""

from __future__ import annotations

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.records import kept_record, record_of
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.console.words import clock
from infra.errors import UserError
from infra.record.payloads.alerts import AlertsUnseen
from infra.steward.monitoring.alerts import FiredAlert, history


def alerts_command(campaign: str, region: str, as_json: bool, console: Console) -> int:
    """Print the alerts, the newest last. Raises `UserError` if neither the account nor the results folder has the
    campaign."""
    try:
        events = record_of(campaign, region).events()
    except UserError as error:
        events = kept_record(campaign, region, error).events
    alerts, unseen = history(events), [event for event in events if isinstance(event.payload, AlertsUnseen)]
    if as_json:
        write_json(console, [_row(alert) for alert in alerts])
        return 0
    for event in unseen[-1:]:
        say(
            console,
            f"{event.at:%Y-%m-%d %H:%M:%S}  {event.sentence()}; no alert since then is not the same as all well",
        )
    if not alerts:
        say(console, "no alert is in its record")
        return 0
    table = Listing("fired", "for", "severity", "alert", "~summary", "runbook")
    for alert in alerts:
        payload, lasts = alert.payload, "fires" if alert.ended is None else clock(alert.seconds)
        at = f"{alert.fired:%Y-%m-%d %H:%M:%S}"
        table.row(at, lasts, payload.severity, payload.alert, payload.summary, payload.runbook)
    table.show(console)
    return 0


def _row(alert: FiredAlert) -> dict[str, object]:
    return {**alert.payload.data(), "fired": alert.fired, "ended": alert.ended}

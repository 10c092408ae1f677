"""`bivouac alerts NAME`: the alerts of a campaign, by its record: those that fire now, and those that have ended.

With `--ack` it notes in the record that somebody has those that fire in hand, which ends their escalation; with
`--test` it sends one message by each route of the spec's `notify`; with `--silence` it begins, and with `--silence off`
it ends, a maintenance window.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.console import Console

from infra.aws.account import Account
from infra.cli.answers import write_json
from infra.cli.look.inside import open_cluster
from infra.cli.look.logs import ago
from infra.cli.records import kept_record, record_of
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.console.words import clock, moment, plural
from infra.errors import UserError
from infra.monitoring.alerts import alerts, runbook
from infra.monitoring.silence import end_silences, person, silence, silences
from infra.notices.fired_alerts import PAGE, FiredAlert, alerts_without_answer, history
from infra.notices.notice import Notice, NotSent
from infra.notices.ways import SHORT, TOPIC, recipients, ways
from infra.record.payloads.alerts import AlertAcknowledged, AlertsUnseen
from infra.record.store import CampaignStore
from infra.session.session import stored_spec

OFF = "off"
_OPTIONS = {
    "--silence": ("--why", "--only"), "--ack": ("--why", "--only"), "--test": ("a route", "--json"),
    "no other option": ("--json",),
}  # fmt: skip
"""What the command does -> the options that have a meaning there."""


def alerts_command(
    campaign: str,
    region: str,
    as_json: bool,
    console: Console,
    *,
    route: str | None = None,
    test: bool = False,
    ack: bool = False,
    lasts: str | None = None,
    why: str = "",
    only: str | None = None,
) -> int:
    """Print the alerts, the newest last; or do what an option says. Raises `UserError` if neither the account nor the
    results folder has the campaign, it has no such route, or an option has no meaning beside another."""
    modes = {"--silence": lasts is not None, "--ack": ack, "--test": test}
    options = {"a route": route is not None, "--why": bool(why), "--only": only is not None, "--json": as_json}
    _refuse_unused([mode for mode, is_on in modes.items() if is_on], [name for name, is_on in options.items() if is_on])
    if lasts is not None:
        return silence_command(campaign, region, lasts, why, only, console)
    if ack:
        return _acknowledge(record_of(campaign, region), why, only, console)
    if test:
        return _test_routes(campaign, region, route, as_json, console)
    try:
        events = record_of(campaign, region).events()
    except UserError as error:
        events = kept_record(campaign, region, error).events
    rows, unseen = history(events), [event for event in events if isinstance(event.payload, AlertsUnseen)]
    if as_json:
        write_json(console, [_row(alert) for alert in rows])
        return 0
    for event in unseen[-1:]:
        warning = f"{event.sentence()}; no alert since then is not the same as all well"
        say(console, f"{event.at:%Y-%m-%d %H:%M:%S}  {warning}")
    if not rows:
        say(console, "no alert is in its record")
        return 0
    table = Listing("fired", "for", "severity", "alert", "~summary", "runbook")
    for alert in rows:
        payload, lasts = alert.payload, "fires" if alert.ended is None else clock(alert.seconds)
        if alert.ended is None and alert.acknowledged is not None:
            lasts += f", by {alert.acknowledged.by}"
        fired_at = f"{alert.event.at:%Y-%m-%d %H:%M:%S}"
        table.row(fired_at, lasts, payload.severity, payload.alert, payload.summary, payload.runbook)
    table.show(console)
    return 0


def _refuse_unused(modes: list[str], options: list[str]) -> None:
    """Raise `UserError` for an option that would be dropped, and for two things at once."""
    if len(modes) > 1:
        raise UserError("the command does one thing at a time", seen=" and ".join(modes), cure="give it twice")
    mode = modes[0] if modes else "no other option"
    for option in options:
        if option not in _OPTIONS[mode]:
            places = " or ".join(name for name, names in _OPTIONS.items() if option in names)
            raise UserError(f"{option} has no meaning here", seen=f"{option} with {mode}", cure=f"add {places}")


def silence_command(campaign: str, region: str, lasts: str, reason: str, alert: str | None, console: Console) -> int:
    """Silence one alert or all, or end all silences; print what is silenced then. Raises `UserError` without a cluster,
    and what `silence` raises."""
    with open_cluster(record_of(campaign, region)) as cluster:
        if lasts == OFF:
            if reason:
                raise UserError("a window ends without a reason", seen=f"--why {reason}", cure="leave --why out")
            count = end_silences(cluster.http, alert)
            say(console, f"{plural(count, 'silence')} ended; what fires is told within seconds")
        else:
            silence(cluster.http, timedelta(seconds=ago(lasts, "--silence")), reason, alert)
        for row in silences(cluster.http):
            say(console, f"{row.scope} until {row.ends_at:%Y-%m-%d %H:%M:%S} UTC, by {row.by}: {row.why}")
    return 0


def _acknowledge(store: CampaignStore, reason: str, alert: str | None, console: Console) -> int:
    """Record that somebody has the alerts that fire in hand, or one of them. Raises `UserError` if it does not fire."""
    waiting = alerts_without_answer(store.events())
    payloads = [row.payload for row in waiting if alert in (None, row.payload.alert)]
    if alert is not None and not payloads:
        names = ", ".join(row.payload.alert for row in waiting) or "none"
        raise UserError("this alert waits for no answer", seen=alert, cure=f"one of those that do: {names}")
    for row in payloads:
        store.append(AlertAcknowledged(alert=row.alert, began=row.began, labels=row.labels, by=person(), why=reason))
        say(console, f"{row.alert} is yours: {row.summary}; see {row.runbook}")
    if not payloads:
        say(console, "no alert waits for an answer")
    return 0


def _test_routes(campaign: str, region: str, route: str | None, as_json: bool, console: Console) -> int:
    """Send one message by each route, or by the named one; return 1 if one did not take it. The name of an alert sends
    what that alert would say, by each. The record has no trace of it: nothing happened to the campaign."""
    try:
        spec = stored_spec(record_of(campaign, region))
    except UserError as error:
        spec = kept_record(campaign, region, error).spec
    routes, rule = ways(spec), alerts().get(route or "")
    if route is not None and route not in routes and rule is None:
        cure = f"one of: {', '.join(routes)}; or an alert: {', '.join(alerts())}"
        raise UserError("the spec's `notify` has no such route", seen=route, cure=cure)
    subject = f"bivouac {campaign}: a test of this route, nothing has happened"
    text = f"Somebody typed `bivouac alerts {campaign} --test` at {moment(datetime.now(UTC))}. Nobody needs to act."
    message = Notice(subject, text)
    if rule is not None:
        subject = f"bivouac {campaign}: a test of alert {route} ({rule.severity}), nothing has happened"
        message = Notice(subject, f"{text}\n{runbook(str(route), rule)}", rule.severity == PAGE)
    rows = list[dict[str, object]]()
    for name in routes if route is None or rule is not None else [route]:
        try:
            answer, is_sent = str(routes[name](message)), True
        except NotSent as error:
            answer, is_sent = str(error), False
        if name == TOPIC and is_sent:
            answer += f"; {recipients(Account(spec.region, SHORT), spec.notices_topic)}"
        rows.append({"route": name, "sent": is_sent, "answer": answer})
    if as_json:
        write_json(console, rows)
    else:
        table = Listing("route", "sent", "~answer")
        for row in rows:
            table.row(str(row["route"]), "yes" if row["sent"] else "no", str(row["answer"]))
        table.show(console)
    return 0 if all(row["sent"] for row in rows) else 1


def _row(alert: FiredAlert) -> dict[str, object]:
    person_of_ack = None if alert.acknowledged is None else alert.acknowledged.by
    return {**alert.payload.data(), "fired": alert.event.at, "ended": alert.ended, "acknowledged": person_of_ack}

"""`bivouac status NAME`: a campaign's stage, driver, steward and current cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.records import NO_RECORD, NotBegun, record_of
from infra.console.plain_console import PlainConsole
from infra.console.words import plural
from infra.errors import CHANGED, UserError
from infra.folders import kept_results
from infra.notices.history import Entry, history
from infra.record.events import CampaignState, Event, Stage, fold, ordered
from infra.record.live import live_figures
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.base import data_of
from infra.record.payloads.checkpoints import CheckpointUnrecognised, Doubt
from infra.record.payloads.training import Held, WatchRaised
from infra.record.store import CampaignStore
from infra.report.record import PACKED, Record, unpacked
from infra.session.session import DRIVER_LEASE, holder_of, stored_plan, stored_spec
from infra.spec.campaign import Spec

_ALARMS = 5
"""Newest alarms of the watch that are shown."""

if TYPE_CHECKING:
    from infra.engine.drift import StackLook
    from infra.engine.refusal import Refusal


def status_command(campaign: str, region: str, as_json: bool, console: Console, *, refresh: bool = False) -> int:
    """Show the status. Exit code 0; with `refresh` 2 if something was changed or deleted by hand. Raises `UserError` if
    neither the account nor the results folder has the campaign."""
    try:
        store = record_of(campaign, region)
    except NotBegun as error:
        if as_json:
            write_json(console, {"campaign": campaign, "target": "rehearsal", "stage": NO_RECORD})
        else:
            console.print(f"{campaign} on rehearsal: {NO_RECORD}; {error.cure}", markup=False, soft_wrap=True)
        return 0
    except UserError as error:
        facts, state = _facts_of(_kept(kept_results(campaign, region), error), {}, {})
        if not as_json:
            console.print(f"its record cannot be reached: {error}", markup=False, soft_wrap=True)
            console.print(f"as kept in {kept_results(campaign, region)}:", markup=False, soft_wrap=True)
        if state.running_stage is Stage.REPORT:
            facts["stage"] = "ended"  # the report's record is from just before its own end
        _show(facts, state, as_json, console)
        return 0
    facts, state = facts_of(store)
    facts["notices"] = history(store, stored_spec(store).notify, datetime.now(UTC))
    if not refresh:
        _show(facts, state, as_json, console)
        return 0
    from infra.engine.explain import as_facts, print_drift, print_refusals

    looks, refused = _compared(stored_spec(store))
    _show(facts | {"drift": as_facts(looks, refused)} if as_json else facts, state, as_json, console)
    if not as_json:
        print_drift(console, looks, campaign)
        print_refusals(console, refused)
    return CHANGED if any(one.drifted for one in looks) else 0


def facts_of(store: CampaignStore) -> tuple[dict[str, Any], CampaignState]:
    """Return a campaign's status by its record, for machines, and its state."""
    spec = stored_spec(store)
    plan, live = stored_plan(store, spec), live_figures(store) or {}
    unread = tuple(f"{key}: {why}" for key, why in store.unread_objects().items())
    record = Record(spec, plan, tuple(store.events()), datetime.now(UTC), unread=unread)
    holders = {"driver": holder_of(store, DRIVER_LEASE), "steward": holder_of(store, "steward")}
    return _facts_of(record, holders, live)


def _kept(results: Path, error: UserError) -> Record:
    """Return the record that the report left here; raise `error` without one."""
    try:
        return unpacked((results / PACKED).read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        raise error from None


def _facts_of(
    record: Record, holders: dict[str, str | None], live: dict[str, Any]
) -> tuple[dict[str, Any], CampaignState]:
    events, spec = record.events, record.spec
    state = fold(events)
    money = record.reading
    return {
        "campaign": spec.campaign,
        "target": spec.target,
        "owner": spec.owner,
        "begun": events[0].at if events else None,
        "stage": _stage(state.running_stage, state.finished_stages, state.ended),
        "finished": [str(stage) for stage in state.finished_stages],
        "driver": holders.get("driver") or "none",
        "steward": holders.get("steward") or "none",
        "attempts": len(state.attempts),
        "restarted_in_place": state.restarted_in_place,
        "outcome": state.outcome,
        "live": live,
        "archive": data_of(state.archive),
        "certificate": data_of(state.certificate),
        "hold": state.hold and {**state.hold.data(), "since": state.held_since},
        "lost": data_of(state.lost),
        "unrecognised": data_of(state.unrecognised) or live.get("unrecognised"),
        "unproven": data_of(state.unproven),
        "doubts": _doubts(events),
        "alarms": [event.data for event in events if isinstance(event.payload, WatchRaised)][-_ALARMS:],
        "detached": state.detached,
        "spent_usd": round(float(money.spent_usd), 4),
        "metered_usd": round(float(money.metered_usd), 4),
        "estimated_usd": round(float(money.estimated_usd), 4),
        "bills_usd_per_hour": round(float(money.usd_per_hour), 4),
        "notices": (),
        "unreadable": dict(item.split(": ", 1) for item in record.unread),
    }, state


def _show(facts: dict[str, Any], state: CampaignState, as_json: bool, console: Console) -> None:
    if as_json:
        write_json(console, facts)
        return
    campaign, live = facts["campaign"], facts["live"]
    console.print(f"[bold]{campaign}[/] on {facts['target']}: {facts['stage']}")
    console.print(f"  driver   {facts['driver']}", markup=False, soft_wrap=True)
    console.print(f"  steward  {facts['steward']}", markup=False, soft_wrap=True)
    if live:
        console.print(
            f"  training attempt {live['attempt']}{_in_place(facts)}, step {live['step']} of {live['steps']}, "
            f"loss {live['loss']}, committed {live['committed_step']}; {live['why']}",
            markup=False,
        )
    for alarm in facts["alarms"]:
        console.print(
            f"  alarm    step {alarm.get('step')}, {alarm.get('detector')}: {alarm.get('text')}; {alarm.get('did')}",
            markup=False,
            soft_wrap=True,
        )
    for doubt in facts["doubts"]:
        console.print(f"  doubt    {doubt}", markup=False, soft_wrap=True)
    if state.detached is not None and not state.ended:
        console.print(
            f"  detached since {state.detached:%Y-%m-%d %H:%M} UTC: the steward carries on, then a closer in the "
            "account ends the campaign; `bivouac run` drives again"
        )
    parts = f"{facts['metered_usd']:.2f} metered by the hour, {facts['estimated_usd']:.2f} estimated by size"
    now = f"now billing {facts['bills_usd_per_hour']} USD/h"
    console.print(f"  money    {facts['spent_usd']:.2f} USD ({parts}); {now}", soft_wrap=True)
    if (lost := state.lost) and Stage.TEARDOWN not in state.finished_stages:
        then = "a driver makes a new one" if lost.repair else f"`bivouac repair {campaign}` makes a new one"
        what = f"file system {lost.id} {lost.word}; {then}: {lost.why}"
        console.print(f"  lost     {what}", markup=False, soft_wrap=True)
    if state.hold is not None:
        _print_hold(campaign, state.hold, state.held_since, console)
    elif state.closed and Stage.TEARDOWN not in state.finished_stages:
        console.print(f"  over     GPU nodes at zero, the rest still bills: `bivouac down {campaign}` ends it")
    if state.archive:
        kept = f"{state.archive.manifest} (step {state.archive.step})"
        console.print(f"  archive  {kept}", markup=False, soft_wrap=True)
    if state.unproven:
        console.print(f"  copied   {state.unproven.sentence()}", markup=False, soft_wrap=True)
    elif (left := facts["unrecognised"]) and left.get("files"):
        unrecognised = CheckpointUnrecognised.model_validate(left).sentence()
        console.print(f"  left     {unrecognised}", markup=False, soft_wrap=True)
    if state.certificate:
        certificate = state.certificate
        console.print(
            f"  certificate {'clean' if certificate.clean else 'not clean'}: {len(certificate.found)} left, "
            f"{len(certificate.could_not_look)} not looked at"
        )
    _print_notices(facts["notices"], console)
    for key, why in facts["unreadable"].items():
        console.print(f"  record   1 object of the record cannot be read: {key}: {why}", markup=False, soft_wrap=True)


def _doubts(events: Sequence[Event]) -> list[str]:
    """Return the newest sentence of each kind of doubt about a checkpoint, of the newest attempt."""
    newest = dict[str, str]()
    for event in ordered(events):
        if isinstance(event.payload, AttemptLaunched):
            newest.clear()
        elif isinstance(event.payload, Doubt):
            newest[event.kind] = event.payload.sentence()
    return list(newest.values())


def _in_place(facts: dict[str, Any]) -> str:
    count = facts["restarted_in_place"]
    return f" ({plural(count, 'restart')} in place so far)" if count else ""


def _print_notices(notices: Sequence[Entry], console: Console) -> None:
    """Print what people were told, and what they were not."""
    for number, one in enumerate(notices):
        tried = f", {plural(one.tries, 'try', 'tries')}" if one.tries > 1 or one.trouble else ""
        why, label = f": {one.trouble}" if one.trouble else "", "" if number else "notices"
        console.print(
            f"  {label:<8} {one.at:%Y-%m-%d %H:%M} UTC, {one.way}, {one.delivery}{tried}{why}: {one.subject}",
            markup=False,
            soft_wrap=True,
        )


def _compared(spec: Spec) -> tuple[tuple[StackLook, ...], tuple[Refusal, ...]]:
    """Compare the stacks with AWS; return nothing for a campaign that is torn down, or while it is."""
    from infra.engine.refusal import refusals, standing
    from infra.preview.read_only import look_at_stacks, read_only_context

    context = read_only_context(spec, None, PlainConsole(stderr=True, highlight=False))
    where = standing(context)
    if where.falling:
        context.progress.note("the campaign is being torn down or is gone: there is nothing to compare")
        return (), ()
    with context.progress.stage("compare", "the stacks against AWS; nothing is touched"):
        looks = look_at_stacks(context)
    return looks, tuple(one for each in looks for one in refusals(each, where, spec.campaign))


def _stage(running: Stage | None, finished: dict[Stage, Any], ended: bool) -> str:
    if ended:
        return "ended"
    if running is not None:
        return f"in {running}"
    return f"after {list(finished)[-1]}" if finished else "not begun"


def _print_hold(campaign: str, hold: Held, since: datetime | None, console: Console) -> None:
    times = f"since {since:%H:%M:%S} UTC until {hold.until}"
    console.print(f"  held     {times}: {hold.cause}", markup=False)
    for line in hold.log[-5:]:
        console.print(f"           {line}", markup=False)
    console.print(
        f"           cure: mend it, then `bivouac relaunch {campaign} --spec FILE`; or `bivouac down {campaign}`"
    )

"""`bivouac status NAME`: a campaign's stage, driver, steward and current cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.options import stderr
from infra.cli.records import NO_RECORD, NotBegun, kept_record, record_of
from infra.console.plain_console import say
from infra.console.words import clock, plural
from infra.errors import CHANGED, UserError
from infra.folders import kept_results
from infra.notices.history import Entry, history
from infra.plan.survey import ENVIRONMENTS
from infra.record.events import CampaignState, Event, Stage, fold, ordered
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.base import data_of
from infra.record.payloads.checkpoints import CheckpointUnrecognised, Doubt
from infra.record.payloads.training import WatchRaised
from infra.record.store import CampaignStore, live_figures
from infra.report.record import Record
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
            say(console, f"{campaign} on rehearsal: {NO_RECORD}; {error.cure}")
        return 0
    except UserError as error:
        facts, state = facts_by(kept_record(campaign, region, error), {}, {})
        if not as_json:
            say(console, f"its record cannot be reached: {error}")
            say(console, f"as kept in {kept_results(campaign, region)}:")
        if state.running_stage is Stage.REPORT:
            facts["stage"] = "ended"  # the report's record is from just before its own end
        _show(facts, state, as_json, console)
        return 0
    facts, state = facts_of(store)
    facts["notices"] = history(store, stored_spec(store), datetime.now(UTC))
    if not refresh:
        _show(facts, state, as_json, console)
        return 0
    from infra.engine.explain import as_facts, print_drift, print_refusals

    looks, reasons = _compare_stacks(stored_spec(store))
    _show(facts | {"drift": as_facts(looks, reasons)} if as_json else facts, state, as_json, console)
    if not as_json:
        print_drift(console, looks, campaign)
        print_refusals(console, reasons)
    return CHANGED if any(look.drifted for look in looks) else 0


def facts_of(store: CampaignStore) -> tuple[dict[str, Any], CampaignState]:
    """Return a campaign's status by its record, for machines, and its state."""
    spec = stored_spec(store)
    plan, live = stored_plan(store, spec), live_figures(store) or {}
    unread = tuple(f"{key}: {reason}" for key, reason in store.unread_objects().items())
    record = Record(spec, plan, tuple(store.events()), datetime.now(UTC), unread=unread)
    holders = {"driver": holder_of(store, DRIVER_LEASE), "steward": holder_of(store, "steward")}
    return facts_by(record, holders, live)


def facts_by(
    record: Record, holders: dict[str, str | None], live: dict[str, Any]
) -> tuple[dict[str, Any], CampaignState]:
    events, spec = record.events, record.spec
    state = fold(events)
    money = record.reading
    return {
        "campaign": spec.campaign, "target": spec.target, "owner": spec.owner,
        "begun": events[0].at if events else None,
        "stage": stage_text(state),
        "finished": [str(stage) for stage in state.finished_stages], "driver": holders.get("driver") or "none",
        "steward": holders.get("steward") or "none", "attempts": len(state.attempts),
        "restarted_in_place": state.restarted_in_place, "outcome": state.outcome, "live": live,
        "training": training_of(spec, state, live), "archive": data_of(state.archive),
        "certificate": data_of(state.certificate),
        "hold": state.hold and {**state.hold.data(), "since": state.held_since},
        "lost": data_of(state.lost), "unrecognised": data_of(state.unrecognised) or live.get("unrecognised"),
        "unproven": data_of(state.unproven), "doubts": _doubts(events),
        "alarms": [event.data for event in events if isinstance(event.payload, WatchRaised)][-_ALARMS:],
        "detached": state.detached,
        "spent_usd": round(float(money.spent_usd), 4), "metered_usd": round(float(money.metered_usd), 4),
        "estimated_usd": round(float(money.estimated_usd), 4),
        "bills_usd_per_hour": round(float(money.usd_per_hour), 4), "notices": (),
        "unreadable": dict(item.split(": ", 1) for item in record.unread),
    }, state  # fmt: skip


def training_of(spec: Spec, state: CampaignState, live: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the newest attempt does, at which step, how fast, and for how long still; None before the first
    look of a steward. An attempt has no step of its own before its first: it restores the step that it begins from."""
    if not live:
        return None
    attempt = next((row for row in state.attempts if row.number == live["attempt"]), None)
    origin, step, pace = (
        -1 if attempt is None else attempt.launched.committed_step,
        live["step"],
        live.get("step_seconds"),
    )
    if not live.get("in_flight", True):
        activity, step, pace = "ended", step if attempt is None else attempt.last_step(step), None
    elif step > max(origin, 0):
        activity = "trains"
    else:
        activity, step, pace = ("restores", origin, None) if origin >= 0 else ("starts", 0, None)
    tokens = spec.job.tokens_per_step
    return {
        "activity": activity, "step": step, "steps": live["steps"], "step_seconds": pace,
        "tokens_per_second": round(tokens / pace) if tokens and pace else None,
        "seconds_to_end": round((live["steps"] - step) * pace) if pace else None,
    }  # fmt: skip


def _show(facts: dict[str, Any], state: CampaignState, as_json: bool, console: Console) -> None:
    if as_json:
        write_json(console, facts)
        return
    console.print(f"[bold]{facts['campaign']}[/] on {facts['target']}: {facts['stage']}")
    for label, text in _lines(facts, state):
        say(console, f"  {label:<8} {text}")


def _lines(facts: dict[str, Any], state: CampaignState) -> Iterator[tuple[str, str]]:
    """Yield the lines of a status, each with its label."""
    campaign, standing = facts["campaign"], Stage.TEARDOWN not in state.finished_stages
    yield "driver", facts["driver"]
    yield "steward", facts["steward"]
    if facts["training"]:
        yield from _training(facts)
    for alarm in facts["alarms"]:
        yield "alarm", f"step {alarm.get('step')}, {alarm.get('detector')}: {alarm.get('text')}; {alarm.get('did')}"
    for doubt in facts["doubts"]:
        yield "doubt", doubt
    if state.detached is not None and not state.ended:
        successor = f"the steward carries on, {ENVIRONMENTS[facts['target']].ender}; `bivouac run` drives again"
        yield "detached", f"since {state.detached:%Y-%m-%d %H:%M} UTC: {successor}"
    parts = f"{facts['metered_usd']:.2f} metered by the hour, {facts['estimated_usd']:.2f} estimated by size"
    yield "money", f"{facts['spent_usd']:.2f} USD ({parts}); now billing {facts['bills_usd_per_hour']:.2f} USD/h"
    if (loss := state.lost) and standing:
        cure = "a driver makes a new one" if loss.repair else f"`bivouac repair {campaign}` makes a new one"
        yield "lost", f"file system {loss.id} {loss.word}; {cure}: {loss.why}"
    if hold := state.hold:
        yield "held", f"since {state.held_since:%H:%M:%S} UTC until {hold.until}: {hold.cause}"
        yield from (("", line) for line in hold.log[-5:])
        yield "", f"cure: mend it, then `bivouac relaunch {campaign} --spec FILE`; or `bivouac down {campaign}`"
    elif state.closed and standing:
        yield "over", f"GPU nodes at zero, the rest still bills: `bivouac down {campaign}` ends it"
    if state.archive:
        yield "archive", f"{state.archive.manifest} (step {state.archive.step})"
    if state.unproven:
        yield "copied", state.unproven.sentence()
    elif (left := facts["unrecognised"]) and left.get("files"):
        yield "left", CheckpointUnrecognised.model_validate(left).sentence()
    if certificate := state.certificate:
        verdict = "clean" if certificate.clean else "not clean"
        missing = f"{len(certificate.could_not_look)} not looked at"
        yield "certificate", f"{verdict}: {len(certificate.found)} left, {missing}"
    yield from _notices(facts["notices"])
    for key, reason in facts["unreadable"].items():
        yield "record", f"1 object of the record cannot be read: {key}: {reason}"


def _training(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the nodes, and what the newest attempt does."""
    training, live = facts["training"], facts["live"]
    if nodes := live.get("nodes"):
        yield "nodes", f"{sum(bool(node.get('ready')) for node in nodes)} of {len(nodes)} ready"
    restarts = facts["restarted_in_place"]
    restart_text = f" ({plural(restarts, 'restart')} in place so far)" if restarts else ""
    loss = "" if live["loss"] is None else f", loss {live['loss']:.4g}"
    commit_text = f"committed {live['committed_step']}" if live["committed_step"] >= 0 else "nothing committed yet"
    head = f"attempt {live['attempt']}{restart_text} {training['activity']}"
    head += f": step {training['step']} of {training['steps']}"
    yield "training", f"{head}{loss}, {commit_text}; {live['why']}"
    if pace := training["step_seconds"]:
        tokens = training["tokens_per_second"]
        rate = f"{clock(pace)} a step" + (f", {tokens:,} tokens/s" if tokens else "")
        yield "pace", f"{rate}; {clock(training['seconds_to_end'])} to the last step"


def _doubts(events: Sequence[Event]) -> list[str]:
    """Return the newest sentence of each kind of doubt about a checkpoint, of the newest attempt."""
    newest = dict[str, str]()
    for event in ordered(events):
        if isinstance(event.payload, AttemptLaunched):
            newest.clear()
        elif isinstance(event.payload, Doubt):
            newest[event.kind] = event.payload.sentence()
    return list(newest.values())


def _notices(notices: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Yield what people were told, and what they were not."""
    for number, entry in enumerate(notices):
        tries = f", {plural(entry.tries, 'try', 'tries')}" if entry.tries > 1 or entry.trouble else ""
        trouble = f": {entry.trouble}" if entry.trouble else ""
        delivery = f"{entry.at:%Y-%m-%d %H:%M} UTC, {entry.way}, {entry.delivery}{tries}{trouble}"
        yield "" if number else "notices", f"{delivery}: {entry.subject}"


def _compare_stacks(spec: Spec) -> tuple[tuple[StackLook, ...], tuple[Refusal, ...]]:
    """Compare the stacks with AWS; return nothing for a campaign that is torn down, or while it is."""
    from infra.engine.refusal import refusals, standing
    from infra.preview.read_only import look_at_stacks, read_only_context

    context = read_only_context(spec, None, stderr)
    position = standing(context)
    if position.falling:
        context.progress.note("the campaign is being torn down or is gone: there is nothing to compare")
        return (), ()
    with context.progress.stage("compare", "the stacks against AWS; nothing is touched"):
        looks = look_at_stacks(context)
    return looks, tuple(refusal for look in looks for refusal in refusals(look, position, spec.campaign))


def stage_text(state: CampaignState) -> str:
    """Return where a campaign stands."""
    if state.ended:
        return "ended"
    if state.running_stage is not None:
        return f"in {state.running_stage}"
    return f"after {list(state.finished_stages)[-1]}" if state.finished_stages else "not begun"

"""The explanation of one event of a record: why it was decided, from what was seen, and what followed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError

from infra.cli.look.endings import DEEDS, causes
from infra.console.words import clock, plural
from infra.errors import UserError
from infra.monitoring.alerts import RUNBOOKS, alerts
from infra.record.events import Event, fold
from infra.record.payloads.alerts import AlertFired
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched, AttemptRunning, short
from infra.record.payloads.stages import Decision
from infra.record.payloads.training import Held, TrainingFinished
from infra.spec.sections import Recovery
from infra.steward.decide import counts
from infra.steward.resume_state import history
from trainer.contract.culprit import Culprit

_LOG_LINES = 5
_MOST_STACKS = 4
_MOST_FOLLOWING = 8
_RUNBOOK = {
    "node": "PodSilent", "hang": "TrainingStalled", "attempt.ended": "AttemptFailed", "hold": "Held", "held": "Held",
    "replace": "NodesShort", "node.quarantined": "NodesShort", "watch": "WatchRaised",
    "checkpoint.unrecognised": "CheckpointsUnrecognised", "checkpoint.not-sealed": "CheckpointsLate",
    "checkpoint.look-failed": "CheckpointsLate",
    "checkpoint.step-refused": "CheckpointsLate", "checkpoint.weights-only": "CheckpointsLate",
}  # fmt: skip
"""Class of a failure, action of a decision, or kind of an event -> the alert whose runbook fits."""


class Reason(NamedTuple):
    label: str
    text: str


def event_number(events: Sequence[Event], name: str | None) -> int:
    """Return an event's number in `bivouac events`, from 1. `name`: a number, or a time as that command prints it; None
    is the newest decision of the steward. Raises `UserError` if there is no such event."""
    rows = list(enumerate(events, 1))
    if name is None:
        matches = [number for number, event in rows if isinstance(event.payload, Decision)][-1:]
    else:
        times = {number: f"{event.at:%Y-%m-%d %H:%M:%S}" for number, event in rows}
        matches = [number for number in times if name == str(number) or (":" in name and times[number].endswith(name))]
    if not matches:
        trouble = "no decision of the steward is in the record" if name is None else f"{name}; there are {len(events)}"
        raise UserError("there is no such event", seen=trouble, cure="`bivouac events NAME` prints numbers and times")
    return matches[0]


def reasons(events: Sequence[Event], number: int, recovery: Recovery, campaign: str) -> Iterator[Reason]:
    """Yield the explanation of an event by its number, and of the attempt's end that it decides. `recovery`: the limits
    in force."""
    event, later_events = events[number - 1], events[number:]
    yield Reason("event", f"{number}, {event.at:%Y-%m-%d %H:%M:%S} UTC, by {event.writer}: {event.sentence()}")
    action: str | None = None
    failure: str | None = None
    match event.payload:
        case Decision(action=action, why=why):
            yield Reason("why", f"the steward {DEEDS.get(action or '', f'decided {action}')}: {why}")
            ends = [
                place for place, row in enumerate(events, 1) if place > number and isinstance(row.payload, AttemptEnded)
            ]
            if action == "end-attempt" and ends:
                yield from reasons(events, ends[0], recovery, campaign)
                return
        case AttemptEnded(failure=failure) as end:
            yield from _of_end(end, recovery)
            yield from _cost(end, later_events)
        case payload:
            yield from (Reason("record", f"{name}: {value}") for name, value in payload.data().items())
    yield from _limits(events[:number], event.at, recovery, failure)
    yield from _following(event, later_events)
    alert = event.payload.alert if isinstance(event.payload, AlertFired) else _RUNBOOK.get(event.kind, "")
    yield from _runbook(_RUNBOOK.get(failure or action or "", alert), campaign)


def _of_end(end: AttemptEnded, recovery: Recovery) -> Iterator[Reason]:
    """Yield the class of an attempt's end, and what the record has seen of it."""
    if end.failure is None:
        yield Reason("class", "none: the attempt ended well")
    elif ways := causes(end.failure, recovery):
        yield Reason("class", f"{end.failure}: " + "; or ".join(row.how for row in ways))
        follows = dict.fromkeys(row.follows for row in ways)
        yield Reason("then", "the steward " + "; or ".join(follows))
    else:
        yield Reason("class", f"{end.failure}: this version does not know it")
    for node in end.dead_nodes:
        yield Reason("seen", f"dead node {short(node)} ({end.instances.get(node, 'its instance is not recorded')})")
    if end.first_failed is not None:
        yield Reason("seen", f"the first failure was on {short(end.first_failed)}")
    if end.culprit is not None:
        try:
            yield Reason("seen", str(Culprit.model_validate(end.culprit)))
        except ValidationError:
            yield Reason("seen", f"culprit: {end.culprit}")
    if not end.began:
        yield Reason("seen", "no container of its pods had started")
    if end.nothing_sound:
        yield Reason("seen", "the shared tier held checkpoints, and none of them was sound")
    for name in end.stacks[:_MOST_STACKS]:
        yield Reason("stacks", f"{name}, in the record and, at the end, in the results folder")
    if len(end.stacks) > _MOST_STACKS:
        yield Reason("stacks", f"and {len(end.stacks) - _MOST_STACKS} more there")
    for line in end.log[-_LOG_LINES:]:
        yield Reason("log", line)


def _limits(record: Sequence[Event], time: datetime, recovery: Recovery, failure: str | None) -> Iterator[Reason]:
    """Yield what counts against each limit: of a failure against those of its class, else against all that are used."""
    try:
        count_by_limit = counts(time, history(fold(record)))
    except ValueError:  # a class of a later version
        yield Reason("limits", "not known: the record has a class that this version does not know")
        return
    names = [name for name, count in count_by_limit.items() if count]
    if failure is not None:
        names = [name for name in count_by_limit if any(name in row.limits for row in causes(failure, recovery))]
    if names:
        texts = (f"{name} {count_by_limit[name]} of {getattr(recovery, name)}" for name in names)
        yield Reason("limits", ", ".join(texts))


def _following(event: Event, later_events: Sequence[Event]) -> Iterator[Reason]:
    """Yield what the same writer did next, up to the first event of the next attempt that trains or of the end."""
    for successor in [row for row in later_events if row.writer == event.writer][:_MOST_FOLLOWING]:
        yield Reason("after", f"+{clock((successor.at - event.at) / timedelta(seconds=1))}: {successor.sentence()}")
        if isinstance(successor.payload, AttemptRunning | Held | TrainingFinished):
            return


def _cost(end: AttemptEnded, later_events: Sequence[Event]) -> Iterator[Reason]:
    """Yield how many steps the next attempt trains again."""
    launch = next((event.payload for event in later_events if isinstance(event.payload, AttemptLaunched)), None)
    if launch is not None and launch.attempt > end.attempt and end.step is not None:
        steps_lost = max(end.step - max(launch.committed_step, 0), 0)
        yield Reason("lost", f"{plural(steps_lost, 'step')}: attempt {launch.attempt} goes on from step "
                             f"{max(launch.committed_step, 0)}, attempt {end.attempt} was at {end.step}")  # fmt: skip


def _runbook(name: str, campaign: str) -> Iterator[Reason]:
    if (rule := alerts().get(name)) is None:
        yield Reason("runbook", "none; docs/recovery.md says what happens without you")
        return
    yield Reason("runbook", f"{RUNBOOKS}/{name}.md: {rule.act}".replace("NAME", campaign))
    yield Reason("look", ", ".join(f"`{command}`" for command in rule.look).replace("NAME", campaign))

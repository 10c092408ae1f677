"""The explanation of one event of a record: why it was decided, from what was seen, and what followed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError

from infra.cli.look.endings import DEEDS, causes, limits_of
from infra.console.words import clock, plural
from infra.errors import UserError
from infra.monitoring.alerts import RUNBOOKS, alerts
from infra.record.events import Event, fold
from infra.record.payloads import Payload
from infra.record.payloads.alerts import AlertFired
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched, AttemptRunning, NodeQuarantined, short
from infra.record.payloads.checkpoints import CheckpointUnrecognised, Doubt
from infra.record.payloads.stages import Decision
from infra.record.payloads.training import Held, TrainingFinished, WatchRaised
from infra.spec.sections import Recovery
from infra.steward.decide import FailureClass, counts
from infra.steward.resume_state import history
from trainer.contract.culprit import Culprit

_LOG_LINES = 5
_MOST_FOLLOWING = 8
_RUNBOOKS: tuple[tuple[type[Payload], str], ...] = (
    (Held, "Held"),
    (NodeQuarantined, "NodesShort"),
    (WatchRaised, "WatchRaised"),
    (CheckpointUnrecognised, "CheckpointsUnrecognised"),
    (Doubt, "CheckpointsLate"),
)
_RUNBOOK_OF_CLASS = {FailureClass.NODE: "PodSilent", FailureClass.HANG: "TrainingStalled"}
_RUNBOOK_OF_DEED = {"replace": "NodesShort", "hold": "Held"}
RECOVERY = "docs/recovery.md"
"""What happens without a person, for events that no alert speaks of."""


class Reason(NamedTuple):
    label: str
    text: str


def event_number(events: Sequence[Event], name: str | None) -> int:
    """Return an event's number in `bivouac events`, from 1. `name`: a number, or a time as that command prints it; None
    is the newest decision of the steward. Raises `UserError` if there is no such event."""
    numbers = list(range(1, len(events) + 1))
    if name is None:
        matches = [number for number in reversed(numbers) if isinstance(events[number - 1].payload, Decision)]
    elif name.isascii() and name.isdigit():
        matches = [number for number in numbers if number == int(name)]
    else:
        matches = [number for number in numbers if f"{events[number - 1].at:%Y-%m-%d %H:%M:%S}".endswith(name)]
    if (not name and name is not None) or not matches:
        trouble = "no decision of the steward is in the record" if name is None else f"{name}; there are {len(events)}"
        raise UserError("there is no such event", seen=trouble, cure="`bivouac events NAME` prints numbers and times")
    return matches[0]


def reasons(events: Sequence[Event], number: int, recovery: Recovery, campaign: str) -> Iterator[Reason]:
    """Yield the explanation of an event by its number. `recovery`: the limits in force."""
    event, earlier_events, later_events = events[number - 1], events[:number], events[number:]
    yield Reason("event", f"{number}, {event.at:%Y-%m-%d %H:%M:%S} UTC, by {event.writer}: {event.sentence()}")
    payload = event.payload
    end = payload if isinstance(payload, AttemptEnded) else None
    if isinstance(payload, Decision):
        yield Reason(
            "why", f"the steward {DEEDS.get(payload.action or '', f'decided {payload.action}')}: {payload.why}"
        )
        if payload.action == "end-attempt":
            end = next((event.payload for event in later_events if isinstance(event.payload, AttemptEnded)), None)
    if end is not None:
        yield from _of_end(end, recovery)
    elif not isinstance(payload, Decision):
        yield from (Reason("record", f"{name}: {value}") for name, value in payload.data().items())
    record = earlier_events if end is None else [*earlier_events, *later_events[: _place(later_events, end)]]
    yield from _limits(record, event.at, recovery, end)
    yield from _following(event, later_events)
    if end is not None:
        yield from _cost(end, later_events)
    yield from _runbook(payload, end, campaign)


def _place(events: Sequence[Event], payload: Payload) -> int:
    """Return how many events there are up to this payload's; 0 if it is none of them."""
    return next((number for number, event in enumerate(events, 1) if event.payload is payload), 0)


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
    for line in end.log[-_LOG_LINES:]:
        yield Reason("log", line)


def _limits(record: Sequence[Event], time: datetime, recovery: Recovery, end: AttemptEnded | None) -> Iterator[Reason]:
    """Yield what counts against each limit: of an end against those of its class, else against all that are used."""
    try:
        count_by_limit = counts(time, history(fold(record)))
    except ValueError:  # a class of a later version
        yield Reason("limits", "not known: the record has a class that this version does not know")
        return
    names = (
        limits_of(end.failure or "", recovery)
        if end is not None
        else [name for name in count_by_limit if count_by_limit[name]]
    )
    if texts := [f"{name} {count_by_limit[name]} of {getattr(recovery, name)}" for name in names]:
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


def _runbook(payload: Payload, end: AttemptEnded | None, campaign: str) -> Iterator[Reason]:
    name = next((name for kind, name in _RUNBOOKS if isinstance(payload, kind)), "")
    if isinstance(payload, AlertFired):
        name = payload.alert
    elif isinstance(payload, Decision):
        name = _RUNBOOK_OF_DEED.get(payload.action or "", "")
    if end is not None and end.failure is not None:
        name = next((page for failure, page in _RUNBOOK_OF_CLASS.items() if failure == end.failure), "PodFailed")
    if (rule := alerts().get(name)) is None:
        yield Reason("runbook", f"none; {RECOVERY} says what happens without you")
        return
    yield Reason("runbook", f"{RUNBOOKS}/{name}.md: {rule.act}".replace("NAME", campaign))
    yield Reason("look", ", ".join(f"`{command}`" for command in rule.look).replace("NAME", campaign))

"""The changes of a record that people are told of. Pure: no clock, no AWS.

Each change has a key, made of its event's place in the record, under which every later process finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.record.events import Event, Stage, ordered
from infra.record.payloads.alerts import AlertFired
from infra.record.payloads.attempts import AttemptLaunched, AttemptRunning, NodeQuarantined, NodesAtZero
from infra.record.payloads.checkpoints import Doubt
from infra.record.payloads.stages import Certified, StageFailed, StageFinished, StageStarted
from infra.record.payloads.training import (
    ArchiveBegun,
    FileSystemLost,
    FileSystemReplaced,
    Held,
    Relaunched,
    TrainingFinished,
    WatchRaised,
)
from infra.spec.notify import Change

FIRST_REMINDER = timedelta(hours=1)
NEXT_REMINDERS = timedelta(hours=6)
MOST_DOUBTS = 5
"""Of one kind in an attempt: reasons may have a name in them that is another one each time."""
STALE = timedelta(days=1)
"""Age from which a change is no longer told: nobody was there to tell it, and something else has followed."""

_REMINDER, _ESCALATION = "+", "!"
"""Between an event's key and a number."""
_ENDS_A_WAIT = FileSystemReplaced | Relaunched | AttemptLaunched | TrainingFinished | ArchiveBegun
_ACTING = (Stage.BAKE, Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH, Stage.TEARDOWN)
"""Stages whose begin shows that somebody acts; in the others a driver only watches."""


@dataclass(frozen=True)
class Told:
    """One change to tell."""

    key: str
    change: Change
    event: Event
    since: datetime | None = None
    """Of a reminder or an escalation: when somebody should have acted first."""
    others: tuple[str, ...] = ()
    """Of an escalation: the other alerts that wait for an answer."""


def changes(events: Iterable[Event], now: datetime) -> tuple[Told, ...]:
    """Return every change worth telling that is younger than a day, and the newest reminder that is due."""
    changes_told, wait, doubts = list[Told](), _Wait(), dict[str, set[str]]()
    for event in ordered(events):
        repeats = wait.goes_on(event)
        wait.hear(event, repeats)
        if isinstance(event.payload, AttemptLaunched):
            doubts.clear()
        elif isinstance(event.payload, Doubt) or (isinstance(event.payload, WatchRaised) and event.payload.is_slow):
            repeats = _is_known(event, doubts.setdefault(event.kind, set())) or repeats
        changes_told += [] if repeats else _changes_of(event, changes_told)
    return (*(change for change in changes_told if now - change.event.at < STALE), *wait.reminder(now))


def _is_known(event: Event, subjects: set[str]) -> bool:
    """Return whether people know of this doubt, and note it."""
    subject = event.payload.subject if isinstance(event.payload, Doubt) else ""
    if subject in subjects or len(subjects) >= MOST_DOUBTS:
        return True
    subjects.add(subject)
    return False


def told_by(key: str, events: Iterable[Event]) -> Told | None:
    """Return the change that was told under this key, however old; None if the record does not have its event."""
    event_key, mark, _ = re.split(r"([+!]|$)", key, maxsplit=1)
    event_of_key = next((event for event in events if key_of(event) == event_key), None)
    if event_of_key is None:
        return None
    if mark:
        change_of_mark = Change.ALERT if mark == _ESCALATION else Change.BILLING
        return Told(key, change_of_mark, event_of_key, event_of_key.at)
    change = next((change_of_event.change for change_of_event in _changes_of(event_of_key, [])), None)
    return None if change is None else Told(key, change, event_of_key)


def _changes_of(event: Event, earlier_changes: list[Told]) -> Iterator[Told]:
    change = event.payload.notice
    match event.payload:
        case AttemptRunning() if _begins(earlier_changes):
            change = Change.TRAINING
        case NodesAtZero(why=why) if why:
            change = Change.FAILED
        case AlertFired(severity="note"):
            change = None  # another event tells of it
        case NodeQuarantined(first_node=str()):
            change = None  # the first node's event tells of all
        case StageFinished(stage=Stage.TEARDOWN):
            change = Change.TORN_DOWN
        case WatchRaised(is_slow=True):
            change = Change.WATCH
        case Certified(clean=False):
            change = Change.FAILED
    if change is not None:
        yield Told(key_of(event), change, event)


def _begins(earlier_changes: list[Told]) -> bool:
    """Return True for the first attempt that trains, or the first one after a hold: later ones follow by themselves."""
    steps = [notice.change for notice in earlier_changes if notice.change in (Change.TRAINING, Change.HELD)]
    return not steps or steps[-1] is Change.HELD


def key_of(event: Event, reminder: int = 0, escalation: int = 0) -> str:
    mark = f"{_REMINDER}{reminder}" if reminder else f"{_ESCALATION}{escalation}" if escalation else ""
    return f"{event.writer}-{event.sequence:06d}{mark}"


class _Wait:
    """A time in which something bills and a person should act: a hold, an end without a teardown, a failed stage."""

    def __init__(self) -> None:
        self.first: Event | None = None
        self.last: Event | None = None

    def goes_on(self, event: Event) -> bool:
        """Return True if a teardown fails once more. Each try would tell of it: the reminders do."""
        return _failed_teardown(event) and self.first is not None and _failed_teardown(self.first)

    def hear(self, event: Event, repeats: bool) -> None:
        if repeats:
            self.last = event
        elif isinstance(event.payload, Held | NodesAtZero | StageFailed) or _left_lost(event):
            self.first = self.last = event
        elif self._ends_with(event):
            self.first = self.last = None

    def _ends_with(self, event: Event) -> bool:
        payload = event.payload
        if isinstance(payload, AttemptLaunched) and self.first is not None and _left_lost(self.first):
            return False  # it finds no file system either
        if self.first is None or not isinstance(payload, StageStarted | StageFinished):
            return isinstance(payload, _ENDS_A_WAIT)
        if isinstance(payload, StageFinished):
            return payload.stage in (Stage.TEARDOWN, getattr(self.first.payload, "stage", None))
        # Another try of a teardown ends nothing: it may fail as well.
        return payload.stage in _ACTING and not (payload.stage is Stage.TEARDOWN and _failed_teardown(self.first))

    def reminder(self, now: datetime) -> Iterator[Told]:
        if self.first is None or self.last is None or now - self.first.at < FIRST_REMINDER:
            return
        count = 1 + (now - self.first.at - FIRST_REMINDER) // NEXT_REMINDERS
        yield Told(key_of(self.first, count), Change.BILLING, self.last, self.first.at)


def _left_lost(event: Event) -> bool:
    """Return True for a lost file system that no driver makes again by itself."""
    return isinstance(event.payload, FileSystemLost) and not event.payload.repair


def _failed_teardown(event: Event) -> bool:
    return isinstance(event.payload, StageFailed) and event.payload.stage is Stage.TEARDOWN

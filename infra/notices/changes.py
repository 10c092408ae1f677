"""The changes of a record that people are told of. Pure: no clock, no AWS.

Each change has a key, made of its event's place in the record, under which every later process finds it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.record.doubts import DOUBTS
from infra.record.events import Event, Kind, Stage, ordered
from infra.spec.notify import Change

FIRST_REMINDER = timedelta(hours=1)
NEXT_REMINDERS = timedelta(hours=6)
STALE = timedelta(days=1)
"""Age from which a change is no longer told: nobody was there to tell it, and something else has followed."""

_CHANGES = {
    Kind.NODE_QUARANTINED: Change.NODE,
    **dict.fromkeys(DOUBTS, Change.CHECKPOINTS),
    Kind.HELD: Change.HELD,
    Kind.TRAINING_FINISHED: Change.FINISHED,
    Kind.ARCHIVE_VERIFIED: Change.ARCHIVED,
    Kind.ARCHIVE_UNPROVEN: Change.ARCHIVED,
    Kind.ARCHIVE_FAILED: Change.FAILED,
    Kind.FILE_SYSTEM_LOST: Change.FAILED,
}
_ENDS_A_WAIT = (
    Kind.FILE_SYSTEM_REPLACED,
    Kind.RELAUNCHED,
    Kind.ATTEMPT_LAUNCHED,
    Kind.TRAINING_FINISHED,
    Kind.ARCHIVE_BEGUN,
)
_ACTING = (Stage.BAKE, Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH, Stage.TEARDOWN)
"""Stages whose begin shows that somebody acts; in the others a driver only watches."""


@dataclass(frozen=True)
class Told:
    """One change to tell."""

    key: str
    change: Change
    event: Event
    since: datetime | None = None
    """Of a reminder: when somebody should have acted first."""


def changes(events: Iterable[Event], now: datetime) -> tuple[Told, ...]:
    """Return every change worth telling that is younger than a day, and the newest reminder that is due."""
    told, wait, doubted = list[Told](), _Wait(), set[Kind]()
    for event in ordered(events):
        again = wait.goes_on(event)
        wait.hear(event, again)
        again = again or event.kind in doubted
        if event.kind is Kind.ATTEMPT_LAUNCHED:
            doubted.clear()
        elif event.kind in DOUBTS:
            doubted.add(event.kind)  # a job saves often, and every save of the attempt would tell again
        told += [] if again else _of(event, told)
    return (*(one for one in told if now - one.event.at < STALE), *wait.reminder(now))


def told_by(key: str, events: Iterable[Event]) -> Told | None:
    """Return the change that was told under this key, however old; None if the record does not have its event."""
    own, _, reminder = key.partition("+")
    found = next((event for event in events if key_of(event) == own), None)
    if found is None:
        return None
    if reminder:
        return Told(key, Change.BILLING, found, found.at)
    change = next((one.change for one in _of(found, [])), None)
    return None if change is None else Told(key, change, found)


def _of(event: Event, before: list[Told]) -> Iterator[Told]:
    change = _CHANGES.get(event.kind)
    match event.kind:
        case Kind.ATTEMPT_RUNNING if _begins(before):
            change = Change.TRAINING
        case Kind.STAGE_FAILED:
            change = Change.FAILED
        case Kind.NODES_AT_ZERO if event.data.get("why"):
            change = Change.FAILED
        case Kind.STAGE_FINISHED if event.data["stage"] == Stage.TEARDOWN:
            change = Change.TORN_DOWN
        case Kind.CERTIFIED if not event.data.get("clean"):
            change = Change.FAILED
    if change is not None:
        yield Told(key_of(event), change, event)


def _begins(before: list[Told]) -> bool:
    """Return True for the first attempt that trains, or the first one after a hold: later ones follow by themselves."""
    steps = [one.change for one in before if one.change in (Change.TRAINING, Change.HELD)]
    return not steps or steps[-1] is Change.HELD


def key_of(event: Event, reminder: int = 0) -> str:
    return f"{event.writer}-{event.sequence:06d}" + (f"+{reminder}" if reminder else "")


class _Wait:
    """A time in which something bills and a person should act: a hold, an end without a teardown, a failed stage."""

    def __init__(self) -> None:
        self.first: Event | None = None
        self.last: Event | None = None

    def goes_on(self, event: Event) -> bool:
        """Return True if a teardown fails once more. Each try would tell of it: the reminders do."""
        return _failed_teardown(event) and self.first is not None and _failed_teardown(self.first)

    def hear(self, event: Event, again: bool) -> None:
        if again:
            self.last = event
        elif event.kind in (Kind.HELD, Kind.NODES_AT_ZERO, Kind.STAGE_FAILED) or _left_lost(event):
            self.first = self.last = event
        elif self._ends_with(event):
            self.first = self.last = None

    def _ends_with(self, event: Event) -> bool:
        if event.kind is Kind.ATTEMPT_LAUNCHED and self.first is not None and _left_lost(self.first):
            return False  # it finds no file system either
        if self.first is None or event.kind not in (Kind.STAGE_STARTED, Kind.STAGE_FINISHED):
            return event.kind in _ENDS_A_WAIT
        stage = event.data["stage"]
        if event.kind is Kind.STAGE_FINISHED:
            return stage == Stage.TEARDOWN or stage == self.first.data.get("stage")
        # Another try of a teardown ends nothing: it may fail as well.
        return stage in _ACTING and not (stage == Stage.TEARDOWN and _failed_teardown(self.first))

    def reminder(self, now: datetime) -> Iterator[Told]:
        if self.first is None or self.last is None or now - self.first.at < FIRST_REMINDER:
            return
        count = 1 + (now - self.first.at - FIRST_REMINDER) // NEXT_REMINDERS
        yield Told(key_of(self.first, count), Change.BILLING, self.last, self.first.at)


def _left_lost(event: Event) -> bool:
    """Return True for a lost file system that no driver makes again by itself."""
    return event.kind is Kind.FILE_SYSTEM_LOST and not event.data.get("repair")


def _failed_teardown(event: Event) -> bool:
    return event.kind is Kind.STAGE_FAILED and event.data["stage"] == Stage.TEARDOWN

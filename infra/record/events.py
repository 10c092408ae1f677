"""The events of a campaign, and their fold into its state. Pure: no S3, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, model_validator

from infra.console.visible import visible
from infra.errors import first_line
from infra.record.fold import next_state
from infra.record.payloads import PAYLOADS, Payload, payload_of
from infra.record.payloads.stages import UnreadableRecord
from infra.record.stage import Stage as Stage
from infra.record.state import CampaignState as CampaignState
from trainer.contract.frozen import Frozen


class _Stored(BaseModel):
    """The fields that an event of any version has."""

    at: AwareDatetime
    writer: str
    sequence: int
    kind: str
    data: dict[str, Any] = {}


def _kind_in_use(kind: str) -> str:
    if kind not in PAYLOADS:
        raise ValueError(f"no kind of event: {kind}")
    return kind


class Event(Frozen):
    at: datetime
    writer: str
    sequence: int
    kind: Annotated[str, AfterValidator(_kind_in_use)]
    data: dict[str, Any] = {}

    @classmethod
    def of(cls, payload: Payload, time: datetime, writer: str, sequence: int) -> Event:
        return cls(at=time, writer=writer, sequence=sequence, kind=payload.kind, data=payload.data())

    @cached_property
    def payload(self) -> Payload:
        """What the event says."""
        return payload_of(self.kind, self.data)

    @model_validator(mode="after")
    def _fits(self) -> Event:
        """Raise `ValueError` where the data do not fit the kind."""
        payload_of(self.kind, self.data)
        return self

    def sentence(self) -> str:
        """Return the event in one line; control characters of foreign text are made visible."""
        return visible(self.payload.sentence(), lines=False)


_KIND = re.compile(r"[a-z]+(-[a-z]+)*(\.[a-z]+(-[a-z]+)*)?")


def stored(body: bytes) -> Event | None:
    """Return a stored event; None for a kind that only a later version writes, as an operator's newer clone may while
    an older steward runs: kinds that change a state need a new steward anyway. Raises `ValueError` for anything else.
    """
    content = _Stored.model_validate_json(body)
    if content.kind not in PAYLOADS and _KIND.fullmatch(content.kind):
        return None
    event = Event.model_validate_json(body)
    next_state(CampaignState(), event.payload, event.at)  # folding a misfit would end readers
    return event


def unreadable(key: str, error: Exception, written_at: datetime) -> Event:
    """Return what stands for an event object that cannot be read. `written_at`: the time of its write."""
    _, writer, name = key.rsplit("/", 2)
    number = name.removesuffix(".json")
    sequence = int(number) if number.isascii() and number.isdigit() else 0
    return Event.of(UnreadableRecord(key=key, why=first_line(error)), written_at, writer, sequence)


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """Order events of all writers by time (ties: writer, sequence), but keep each writer's own sequence.

    If a writer's clock is set back, its later events are dated to its latest time until the clock has caught up.
    """
    latest: dict[str, datetime] = {}
    events_in_order = []
    for event in sorted(events, key=lambda e: (e.writer, e.sequence)):
        time = latest[event.writer] = max(event.at, latest.get(event.writer, event.at))
        events_in_order.append(event if event.at == time else event.model_copy(update={"at": time}))
    return tuple(sorted(events_in_order, key=lambda e: (e.at, e.writer, e.sequence)))


def fold(events: Iterable[Event]) -> CampaignState:
    """Return where a campaign stands."""
    state = CampaignState()
    for event in ordered(events):
        state = next_state(state, event.payload, event.at)
    return state

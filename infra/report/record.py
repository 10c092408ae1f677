"""Input of a report; callers with access read it, so that everything after it is pure."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from infra.plan.plan import Plan
from infra.record import meter
from infra.record.events import Event, ordered
from infra.spec.campaign import Spec

PACKED = "record.json.gz"
"""Name of its file in the results folder, which remains after the rehearsal site or account is gone."""


@dataclass(frozen=True)
class Record:
    spec: Spec
    plan: Plan
    events: tuple[Event, ...]
    """In the order of `infra.record.events.ordered`, whatever order they are given in."""
    at: datetime
    """Time of reading; it counts as the end of whatever is still running."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Pod name -> its JSON lines."""
    certificate: dict[str, Any] | None = None
    site: dict[str, Any] | None = None
    """If the campaign was a rehearsal: what was emulated and what was not rehearsed."""
    image: dict[str, Any] | None = None
    """Manifest of the trainer image: base and packages."""
    data: dict[str, Any] | None = None
    """Manifest of the prepared data."""
    archive: dict[str, Any] | None = None
    """Manifest of the archive: every object with its digest."""
    unread: tuple[str, ...] = ()
    """Parts of the record that could not be read, each with the reason."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", ordered(self.events))

    @cached_property
    def reading(self) -> meter.Reading:
        return meter.read(self.plan.cost, self.events, self.at)

    @cached_property
    def begun_at(self) -> datetime | None:
        return self.events[0].at if self.events else None

    def seconds(self, moment: datetime) -> float:
        """Return seconds since the campaign's first event."""
        return (moment - (self.begun_at or self.at)).total_seconds()

    @cached_property
    def now_s(self) -> float:
        return self.seconds(max((self.at, *(event.at for event in self.events[-1:]))))

    def packed(self) -> bytes:
        """Return a compressed file from which the report can be made again without the record."""
        return gzip.compress(_RECORD.dump_json(self), mtime=0)


_RECORD = TypeAdapter(Record)


def unpacked(body: bytes) -> Record:
    """Return the record from `Record.packed`; raise `ValueError` or `OSError` for anything else."""
    return _RECORD.validate_json(gzip.decompress(body))

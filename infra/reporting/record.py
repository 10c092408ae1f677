"""What a report is computed from; read by whoever has access, so that everything after it is pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from infra.events import Event
from infra.plan import Plan
from infra.spec import Spec


@dataclass(frozen=True)
class Record:
    spec: Spec
    plan: Plan
    events: tuple[Event, ...]
    at: datetime
    """When it was read: the end of whatever is still running."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Pod name -> its JSON lines."""
    certificate: dict[str, Any] | None = None
    site: dict[str, Any] | None = None
    """Where the campaign ran in an emulated world: what was emulated, what was not rehearsed."""

    @property
    def begun_at(self) -> datetime | None:
        return min((event.at for event in self.events), default=None)

    def seconds(self, moment: datetime) -> float:
        """Since the campaign's first event."""
        return (moment - (self.begun_at or self.at)).total_seconds()

    @property
    def now_s(self) -> float:
        return self.seconds(max((self.at, *(event.at for event in self.events))))

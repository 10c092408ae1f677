"""The alerts of a record: what fires, what has ended, and the pages that nobody has answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from infra.notices.changes import Told, key_of
from infra.record.events import Event, Stage, ordered
from infra.record.payloads.alerts import AlertAcknowledged, AlertEnded, AlertFired
from infra.record.payloads.stages import StageFinished
from infra.spec.notify import Change

PAGE = "page"
"""The severity that somebody must answer."""


class FiredAlert(NamedTuple):
    """An alert of a record."""

    payload: AlertFired
    event: Event
    """The one by which the steward took it over."""
    ended: datetime | None = None
    """None: it fires, as far as the record knows."""
    acknowledged: AlertAcknowledged | None = None

    @property
    def seconds(self) -> float:
        """Return how long it has fired; 0 while it does."""
        return 0.0 if self.ended is None else (self.ended - self.event.at).total_seconds()


def history(events: Iterable[Event]) -> list[FiredAlert]:
    """Return all alerts of a record, as they fired."""
    alerts, places = list[FiredAlert](), dict[str, int]()
    for event in ordered(events):
        match event.payload:
            case AlertFired() as payload:
                places[payload.key] = len(alerts)
                alerts.append(FiredAlert(payload, event))
            case AlertAcknowledged() as payload if (place := places.get(payload.key)) is not None:
                alerts[place] = alerts[place]._replace(acknowledged=payload)
            case AlertEnded() as payload if (place := places.pop(payload.key, None)) is not None:
                alerts[place] = alerts[place]._replace(ended=event.at)
            case StageFinished(stage=Stage.TEARDOWN):  # nothing is left that could fire
                for place in places.values():
                    alerts[place] = alerts[place]._replace(ended=event.at)
                places.clear()
    return alerts


def alerts_without_answer(events: Iterable[Event]) -> list[FiredAlert]:
    """Return the alerts that fire and that nobody has acknowledged, the oldest first."""
    return [alert for alert in history(events) if alert.ended is None and alert.acknowledged is None]


def escalation(events: Iterable[Event], now: datetime, span: timedelta | None) -> Iterator[Told]:
    """Yield one notice of all pages that wait for an answer, if the oldest has waited for `span` or a multiple of it
    since it was last sent. Its key has the number of the multiple, so that every process finds it again."""
    pages = [alert for alert in alerts_without_answer(events) if alert.payload.severity == PAGE]
    if span is None or not pages or now - pages[0].event.at < span:
        return
    oldest = pages[0].event
    other_names = tuple(alert.payload.alert for alert in pages[1:])
    yield Told(key_of(oldest, escalation=(now - oldest.at) // span), Change.ALERT, oldest, oldest.at, other_names)

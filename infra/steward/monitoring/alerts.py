"""Take alerts over from Alertmanager into the record, from which people are told, as of every other change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from pydantic import Field, TypeAdapter, ValidationError

from infra.monitoring.alerts import HEARTBEAT
from infra.notices.fired_alerts import history
from infra.record.lease_thread import LeaseThread
from infra.record.payloads.alerts import AlertAcknowledged, AlertEnded, AlertFired, AlertsUnseen
from infra.record.store import CampaignStore
from infra.steward.seeing import agents
from trainer.contract.frozen import Frozen

log = logging.getLogger("alerts")
ALERTMANAGER, ALERTMANAGER_PORT = "kube-prometheus-stack-alertmanager.monitoring", 9093
"""The service of the chart `kube-prometheus-stack`, as the release of this name has it."""
_PATH = "/api/v2/alerts"
"""Also those that are silenced or inhibited: they have not ended."""
_UNSEEN_S = 120.0
"""Silence after which people are told that alerts cannot be seen: longer than Alertmanager takes to start anew."""
_LATE_S = 150.0
"""Time without a new heartbeat after which Prometheus counts as silent. It sends a firing alert again once a minute,
with an end four minutes ahead: its absence would tell too late."""
_MOST = 64
"""Alerts that fire at once in the record; more say nothing new to a person."""


class AlertStatus(Frozen, extra="ignore"):
    state: str = ""
    silences: tuple[str, ...] = Field(default=(), alias="silencedBy")

    @property
    def is_quiet(self) -> bool:
        """Return whether somebody has silenced it, or another alert says the same."""
        return self.state == "suppressed"


class Alert(Frozen, extra="ignore"):
    """One alert of Alertmanager's API v2, whose condition holds."""

    labels: dict[str, str]
    annotations: dict[str, str] = {}
    began: str = Field(alias="startsAt")
    received: str = Field(default="", alias="updatedAt")
    """When Prometheus last sent it; empty: not told."""
    status: AlertStatus = AlertStatus()

    @property
    def key(self) -> str:
        return self.fired().key

    def fired(self) -> AlertFired:
        return AlertFired(
            alert=self.labels.get("alertname", "?"),
            severity=self.labels.get("severity", "?"),
            summary=self.annotations.get("summary", ""),
            runbook=self.annotations.get("runbook_url", ""),
            began=self.began,
            labels=self.labels,
        )


_ALERTS = TypeAdapter(list[Alert])


def read(address: str = ALERTMANAGER, port: int = ALERTMANAGER_PORT) -> list[Alert]:
    """Return the alerts whose condition holds. Raises `NoAnswer`."""
    answer = agents.get(address, _PATH, 5.0, agents.LISTING_BYTES, port)
    if answer.code != HTTPStatus.OK:
        raise agents.NoAnswer(f"Alertmanager answers with status {answer.code}")
    try:
        return _ALERTS.validate_json(answer.body)
    except ValidationError as error:
        raise agents.NoAnswer(f"Alertmanager's answer: {error.errors()[0]['msg']}") from error


class AlertWatch(LeaseThread):
    """A thread, so that the steward's loop never waits for Alertmanager."""

    name, every_s = "alerts", 2.0

    def __init__(
        self,
        store: CampaignStore,
        guard: Callable[[], None],
        read: Callable[[], list[Alert]] = read,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`guard` raises where the lease is lost: another steward then takes alerts over."""
        self._store, self._guard, self._read, self._monotonic = store, guard, read, monotonic
        self._open: dict[str, AlertFired] | None = None
        self._acknowledged = set[str]()
        self._heard, self._is_unseen_told = monotonic(), False
        self._beat, self._beat_at = "", monotonic()
        """When Prometheus sent its newest heartbeat, and when it was first seen here: clocks of nodes may differ."""

    def look(self) -> None:
        """Record what has fired and what has ended since the last look."""
        try:
            alerts = {alert.key: alert for alert in self._read()}
        except agents.NoAnswer as error:
            return self._note_silence(str(error))
        active = {key: alert for key, alert in alerts.items() if alert.labels.get("alertname") != HEARTBEAT}
        if active == alerts:
            return self._note_silence("Prometheus sends Alertmanager nothing, not even its heartbeat")
        beat = max(alerts[key].received for key in alerts.keys() - active.keys())
        if beat != self._beat or not beat:
            self._beat, self._beat_at = beat, self._monotonic()
        elif self._monotonic() - self._beat_at >= _LATE_S:
            return self._tell_unseen(f"Prometheus has sent Alertmanager no heartbeat since {beat}")
        self._heard, self._is_unseen_told = self._monotonic(), False
        self._guard()
        if self._open is None:
            firing = [alert for alert in history(self._store.events()) if alert.ended is None]
            self._open = {alert.payload.key: alert.payload for alert in firing}
            self._acknowledged = {alert.payload.key for alert in firing if alert.acknowledged is not None}
        for key, alert in active.items():
            if key not in self._open and not alert.status.is_quiet and len(self._open) < _MOST:
                self._store.append(payload := alert.fired())
                self._open[key] = payload
        for key in [key for key in self._open if key in active and active[key].status.silences]:
            if key not in self._acknowledged:
                row, person = self._open[key], "a silence in Alertmanager"
                self._store.append(AlertAcknowledged(alert=row.alert, began=row.began, labels=row.labels, by=person))
                self._acknowledged.add(key)
        for key in [key for key in self._open if key not in active]:
            old_alert = self._open[key]
            self._store.append(AlertEnded(alert=old_alert.alert, began=old_alert.began, labels=old_alert.labels))
            del self._open[key]

    def _note_silence(self, reason: str) -> None:
        if self._monotonic() - self._heard >= _UNSEEN_S:
            self._tell_unseen(reason)

    def _tell_unseen(self, reason: str) -> None:
        if self._is_unseen_told:
            return
        self._guard()
        self._store.append(AlertsUnseen(why=reason))
        self._is_unseen_told = True

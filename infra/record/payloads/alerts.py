"""Alerts of the monitoring, as the steward takes them over from Alertmanager."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import AwareDatetime, Field

from infra.record.payloads.base import Payload, Text
from infra.spec.notify import Change


class _OfAlert(Payload):
    alert: str
    began: str
    """When its condition began to hold, by Prometheus."""
    labels: Annotated[dict[str, str], Field(max_length=40)] = {}

    @property
    def key(self) -> str:
        """Return what all events of this alert, and of no other, have in common."""
        return json.dumps([self.began, self.labels], sort_keys=True)


class AlertFired(_OfAlert, kind="alert.fired", notice=Change.ALERT, watched=True):
    severity: str
    summary: Text
    runbook: str
    """Below docs/runbooks."""

    def sentence(self) -> str:
        return f"alert {self.alert} ({self.severity}): {self.summary}; see {self.runbook}"


class AlertAcknowledged(_OfAlert, kind="alert.acknowledged", watched=True):
    """Somebody has it in hand: it is escalated no further."""

    by: str
    why: Text = ""

    def sentence(self) -> str:
        return f"alert {self.alert} is acknowledged by {self.by}" + (f": {self.why}" if self.why else "")


class AlertEnded(_OfAlert, kind="alert.ended"):
    def sentence(self) -> str:
        return f"alert {self.alert} has ended"


class AlertsUnseen(Payload, kind="alerts.unseen", notice=Change.ALERT, watched=True):
    """Alertmanager does not answer: no alert is not the same as all well."""

    why: Text

    def sentence(self) -> str:
        return f"the alerts cannot be seen: {self.why}"


class SeriesUnkept(Payload, kind="series.unkept", watched=True):
    """Series of the monitoring could not be kept with the record."""

    begin: AwareDatetime
    """From this time on they may be missing."""
    why: Text

    def sentence(self) -> str:
        return f"series of the monitoring are not kept from {self.begin:%Y-%m-%d %H:%M} UTC on: {self.why}"

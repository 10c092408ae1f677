"""Alerts of the monitoring, as the steward takes them over from Alertmanager."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from infra.record.payloads.base import Payload, Text
from infra.spec.notify import Change


class AlertFired(Payload, kind="alert.fired", notice=Change.ALERT, watched=True):
    alert: str
    severity: str
    summary: Text
    runbook: str
    """Below docs/runbooks."""
    began: str
    """When its condition began to hold, by Prometheus."""
    labels: Annotated[dict[str, str], Field(max_length=40)] = {}

    def sentence(self) -> str:
        return f"alert {self.alert} ({self.severity}): {self.summary}; see {self.runbook}"


class AlertEnded(Payload, kind="alert.ended"):
    alert: str
    began: str
    labels: Annotated[dict[str, str], Field(max_length=40)] = {}

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

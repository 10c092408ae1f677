"""`bivouac alerts NAME --silence 2h --why …`: a maintenance window, kept by Alertmanager in the campaign's cluster.

While it lasts the steward takes no new alert over, so nobody is told of any. What still fires at its end is told then.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from infra.errors import BivouacError, UserError
from infra.monitoring.alerts import HEARTBEAT, alerts
from infra.monitoring.prometheus import SPACE
from infra.monitoring.refusal import refusal, silent

LONGEST = timedelta(hours=24)
"""A longer one outlives the person who remembers it."""
_SERVICE = "http:kube-prometheus-stack-alertmanager:9093"
PROXY = f"/api/v1/namespaces/{SPACE}/services/{_SERVICE}/proxy"
_PROGRAM = "Alertmanager"


class _SilenceStatus(BaseModel):
    state: str


class Silence(BaseModel):
    """A silence as Alertmanager lists it."""

    id: str
    ends_at: datetime = Field(alias="endsAt")
    why: str = Field(alias="comment")
    by: str = Field(alias="createdBy")
    matchers: list[dict[str, Any]]
    status: _SilenceStatus

    @property
    def scope(self) -> str:
        """Return which alerts it silences, in words."""
        names = [str(row["value"]) for row in self.matchers if row.get("isEqual", True)]
        return ", ".join(names) or "all alerts"


_SILENCES = TypeAdapter(list[Silence])


def person() -> str:
    """Return who types the command, for those who come later."""
    return f"{getpass.getuser()}@{os.uname().nodename}"


def silence(http: httpx2.Client, lasts: timedelta, reason: str, alert: str | None) -> str:
    """Silence one alert or all for so long, from now on; return the silence's number. Raises `UserError` for an unknown
    alert, a time that is too long, or no reason."""
    if alert is not None and alert not in alerts():
        raise UserError("no alert has this name", seen=alert, cure=f"one of {', '.join(alerts())}")
    if not timedelta(0) < lasts <= LONGEST:
        raise UserError("a silence cannot last so long", seen=str(lasts), cure="write at most 24h, and extend it then")
    if not reason.strip():
        raise UserError("a silence needs its reason", seen="no reason", cure='add --why "…" for those who come later')
    begin = datetime.now(UTC)
    # The heartbeat is never silenced: by it the steward knows that alerts reach it.
    matcher = {"name": "alertname", "value": alert or HEARTBEAT, "isRegex": False, "isEqual": alert is not None}
    body = {
        "matchers": [matcher],
        "startsAt": begin.isoformat(),
        "endsAt": (begin + lasts).isoformat(),
        "createdBy": person(),
        "comment": reason,
    }
    answer = _call(http, "POST", "/api/v2/silences", body)
    return str(answer.json()["silenceID"])


def silences(http: httpx2.Client) -> list[Silence]:
    """Return the silences that are in force, the first to end first."""
    answer = _call(http, "GET", "/api/v2/silences", None)
    try:
        rows = _SILENCES.validate_json(answer.content)
    except ValidationError as error:
        raise silent(_PROGRAM, f"its silences: {error.errors()[0]['msg']}") from error
    return sorted((row for row in rows if row.status.state == "active"), key=lambda row: row.ends_at)


def end_silences(http: httpx2.Client, alert: str | None = None) -> int:
    """End the silences of one alert, or all that are in force; return their number."""
    rows = [row for row in silences(http) if alert in (None, row.scope)]
    for row in rows:
        try:
            _call(http, "DELETE", f"/api/v2/silence/{row.id}", None)
        except BivouacError:
            if row.id in {left.id for left in silences(http)}:
                raise  # else it has ended meanwhile
    return len(rows)


def _call(http: httpx2.Client, method: str, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
    """Return Alertmanager's answer through the API server. Raises `TemporaryError` where there is none, and by its
    status `UserError` or `PermanentError` for a refusal."""
    try:
        answer = http.request(method, PROXY + path, json=None if body is None else dict(body))
    except httpx2.TransportError as error:
        raise silent(_PROGRAM, str(error)) from error
    if not answer.is_success:
        raise refusal(_PROGRAM, answer.status_code, answer.content)
    return answer

"""Alerts of Alertmanager come into the record once, end there, and an Alertmanager that is silent is told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.errors import LeaseLost
from infra.notices.changes import changes
from infra.record.payloads.alerts import AlertEnded, AlertFired, AlertsUnseen
from infra.record.store import CampaignStore
from infra.spec.notify import Change
from infra.steward.monitoring import alerts
from infra.steward.monitoring.alerts import Alert, AlertWatch
from infra.steward.seeing.agents import NoAnswer
from tests.worlds.s3 import FakeS3, Time


def alert(name: str, began: str = "2026-11-26T12:00:00Z", state: str = "active", **labels: str) -> Alert:
    content = {
        "labels": {"alertname": name, "severity": "page", **labels},
        "annotations": {"summary": f"{name} it is", "runbook_url": f"docs/runbooks/{name}.md"},
        "startsAt": began,
        "status": {"state": state, "inhibitedBy": []},
        "fingerprint": "f00d",
    }
    return Alert.model_validate(content)


class Monitored:
    """A record, and what Alertmanager answers."""

    def __init__(self) -> None:
        self.time = Time()
        self.s3 = FakeS3(self.time)
        self.active: list[Alert] | None = []
        self.lease_lost, self.beats, self.sent = False, True, ""

    def watch(self, writer: str = "steward-1") -> AlertWatch:
        store = CampaignStore(self.s3, "state", "train", writer, now=self.time.wall)
        return AlertWatch(store, self._guard, self._read, self.time)

    def events(self) -> list[object]:
        reader = CampaignStore(self.s3, "state", "train", "reader", now=self.time.wall)
        return [event.payload for event in reader.events()]

    def notices(self) -> list[Change]:
        reader = CampaignStore(self.s3, "state", "train", "reader", now=self.time.wall)
        return [change.change for change in changes(reader.events(), self.time.wall())]

    def _guard(self) -> None:
        if self.lease_lost:
            raise LeaseLost("another steward has it")

    def _read(self) -> list[Alert]:
        if self.active is None:
            raise NoAnswer("refused")
        beat = alert("Heartbeat", severity="none").model_copy(update={"received": self.sent})
        return [*self.active, *([beat] if self.beats else [])]


def test_an_alert_is_recorded_once_told_and_ends() -> None:
    camp = Monitored()
    watch = camp.watch()
    camp.active = [alert("PodSilent", pod="a-0"), alert("Held")]
    watch.look(), watch.look()
    fired = [payload for payload in camp.events() if isinstance(payload, AlertFired)]
    assert [(payload.alert, payload.labels.get("pod")) for payload in fired] == [("PodSilent", "a-0"), ("Held", None)]
    assert fired[0].sentence() == "alert PodSilent (page): PodSilent it is; see docs/runbooks/PodSilent.md"
    assert camp.notices() == [Change.ALERT, Change.ALERT]
    camp.active = [alert("Held")]
    watch.look(), watch.look()
    assert [payload.alert for payload in camp.events() if isinstance(payload, AlertEnded)] == ["PodSilent"]
    camp.active.append(alert("PodSilent", began="2026-11-26T12:09:00Z", pod="a-0"))
    watch.look()
    assert len([payload for payload in camp.events() if isinstance(payload, AlertFired)]) == 3, "it fires anew"


def test_a_successor_tells_no_alert_again_and_ends_what_has_ended_meanwhile() -> None:
    camp = Monitored()
    camp.active = [alert("PodSilent", pod="a-0"), alert("Held")]
    camp.watch().look()
    camp.active = [alert("Held")]
    camp.watch("steward-2").look()
    kinds = [type(payload).__name__ for payload in camp.events()]
    assert kinds == ["AlertFired", "AlertFired", "AlertEnded"]


def test_a_silence_of_alertmanager_is_told_once_and_ends_no_alert() -> None:
    camp = Monitored()
    watch = camp.watch()
    camp.active = [alert("Held")]
    watch.look()
    camp.active = None
    watch.look()
    assert len(camp.events()) == 1, "it may start anew"
    camp.time.go(121)
    watch.look(), watch.look()
    assert [type(payload) for payload in camp.events()] == [AlertFired, AlertsUnseen]
    camp.active = [alert("Held")]
    watch.look()
    camp.active = None
    camp.time.go(121)
    watch.look()
    assert [type(payload) for payload in camp.events()][2:] == [AlertsUnseen], "a second silence is told again"


def test_without_the_lease_nothing_is_written() -> None:
    camp = Monitored()
    camp.active, camp.lease_lost = [alert("Held")], True
    with pytest.raises(LeaseLost):
        camp.watch().look()
    assert camp.events() == []


ANSWERS = {
    "no JSON": (200, b"<html>"),
    "no alerts": (200, b'{"status": "success"}'),
    "an error": (503, b"[]"),
}


@pytest.mark.parametrize("how", [*ANSWERS, "alerts"])
def test_what_is_no_list_of_alerts_is_no_answer(how: str) -> None:
    good = json.dumps([json.loads(alert("Held").model_dump_json(by_alias=True))]).encode()
    code, body = ANSWERS.get(how, (200, good))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code), self.send_header("Content-Length", str(len(body))), self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        if how == "alerts":
            assert [row.key for row in alerts.read("127.0.0.1", server.server_port)] == [alert("Held").key]
        else:
            with pytest.raises(NoAnswer):
                alerts.read("127.0.0.1", server.server_port)
    finally:
        server.shutdown(), server.server_close()


def test_an_alert_of_what_another_event_tells_is_recorded_and_no_notice() -> None:
    camp = Monitored()
    camp.active = [alert("AttemptFailed", severity="note"), alert("PodSilent")]
    camp.watch().look()
    assert len(camp.events()) == 2 and camp.notices() == [Change.ALERT]


def test_an_alertmanager_that_prometheus_sends_nothing_sees_nothing_and_ends_no_alert() -> None:
    camp = Monitored()
    watch = camp.watch()
    camp.active = [alert("Held")]
    watch.look()
    camp.active, camp.beats = [], False
    watch.look()
    assert [type(payload) for payload in camp.events()] == [AlertFired]
    camp.time.go(121)
    watch.look(), watch.look()
    assert [type(payload) for payload in camp.events()] == [AlertFired, AlertsUnseen]
    assert "heartbeat" in camp.events()[1].sentence()  # type: ignore[attr-defined]


def test_a_heartbeat_that_nobody_sends_again_is_a_silence_long_before_it_ends() -> None:
    camp = Monitored()
    watch = camp.watch()
    camp.active, camp.sent = [alert("Held")], "2026-11-26T12:00:00.000Z"
    watch.look()
    camp.time.go(100)
    camp.sent = "2026-11-26T12:01:40.000Z"
    watch.look()
    camp.time.go(149)
    watch.look()
    assert [type(payload) for payload in camp.events()] == [AlertFired]
    camp.time.go(2)
    camp.active = []
    watch.look(), watch.look()
    assert [type(payload) for payload in camp.events()] == [AlertFired, AlertsUnseen], "and no alert has ended"
    assert "2026-11-26T12:01:40" in camp.events()[1].sentence()  # type: ignore[attr-defined]
    camp.sent = "2026-11-26T12:09:00.000Z"
    watch.look()
    assert isinstance(camp.events()[-1], AlertEnded), "what Prometheus says now counts"


def test_an_alert_that_another_silences_has_not_ended_and_one_silent_at_first_is_untold() -> None:
    camp = Monitored()
    watch = camp.watch()
    camp.active = [alert("TrainingStalled"), alert("AttemptFailed", state="suppressed")]
    watch.look()
    camp.active = [alert("TrainingStalled", state="suppressed"), alert("PodSilent")]
    watch.look()
    camp.active = [alert("TrainingStalled"), alert("PodSilent")]
    watch.look()
    kinds = [(type(payload), payload.alert) for payload in camp.events()]  # type: ignore[attr-defined]
    assert kinds == [(AlertFired, "TrainingStalled"), (AlertFired, "PodSilent")]


def test_of_very_many_alerts_a_part_is_recorded_and_none_ends_before_its_condition_does() -> None:
    camp = Monitored()
    watch = camp.watch()
    flood = [alert("PodSilent", pod=f"a-{number}") for number in range(200)]
    camp.active = flood
    watch.look()
    camp.active = flood[::-1]
    watch.look()
    assert [type(payload) for payload in camp.events()] == [AlertFired] * 64
    camp.active = []
    watch.look()
    assert [type(payload) for payload in camp.events()][64:] == [AlertEnded] * 64

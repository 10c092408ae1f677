"""A maintenance window: the real Alertmanager on loopback, by the release's configuration; the test stands for the API
server, which only passes requests on."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from infra.cli.look import alerts
from infra.console.plain_console import PlainConsole
from infra.errors import BivouacError, PermanentError, TemporaryError, UserError
from infra.folders import share_dir, tools_dir
from infra.monitoring.alerts import HEARTBEAT, alertmanager_config
from infra.monitoring.silence import PROXY, end_silences, silence, silences
from infra.notices.outbox import Outbox
from infra.record.payloads.alerts import AlertAcknowledged
from infra.spec.notify import Notify
from infra.steward.monitoring.alerts import AlertWatch, read
from infra.steward.seeing.agents import NoAnswer
from tests.unit.notices.test_outbox import Way
from tests.waiting import until as eventually
from tests.worlds.record import MemoryRecord


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of an Alertmanager with a heartbeat and two alerts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "config.json").write_text(json.dumps(alertmanager_config()))
    argv = [
        str(tools_dir() / "alertmanager"), f"--config.file={tmp_path / 'config.json'}", f"--storage.path={tmp_path}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    templates = share_dir("alertmanager", tools_dir())
    if (templates / "default.tmpl").exists() and not Path("/usr/share/prometheus/alertmanager").exists():
        # Debian's looks for its templates in a folder of the machine.
        place = "/usr/share/prometheus/alertmanager"
        script = f'mount -t tmpfs t /usr/share && mkdir -p {place} && cp {templates}/*.tmpl {place}/ && exec "$@"'
        argv = ["unshare", "--mount", "--map-root-user", "--", "sh", "-c", script, "sh", *argv]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: send(port), "Alertmanager takes alerts")
        eventually(lambda: states(port).keys() == {HEARTBEAT, "Held", "PodSilent"}, "it lists them")
        yield port
    finally:
        process.kill()
        process.wait()


def send(port: int) -> bool:
    rows = [{"labels": {"alertname": name, "severity": "page"}} for name in (HEARTBEAT, "Held", "PodSilent")]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v2/alerts", json.dumps(rows).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def states(port: int) -> dict[str, bool]:
    """Alert -> whether the steward takes it for quiet."""
    try:
        return {alert.labels["alertname"]: alert.status.is_quiet for alert in read("127.0.0.1", port)}
    except NoAnswer:
        return {}


def api_server(port: int) -> httpx2.Client:
    loopback = httpx2.Client(trust_env=False)

    def forward(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path.startswith(PROXY)
        url = f"http://127.0.0.1:{port}{request.url.path.removeprefix(PROXY)}"
        answer = loopback.request(
            request.method, url, content=request.content, headers={"Content-Type": "application/json"}
        )
        return httpx2.Response(answer.status_code, content=answer.content)

    return httpx2.Client(transport=httpx2.MockTransport(forward), base_url="https://cluster")


def test_a_window_silences_all_but_the_heartbeat_and_ends_when_somebody_says_so(port: int) -> None:
    http = api_server(port)
    assert silences(http) == [] and not any(states(port).values())
    silence(http, timedelta(hours=2), "a switch is replaced", None)
    eventually(lambda: states(port) == {HEARTBEAT: False, "Held": True, "PodSilent": True}, "all is silent")
    (row,) = silences(http)
    assert (row.scope, row.why) == ("all alerts", "a switch is replaced") and "@" in row.by
    assert timedelta(minutes=110) < row.ends_at - datetime.now(UTC) <= timedelta(hours=2)
    assert end_silences(http) == 1 and silences(http) == []
    eventually(lambda: not any(states(port).values()), "all is told again")


def test_the_command_silences_a_single_alert(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_cluster(store: object) -> Iterator[Any]:
        yield SimpleNamespace(http=api_server(port))

    monkeypatch.setattr(alerts, "record_of", lambda campaign, region: None)
    monkeypatch.setattr(alerts, "open_cluster", open_cluster)
    output = io.StringIO()
    console = PlainConsole(file=output, width=200)
    arguments: dict[str, Any] = {"lasts": "90m", "why": "known", "only": "Held"}
    assert alerts.alerts_command("train", "us-east-1", False, console, **arguments) == 0
    assert output.getvalue().startswith("Held until ") and output.getvalue().endswith(": known\n")
    eventually(lambda: states(port) == {HEARTBEAT: False, "Held": True, "PodSilent": False}, "one is silent")
    assert alerts.alerts_command("train", "us-east-1", False, console, lasts="off") == 0
    assert "1 silence ended" in output.getvalue()


def test_a_page_of_alertmanagers_is_escalated_until_somebody_silences_or_acknowledges_it(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alertmanager, the steward's watch, the record, the outbox and the command are real; routes and clock are not."""
    record, pager = MemoryRecord(), Way()
    notify = Notify.model_validate(
        {"routes": {"pager": {"parameter": "/bivouac_webhook", "escalation": True}}, "escalate_after": "15m"}
    )
    store = record.store("steward-1")
    alert_watch = AlertWatch(store, lambda: None, lambda: read("127.0.0.1", port), lambda: 0.0)
    outbox = Outbox(store, notify, {"topic": Way(), "pager": pager}, record.time.wall)

    def look(minutes: int) -> list[str]:
        record.time.go(60 * minutes)
        alert_watch.look()
        outbox.tell(lambda: "1.00 USD/h")
        return [notice.text.partition(": ")[2].partition(":")[0] for notice in pager.got]

    assert look(0) == [] and look(15) == ["alert Held (page)"] and "PodSilent" in pager.got[0].text
    silence(api_server(port), timedelta(hours=2), "I have it", "Held")
    eventually(lambda: states(port)["Held"], "it is silent")
    assert look(15) == ["alert Held (page)", "alert PodSilent (page)"]
    monkeypatch.setattr(alerts, "record_of", lambda campaign, region: record.store("person"))
    output = io.StringIO()
    assert alerts.alerts_command("train", "us-east-1", False, PlainConsole(file=output, width=200), ack=True) == 0
    assert output.getvalue().startswith("PodSilent is yours") and len(look(60)) == 2
    answers = [event.payload for event in store.events() if isinstance(event.payload, AlertAcknowledged)]
    assert {row.alert: row.by == "a silence in Alertmanager" for row in answers} == {"Held": True, "PodSilent": False}


@pytest.mark.parametrize(
    ("lasts", "why", "alert", "message"),
    [
        (timedelta(hours=2), " ", None, "needs its reason"),
        (timedelta(hours=25), "x", None, "cannot last so long"),
        (timedelta(0), "x", None, "cannot last so long"),
        (timedelta(hours=1), "x", "Hold", "no alert has this name"),
    ],
)
def test_what_would_hide_too_much_is_refused(lasts: timedelta, why: str, alert: str | None, message: str) -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise AssertionError("nothing is asked")

    with pytest.raises(UserError, match=message):
        silence(httpx2.Client(transport=httpx2.MockTransport(refuse), base_url="https://c"), lasts, why, alert)


STATUS = b'{"kind": "Status", "message": "services \\"a\\" is forbidden"}'


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (httpx2.Response(503, text="no endpoints"), TemporaryError, "Alertmanager does not answer.*no endpoints"),
        (httpx2.Response(429, text="later"), TemporaryError, "Alertmanager does not answer"),
        (httpx2.Response(200, text="[{}]"), TemporaryError, "Alertmanager does not answer"),
        (httpx2.Response(401, text=""), UserError, "does not let these credentials ask Alertmanager"),
        (httpx2.Response(403, content=STATUS), UserError, 'credentials ask Alertmanager.*services "a" is forbidden'),
        (httpx2.Response(404, content=STATUS), UserError, "the cluster has no Alertmanager"),
        (httpx2.Response(400, text='"bad matcher"'), PermanentError, "Alertmanager refuses the request.*bad matcher"),
    ],
)
def test_each_refusal_is_told_by_what_it_means_and_is_no_empty_list(
    answer: httpx2.Response, kind: type[BivouacError], message: str
) -> None:
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer), base_url="https://cluster")
    with pytest.raises(kind, match=message):
        silences(http)


def test_a_window_that_has_ended_meanwhile_is_no_error_and_a_refusal_is(port: int) -> None:
    http = api_server(port)
    silence(http, timedelta(hours=1), "x", "Held")
    silence(http, timedelta(hours=1), "x", "PodSilent")
    assert end_silences(http, "Held") == 1 and [row.scope for row in silences(http)] == ["PodSilent"]
    (row,) = silences(http)
    listed = [json.dumps([json.loads(row.model_dump_json(by_alias=True))]), "[]"]

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(404) if request.method == "DELETE" else httpx2.Response(200, text=listed.pop(0))

    assert end_silences(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="https://cluster")) == 1
    listed += [json.dumps([json.loads(row.model_dump_json(by_alias=True))])] * 2
    with pytest.raises(UserError, match="no Alertmanager"):
        end_silences(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="https://cluster"))

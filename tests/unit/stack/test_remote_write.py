"""Remote write by the real Prometheus to a receiver on loopback; the test does what the chart's operator does, which
writes the same fields into Prometheus' configuration in its own spelling."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from infra.folders import tools_dir
from infra.monitoring.alerts import CHART
from infra.spec.monitoring.remote_write import RemoteWrite
from infra.stack.cluster.remote_write import remote_write, with_remote_write
from tests.waiting import until as eventually

AMP = "https://aps-workspaces.eu-west-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write"
ROLE = "arn:aws:iam::123456789012:role/bivouac-metrics"


class Loopback(BaseHTTPRequestHandler):
    """A target with two metrics."""

    def do_GET(self) -> None:
        self.answer(200, b'bivouac_loss{campaign="train"} 2.5\nnode_other_total 7\n')

    def answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def loopback() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Loopback)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def as_the_operator_writes(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name): as_the_operator_writes(one)
            for name, one in value.items()
        }
    return [as_the_operator_writes(one) for one in value] if isinstance(value, list) else value


def document(row: dict[str, Any], target: str | None = None) -> dict[str, Any]:
    jobs = [{"job_name": "trainer", "static_configs": [{"targets": [target]}]}] if target else []
    written = as_the_operator_writes(row) | {"queue_config": {"batch_send_deadline": "1s"}}
    return {"global": {"scrape_interval": "1s"}, "remote_write": [written], "scrape_configs": jobs}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def run(name: str, content: dict[str, Any], *flags: str) -> str:
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"127.0.0.1:{free.getsockname()[1]}"
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
            argv = [
                str(tools_dir() / "prometheus"), f"--config.file={tmp_path / name}.json",
                f"--storage.tsdb.path={tmp_path / name}", f"--web.listen-address={address}", *flags,
            ]  # fmt: skip
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            eventually(lambda: is_ready(address), f"{name} is ready")
            return address

        yield run


def is_ready(address: str) -> bool:
    try:
        return get(f"http://{address}/-/ready") is not None
    except OSError:
        return False


def get(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
        return bytes(answer.read())


def series(address: str, query: str) -> list[dict[str, str]]:
    answer = json.loads(get(f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    return [row["metric"] for row in answer["data"]["result"]]


@pytest.mark.parametrize("target", [{"url": AMP, "role": ROLE}, {"url": "http://mimir.team:9009/api/v1/push"}])
def test_promtool_takes_the_configuration(target: dict[str, Any], tmp_path: Path) -> None:
    row = remote_write(RemoteWrite.model_validate(target), "train")
    (tmp_path / "prometheus.json").write_text(json.dumps(document(row)))
    command = [str(tools_dir() / "promtool"), "check", "config", str(tmp_path / "prometheus.json")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert row.get("sigv4") == ({"region": "eu-west-1"} if "role" in target else None)


@pytest.mark.parametrize("all_series", [False, True])
def test_a_receiver_gets_the_series_of_dashboards_or_all(loopback: str, start: Any, all_series: bool) -> None:
    receiver = start("receiver", {}, "--web.enable-remote-write-receiver")
    url = f"http://{receiver}/api/v1/write"
    row = remote_write(RemoteWrite(url=url, all_series=all_series), "train")
    start("writer", document(row, loopback))
    eventually(lambda: series(receiver, "bivouac_loss"), "the loss arrives")
    (labels,) = series(receiver, "bivouac_loss")
    assert labels["campaign"] == "train"
    if all_series:
        eventually(lambda: series(receiver, "node_other_total"), "others arrive too")
    else:
        names = {row["__name__"] for row in series(receiver, '{job="trainer"}')}
        assert names == {"bivouac_loss"}, "neither the other metric nor Prometheus' own of the scrape"


@pytest.mark.parametrize(
    "target",
    [
        {"url": AMP},
        {"url": "https://mimir.team/push", "role": ROLE},
        {"url": AMP, "role": "arn:aws:iam::123456789012:role/metrics"},
        {"url": "https://team:secret@mimir.team/push"},
        {"url": "mimir.team/push"},
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused(target: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RemoteWrite.model_validate(target)


def test_other_charts_and_other_values_stay_as_they_are() -> None:
    values = {"prometheus": {"service": {"type": "ClusterIP"}, "prometheusSpec": {"retention": "15d"}}, "grafana": {}}
    target = RemoteWrite(url="https://mimir.team/push")
    assert with_remote_write("kueue", values, target, "train") is values
    assert with_remote_write(CHART, values, None, "train") is values
    fresh = with_remote_write(CHART, values, target, "train")
    rows = fresh["prometheus"]["prometheusSpec"].pop("remoteWrite")
    assert len(rows) == 1 and fresh == values and "remoteWrite" not in values["prometheus"]["prometheusSpec"]

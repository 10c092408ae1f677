"""The page of dashboards is served on loopback alone, panel by panel, whatever a site's network is."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import target
from infra.cli.look import dashboard, panels
from infra.cli.look.dashboard import dashboard_command
from infra.cli.look.panels import PanelServer, legend_of, series_of_panel
from infra.console.plain_console import PlainConsole
from infra.errors import TemporaryError, UserError
from infra.folders import tools_dir
from infra.monitoring import page
from infra.monitoring.dashboards import dashboards, grafana_json
from infra.monitoring.series import MetricSeries
from tests.root import ROOT
from tests.unit.cli.look.test_metrics import BEGIN, body


class Source:
    origin, begin, end = "a test", float(BEGIN), float(BEGIN + 3600)

    def __init__(self) -> None:
        self.asked: list[tuple[str, float, float, float]] = []

    def ask(self, query: str, begin: float, end: float, step: float) -> list[MetricSeries]:
        self.asked.append((query, begin, end, step))
        if "hfu" in query:
            raise TemporaryError("it is away", delay=None)  # type: ignore[arg-type]
        points = [(begin, 1.0), (end, float("nan"))]
        return [MetricSeries("", {"attempt": str(number)}, points) for number in range(70)]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def server(source: Any) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PanelServer(listener, "train", source)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url.removesuffix("/")
        server.shutdown()


def get(url: str, **headers: str) -> tuple[int, Any, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=300) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_the_page_has_all_that_it_loads_and_nothing_from_elsewhere(server: str) -> None:
    code, headers, content = get(f"{server}/")
    assert code == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    parts = re.findall(r'(?:src|href)="([^"]+)"', content.decode())
    assert len(parts) == 4
    for part in parts:
        assert get(f"{server}/{part}")[0] == 200, part
    own = b"".join(page.content(name) for name in ("page.html", "page.css", "page.js"))
    assert b"http" not in own.replace(b"http-equiv", b"")


def test_what_is_shipped_of_others_has_its_licence() -> None:
    assert b"MIT License" in page.content("uPlot.LICENSE.txt") and b"Leon Sorokin" in page.content("uPlot.LICENSE.txt")
    assert page.content("uPlot.min.js").startswith(b"/*! https://github.com/leeoniya/uPlot (v1.6.32) */")


def test_the_panels_are_those_of_the_table(server: str) -> None:
    facts = json.loads(get(f"{server}/panels")[2])
    assert (facts["campaign"], facts["origin"], facts["live"]) == ("train", "a test", False)
    assert {row["name"]: [panel["title"] for panel in row["panels"]] for row in facts["boards"]} == {
        name: [panel.title for panel in board.panels] for name, board in dashboards().items() if name != "campaigns"
    }


def test_a_panel_asks_its_own_queries_over_the_time_that_is_wanted(server: str, source: Source) -> None:
    answer = json.loads(get(f"{server}/series/run/0?since=900")[2])
    assert source.asked == [("max by (attempt) (bivouac_loss)", BEGIN + 2700.0, BEGIN + 3600.0, 15.0)]
    assert answer["series"][1] == {"legend": "attempt 1", "points": [[BEGIN + 2700, 1.0], [BEGIN + 3600, None]]}
    assert len(answer["series"]) == 64 and answer["more"] == 6
    assert json.loads(get(f"{server}/series/run/0")[2])["begin"] == BEGIN
    assert json.loads(get(f"{server}/series/run/0?since=-1")[2])["begin"] == BEGIN


def test_a_panel_that_cannot_be_answered_says_why(server: str) -> None:
    number = next(place for place, panel in enumerate(dashboards()["run"].panels) if "HFU" in panel.title)
    code, _, content = get(f"{server}/series/run/{number}")
    assert code == 502 and "it is away" in json.loads(content)["error"]


@pytest.mark.parametrize(
    "path", ["/series/run/99", "/series/nobody/0", "/series/run/0x", "/../pyproject.toml", "/page"]
)
def test_nothing_else_is_answered(server: str, path: str, source: Source) -> None:
    assert get(f"{server}{path}")[0] == 404 and source.asked == []


@pytest.mark.parametrize("path", ["/", "/panels", "/series/run/0", "/{wrong}/panels", "/{wrong}/", "/%C3%A9/panels"])
def test_another_user_of_the_machine_gets_nothing_without_the_token(server: str, path: str, source: Source) -> None:
    base, _, token = server.rpartition("/")
    assert get(f"{base}{path.format(wrong=token[:-1])}")[0] == 403 and source.asked == []
    assert len(token) == 22 and get(f"{server}/panels")[0] == 200
    assert get(f"{server}/")[1]["Referrer-Policy"] == "no-referrer", "the address is a secret"


def test_a_foreign_name_for_this_address_is_refused(server: str) -> None:
    assert get(f"{server}/panels", Host="evil.example:80")[0] == 403
    assert get(f"{server}/panels", Host="localhost:80")[0] == 200


def test_a_legend_has_its_labels_and_says_which_is_missing() -> None:
    row = MetricSeries("", {"attempt": "3"}, [])
    assert legend_of("attempt {{attempt}}, {{node}}", row) == "attempt 3, ?" and legend_of("loss", row) == "loss"


def test_the_source_s_refusal_is_not_swallowed(source: Any) -> None:
    panel = next(panel for panel in dashboards()["run"].panels if "HFU" in panel.title)
    with pytest.raises(TemporaryError):
        series_of_panel(source, panel, 0)
    assert panels._MOST_SERIES == 64


def test_grafana_s_files_are_written(tmp_path: Path) -> None:
    output = io.StringIO()
    assert dashboard_command(None, "us-east-1", 0, tmp_path / "new", PlainConsole(file=output, width=200)) == 0
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "new").iterdir()}
    assert written == {f"bivouac-{name}.json": grafana_json(name) for name in dashboards()}
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        dashboard_command(None, "us-east-1", 0, tmp_path / "file", PlainConsole(file=output))


def test_where_no_campaign_has_series_and_on_a_taken_port_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))
    with pytest.raises(UserError, match="no campaign here has series"):
        dashboard_command(None, "us-east-1", 0, None, PlainConsole(file=io.StringIO()))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="--port"):
        dashboard_command("train", "us-east-1", taken.getsockname()[1], None, PlainConsole(file=io.StringIO()))


def test_a_command_that_goes_on_inside_a_site_takes_the_socket_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test stands for `handle.enter`, which replaces the process: descriptor and environment pass on."""

    class Entered(Exception):
        pass

    ports: list[int] = []

    def enter(campaign: str) -> None:
        number = int(os.environ[dashboard._LISTENER])
        assert os.get_inheritable(number)
        os.environ[dashboard._LISTENER] = str(os.dup(number))
        with dashboard._listener(0) as listener:
            ports.append(listener.getsockname()[1])
        assert dashboard._LISTENER not in os.environ
        raise Entered

    monkeypatch.setattr(target, "enter_where", enter)
    with pytest.raises(Entered):
        dashboard_command("train", "us-east-1", 0, None, PlainConsole(file=io.StringIO()))
    assert ports[0] > 0


def test_it_serves_kept_series_until_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "123456789012-us-east-1" / "train"
    folder.mkdir(parents=True)
    (folder / "series.om.gz").write_bytes(body(BEGIN, BEGIN + 900))
    environment = {
        "PATH": f"{tools_dir()}:{os.environ['PATH']}", "BIVOUAC_RESULTS": str(tmp_path / "results"),
        "BIVOUAC_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    command = [sys.executable, "-m", "infra.cli.main", "dashboard", "train"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        match = re.match(r"(http://127\.0\.0\.1:\d+/[\w-]{22})/ shows train", line)
        assert match, line + process.stderr.read()
        answer = json.loads(get(f"{match[1]}/series/run/0")[2])
        assert [row["legend"] for row in answer["series"]] == ["attempt 1"] and len(answer["series"][0]["points"]) > 50
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    finally:
        process.kill()
        process.wait()

"""`bivouac metrics`: the cluster's Prometheus while it answers, the record afterwards, the results folder at last."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from infra.cli.look import series
from infra.cli.look.metrics import metrics_command
from infra.console.plain_console import PlainConsole
from infra.errors import PermanentError, UserError
from infra.folders import tools_dir
from infra.monitoring.series import MetricSeries, lines
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.series import JOINED, piece
from infra.record.store import CampaignStore
from tests.worlds.s3 import FakeS3, Time

BEGIN = 1_764_187_200


def body(begin: int, end: int, attempt: str = "1") -> bytes:
    points = [(float(at), float(at - BEGIN)) for at in range(begin, end, 15)]
    rows = [MetricSeries("bivouac_loss", {"attempt": attempt, "node": node}, points) for node in ("n0", "n1")]
    return gzip.compress("".join(lines("bivouac_loss", rows)).encode())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CampaignStore:
    store = CampaignStore(FakeS3(Time()), "state", "train", "steward-1")
    monkeypatch.setattr(series, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(series, "open_cluster", no_cluster)
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))
    return store


@contextmanager
def no_cluster(store: CampaignStore) -> Iterator[Any]:
    raise UserError("the campaign has no cluster", seen="bivouac-train")
    yield


@pytest.fixture
def pieces(store: CampaignStore) -> CampaignStore:
    for number in range(3):
        begin = BEGIN + 900 * number
        store.put(f"{store.prefix}/{piece(begin, begin + 900)}", body(begin, begin + 900))
    return store


@pytest.fixture(params=["with Prometheus", "without"])
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(series, "tools_dir", tools_dir if request.param == "with Prometheus" else lambda: tmp_path)
    return str(request.param)


def told(query: str, since: str | None = None, as_json: bool = False) -> str:
    output = io.StringIO()
    assert metrics_command("train", query, "us-east-1", since, as_json, PlainConsole(file=output, width=200)) == 0
    return output.getvalue()


@pytest.mark.usefixtures("pieces")
def test_series_are_answered_after_the_cluster_is_gone(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = told("loss").splitlines()
    assert header.split() == ["series", "newest", "at", "least", "mean", "most"]
    assert [row.split()[1] for row in rows] == ["node=n0", "node=n1"]
    assert all("2025-11-26 20:4" in row for row in rows)
    assert "the campaign has no cluster" in capsys.readouterr().err


@pytest.mark.usefixtures("pieces")
def test_machines_get_points_and_since_counts_from_the_end(programs: str) -> None:
    rows = json.loads(told('loss{node="n1"}', since="10m", as_json=True))
    (row,) = rows
    assert row["name"] == "bivouac_loss" and row["labels"]["node"] == "n1"
    times = [at for at, _ in row["points"]]
    assert BEGIN + 2700 - 600 <= times[0] <= BEGIN + 2700 - 585 and times[-1] >= BEGIN + 2685


@pytest.mark.usefixtures("pieces")
def test_a_function_needs_prometheus(programs: str) -> None:
    if programs == "without":
        with pytest.raises(UserError, match="only one metric"):
            told("max(bivouac_loss)")
        return
    (row,) = json.loads(told("max(bivouac_loss)", as_json=True))
    assert row["labels"] == {} and len(row["points"]) > 100
    with pytest.raises(UserError, match="refuses the query"):
        told("max(bivouac_loss")


def test_a_query_without_series_says_so(pieces: CampaignStore) -> None:
    assert "no series answers `mfu_ratio`" in told("mfu_ratio")


def test_a_record_without_series_is_refused_with_a_cure(store: CampaignStore) -> None:
    with pytest.raises(UserError, match=r"addons\.prometheus"):
        told("loss")


def test_a_damaged_piece_is_never_no_series(pieces: CampaignStore, programs: str) -> None:
    pieces.put(f"{pieces.prefix}/{piece(BEGIN + 900, BEGIN + 1800)}", body(BEGIN, BEGIN + 900)[:-40])
    with pytest.raises(PermanentError, match="cannot be read"):
        told("loss")


def test_an_account_that_is_gone_leaves_the_results_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: str
) -> None:
    def gone(campaign: str, region: str) -> CampaignStore:
        raise UserError("there is no such campaign here")

    monkeypatch.setattr(series, "record_of", gone)
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))
    with pytest.raises(UserError, match="no such campaign"):
        told("loss")
    folder = tmp_path / "123456789012-us-east-1" / "train"
    folder.mkdir(parents=True)
    (folder / JOINED).write_bytes(body(BEGIN, BEGIN + 900) + body(BEGIN + 900, BEGIN + 1800, "2"))
    rows = json.loads(told("loss", as_json=True))
    assert {(row["labels"]["attempt"], row["labels"]["node"]) for row in rows} == {
        (attempt, node) for attempt in "12" for node in ("n0", "n1")
    }


def test_a_campaign_that_has_ended_asks_no_cluster(pieces: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = list[CampaignStore]()

    def open_cluster(store: CampaignStore) -> Any:
        stores.append(store)
        return no_cluster(store)

    monkeypatch.setattr(series, "open_cluster", open_cluster)
    told("loss")
    assert stores
    stores.clear()
    pieces.append(StageFinished(stage=Stage.TEARDOWN, seconds=1))
    told("loss")
    assert not stores


class Cluster:
    def __init__(self, answer: httpx2.Response | Exception) -> None:
        self.paths: list[str] = []
        self._answer = answer
        self.http = httpx2.Client(base_url="https://api", transport=httpx2.MockTransport(self._handle))

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(str(request.url))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    @contextmanager
    def open(self, store: CampaignStore) -> Iterator[Any]:
        yield self


def test_while_the_cluster_stands_its_prometheus_answers(store: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"metric": {"__name__": "bivouac_loss"}, "values": [[BEGIN, "2.5"]]}
    cluster = Cluster(httpx2.Response(200, json={"data": {"result": [row]}}))
    monkeypatch.setattr(series, "open_cluster", cluster.open)
    assert json.loads(told("loss", as_json=True))[0]["points"] == [[BEGIN, 2.5]]
    service = "/namespaces/monitoring/services/http:kube-prometheus-stack-prometheus:9090/proxy/api/v1/query_range?"
    assert all(service in path for path in cluster.paths) and "query=bivouac_loss&" in cluster.paths[-1]


@pytest.mark.parametrize(
    "answer",
    [httpx2.Response(503, text="no endpoints"), httpx2.Response(403, json={"message": "forbidden"}),
     httpx2.ConnectError("refused")],
    ids=["no pod", "no right", "no way"],
)  # fmt: skip
def test_a_prometheus_that_cannot_be_asked_leaves_the_record(
    answer: httpx2.Response | Exception, pieces: CampaignStore, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(series, "open_cluster", Cluster(answer).open)
    assert "node=n0" in told("loss") and "cannot be asked" in capsys.readouterr().err


@pytest.mark.usefixtures("pieces")
def test_the_driver_s_stages_are_answered_from_the_record_before_and_after_the_series(
    store: CampaignStore, programs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([BEGIN - 3600, BEGIN - 3000, BEGIN + 5000, BEGIN + 6000])
    monkeypatch.setattr(store, "_now", lambda: datetime.fromtimestamp(next(moments), UTC))
    for stage in (Stage.PROVISION, Stage.TEARDOWN):
        store.append(StageStarted(stage=stage))
        store.append(StageFinished(stage=stage))
    rows = json.loads(told("stage_seconds_total", as_json=True))
    newest = {row["labels"]["stage"]: row["points"][-1][1] for row in rows}
    assert newest["teardown"] == 1000 and newest["provision"] == 600
    loss = json.loads(told("loss", since="10m", as_json=True))
    assert all(BEGIN + 2100 <= at <= BEGIN + 2700 for row in loss for at, _ in row["points"]), "others end as before"

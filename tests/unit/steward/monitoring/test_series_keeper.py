"""Series are kept window by window, each once, whoever keeps them; what could not be kept is said."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.clock import Clock
from infra.errors import LeaseLost
from infra.monitoring.series import MetricSeries
from infra.record.payloads.alerts import SeriesUnkept
from infra.record.series import span
from infra.record.store import CampaignStore
from infra.steward.monitoring import series
from infra.steward.monitoring.series import SeriesKeeper
from infra.steward.seeing.agents import NoAnswer, TooLong
from tests.worlds.s3 import FakeS3, Time


class Campaign:
    """A record, and a Prometheus whose one metric is the time."""

    def __init__(self) -> None:
        self.time = Time()
        self.s3 = FakeS3(self.time)
        self.lease_lost, self.away, self.nodes = False, False, 1
        self.questions: list[tuple[str, int, int, int]] = []
        self.names = ["bivouac_step"]

    def keeper(self, writer: str = "steward-1") -> SeriesKeeper:
        store = CampaignStore(self.s3, "state", "train", writer, now=self.time.wall)
        keeper = SeriesKeeper(store, self._guard, Clock(self.time, self.time.wall), self._read, self.names)
        keeper._flushes = True
        return keeper

    def texts(self) -> dict[tuple[int, int], str]:
        bodies = {key: body for key, (body, _) in self.s3.objects.items() if "/series/" in key}
        return {span(key) or (0, 0): gzip.decompress(body).decode() for key, body in bodies.items()}

    def times(self) -> list[float]:
        lines = [line for text in self.texts().values() for line in text.splitlines() if not line.startswith("#")]
        return [float(line.rsplit(" ", 1)[1]) for line in lines]

    def unkept(self) -> list[SeriesUnkept]:
        reader = CampaignStore(self.s3, "state", "train", "reader", now=self.time.wall)
        return [event.payload for event in reader.events() if isinstance(event.payload, SeriesUnkept)]

    def now(self) -> float:
        return self.time.wall().timestamp()

    def _guard(self) -> None:
        if self.lease_lost:
            raise LeaseLost("another steward has it")

    def _read(self, query: str, begin: int, end: int, step: int) -> Sequence[MetricSeries]:
        if self.away:
            raise NoAnswer("refused")
        self.questions.append((query, begin, end, step))
        points = [(float(at), float(at)) for at in range(begin, end + 1, step)]
        return [MetricSeries(query, {"node": f"n{number}"}, points) for number in range(self.nodes)]


def test_each_window_is_kept_once_it_is_over_and_no_sample_twice() -> None:
    campaign = Campaign()
    keeper = campaign.keeper()
    keeper.look()
    begin = int(campaign.now()) - 900
    assert list(campaign.texts()) == [(begin, begin + 900)] or campaign.texts() == {}, "noon is a window's begin"
    for _ in range(8):
        campaign.time.go(300)
        keeper.look()
    times = campaign.times()
    assert times == sorted(set(times)) and {b - a for a, b in pairwise(times)} == {15.0}
    assert [end - start for start, end in campaign.texts()] == [900] * 3


def test_a_successor_goes_on_behind_the_newest_piece_and_fetches_what_nobody_kept() -> None:
    campaign = Campaign()
    first = campaign.keeper()
    campaign.time.go(1000)
    first.look()
    campaign.time.go(3600)
    campaign.keeper("steward-2").look()
    times = campaign.times()
    assert times == sorted(set(times)) and len(times) == (times[-1] - times[0]) / 15 + 1, "no gap"
    asked = len(campaign.questions)
    campaign.keeper("steward-3").look()
    assert len(campaign.questions) == asked, "nothing is fetched twice"


def test_before_the_archive_all_up_to_now_is_kept_and_later_windows_begin_there() -> None:
    campaign = Campaign()
    keeper = campaign.keeper()
    campaign.time.go(1100)
    keeper.flush()
    assert campaign.now() - campaign.times()[-1] <= 30
    campaign.time.go(900)
    keeper.look()
    times = campaign.times()
    assert times == sorted(set(times)) and {b - a for a, b in pairwise(times)} == {15.0}


def test_one_that_keeps_nothing_asks_nothing() -> None:
    campaign = Campaign()
    keeper = campaign.keeper()
    keeper._flushes = False
    keeper.flush()
    assert campaign.questions == [] and campaign.texts() == {}


def test_a_prometheus_that_stays_silent_is_told_once_and_caught_up_with() -> None:
    campaign = Campaign()
    campaign.away = True
    keeper = campaign.keeper()
    campaign.time.go(1000)
    for _ in range(4):
        keeper.look()
        assert not campaign.unkept(), "it may come back"
        campaign.time.go(400)
    for _ in range(5):
        campaign.time.go(1000)
        keeper.look()
    (event,) = campaign.unkept()
    assert "refused" in event.sentence() and "UTC on" in event.sentence()
    campaign.away = False
    keeper.look()
    times = campaign.times()
    assert len(times) == (times[-1] - times[0]) / 15 + 1 and times[0] <= event.begin.timestamp()


def test_an_end_without_prometheus_is_told_at_once() -> None:
    campaign = Campaign()
    campaign.away = True
    campaign.keeper().flush()
    assert len(campaign.unkept()) == 1


def test_an_end_waits_for_a_slow_prometheus_no_longer_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = Campaign()
    campaign.names = [f"bivouac_{number}" for number in range(100)]
    keeper, answer = campaign.keeper(), campaign._read

    def slow(query: str, begin: int, end: int, step: int) -> Sequence[MetricSeries]:
        campaign.time.go(25)
        return answer(query, begin, end, step)

    keeper._read = slow
    start = campaign.time()
    keeper.flush()
    assert campaign.time() - start <= 50 and "no time" in campaign.unkept()[0].why
    keeper.flush()
    assert campaign.time() - start <= 50 and len(campaign.unkept()) == 1, "the archive's next try waits no more"
    keeper = campaign.keeper("steward-2")
    keeper._lock.acquire()
    monkeypatch.setattr(series, "_FLUSH_S", 0.01)
    keeper.flush()
    assert "still being fetched" in campaign.unkept()[1].why


def test_an_end_goes_on_whatever_is_wrong_with_the_series() -> None:
    campaign = Campaign()
    keeper = campaign.keeper()

    def broken(query: str, begin: int, end: int, step: int) -> Sequence[MetricSeries]:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    keeper._read = broken
    keeper.flush()
    campaign.away = True
    campaign.keeper("steward-2").flush(tells=False)
    assert campaign.texts() == {} and campaign.unkept() == []


def test_a_metric_that_is_too_large_by_itself_stops_no_other() -> None:
    campaign = Campaign()
    campaign.names = ["bivouac_step", "bivouac_layer_norm"]
    keeper, answer, steps = campaign.keeper(), campaign._read, set[int]()

    def read(query: str, begin: int, end: int, step: int) -> Sequence[MetricSeries]:
        if query == "bivouac_layer_norm":
            steps.add(step)
            raise TooLong("it is longer than 16777216 bytes")
        return answer(query, begin, end, step)

    keeper._read = read
    campaign.time.go(1000)
    keeper.look()
    assert steps == {15, 60, 300}, "fewer samples may do"
    assert "bivouac_step" in "".join(campaign.texts().values())
    assert "bivouac_layer_norm" in campaign.unkept()[0].why


def test_a_window_that_is_too_large_is_kept_with_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = Campaign()
    campaign.nodes = 40
    monkeypatch.setattr(series, "MOST_BYTES", 2000)
    campaign.time.go(100)
    campaign.keeper().look()
    steps = {step for _, _, _, step in campaign.questions}
    assert steps > {15} and campaign.texts() and not campaign.unkept()
    assert all(len(body) <= 2000 for key, (body, _) in campaign.s3.objects.items() if "/series/" in key)
    monkeypatch.setattr(series, "MOST_BYTES", 10)
    campaign.time.go(900)
    texts = campaign.texts()
    keeper = campaign.keeper("steward-2")
    keeper.look(), keeper.look()
    assert campaign.texts() == texts and len(campaign.unkept()) == 1, "it is told, and the next window is another"


def test_who_has_lost_the_lease_keeps_nothing() -> None:
    campaign = Campaign()
    campaign.lease_lost = True
    with pytest.raises(LeaseLost):
        campaign.keeper().look()
    assert campaign.questions == [] and not campaign.s3.objects


@pytest.mark.parametrize("answer", [(503, b"{}"), (200, b"{}"), (200, b"no json")])
def test_an_answer_that_is_none_is_no_series(answer: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAnswer):
        ask(answer, monkeypatch)


def test_prometheus_is_asked_for_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"metric": {"__name__": "bivouac_loss", "node": 'a"b'}, "values": [[30, "2.5"], [45, "NaN"]]}
    rows, paths = ask((200, json.dumps({"data": {"result": [row]}}).encode()), monkeypatch)
    assert rows[0].name == "bivouac_loss" and rows[0].labels == {"node": 'a"b'} and rows[0].points[0] == (30, 2.5)
    assert parse_qs(urlsplit(paths[0]).query) == {
        "query": ["bivouac_loss"],
        "start": ["30"],
        "end": ["59"],
        "step": ["15"],
    }


def ask(answer: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[list[MetricSeries], list[str]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(series, "SERVICE", "127.0.0")
        monkeypatch.setattr(series, "SPACE", "1")
        monkeypatch.setattr(series, "PORT", server.server_port)
        try:
            return series.read("bivouac_loss", 30, 59, 15), paths
        finally:
            server.shutdown()

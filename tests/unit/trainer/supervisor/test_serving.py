"""What a pod's server answers, to whom it listens, and what another node learns from it."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.addresses import own_network
from tests.worlds.supervisor_tier import JobNode
from trainer.supervisor import activity, serving
from trainer.supervisor.family import Process

STATUS = {"step": 12, "committed_step": 10}


class Server:
    def __init__(self) -> None:
        self.address = f"{own_network()}.7"
        self.taken: list[Mapping[str, Any]] = []
        self.status: Any = STATUS
        self._server = serving.serve(
            self.address, lambda: self.status, self._other, stream=self._stream, take=self._take
        )

    def _other(self, path: str) -> serving.Answer | None:
        return (404, b'"no such step"') if path == "/verdicts/7" else None

    def _stream(self, request: BaseHTTPRequestHandler) -> bool:
        if request.path != "/shard":
            return False
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"bytes")
        return True

    def _take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.taken.append(message)
        if message["word"] == "unknown":
            raise ValueError("nothing is awaited")
        return {"heard": message["word"]}

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes, str]:
        line = http.client.HTTPConnection(self.address, serving.PORT)
        line.request(method, path, body, headers)
        answer = line.getresponse()
        length, content = answer.getheader("Content-Length"), answer.read()
        assert length is None or int(length) == len(content)
        assert length is not None or path == "/shard", "what a connection cut short would else pass for whole"
        return answer.status, content, answer.getheader("Content-Type", "")

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


def test_each_path_has_its_answer_and_an_unknown_one_the_known_ones(server: Server) -> None:
    code, content, kind = server.ask("GET", "/status")
    assert (code, json.loads(content), kind) == (200, STATUS, "application/json")
    assert server.ask("GET", "/healthz") == (200, b"ok\n", "text/plain")
    assert server.ask("GET", "/shard")[:2] == (200, b"bytes")
    assert server.ask("GET", "/verdicts/7")[:2] == (404, b'"no such step"')
    code, content, _ = server.ask("GET", "/")
    assert code == 404 and b"/status" in content


def test_what_another_node_posts_is_taken_and_what_is_no_message_is_refused(server: Server) -> None:
    assert server.ask("POST", "/", b'{"word": "go"}')[:2] == (200, b'{"heard": "go"}')
    assert server.ask("POST", "/", b'{"word": "unknown"}')[:2] == (400, b"null")
    assert server.ask("POST", "/", b"{}")[:2] == (400, b"null"), "no word"
    assert server.ask("POST", "/", b"{")[:2] == (400, b"null")
    assert server.ask("POST", "/", b"{}", **{"Content-Length": "many"})[0] == 400
    assert [message.get("word") for message in server.taken] == ["go", "unknown", None]


def test_a_message_beyond_a_mebibyte_is_not_taken(server: Server) -> None:
    with contextlib.suppress(ConnectionError):  # the server closes with bytes unread
        server.ask("POST", "/", json.dumps({"word": "x" * (1 << 20)}).encode())
    assert server.taken == [] and server.ask("POST", "/", b'{"word": "go"}')[0] == 200


def test_the_metrics_are_those_of_the_status(server: Server, tmp_path: Path) -> None:
    server.status = JobNode(tmp_path).job.status() | {"step": 12345}
    code, content, kind = server.ask("GET", "/metrics")
    assert (code, kind) == (200, "text/plain; version=0.0.4")
    assert [line.rpartition(" ")[2] for line in content.decode().splitlines() if "_step{" in line] == [
        "12345.0",
        "-1.0",
    ]
    assert content.decode() == serving.metrics(server.status)


def test_a_job_that_awaits_no_other_node_takes_nothing() -> None:
    address = f"{own_network()}.9"
    server = serving.serve(address, dict, lambda path: None)
    try:
        line = http.client.HTTPConnection(address, serving.PORT)
        line.request("POST", "/", b"{}")
        assert line.getresponse().status == 400
    finally:
        server.shutdown()
        server.server_close()


def test_another_node_reads_step_and_sealed_step_and_nothing_of_what_is_no_status(server: Server) -> None:
    assert activity.steps_of(f"{server.address}:29500") == (12, 10)
    for status in ({"step": 12}, {**STATUS, "step": "many"}, [1], {**STATUS, "more": "x" * (1 << 20)}):
        server.status = status
        assert activity.steps_of(f"{server.address}:29500") == (0, -1)


def test_a_node_that_is_gone_has_no_step_and_serves_no_more(server: Server) -> None:
    assert activity.serves(server.address)
    activity.await_silence(server.address, 0.0)
    server.end()
    activity.await_silence(server.address, 60.0)  # a process that another thread forks holds the socket until it runs
    assert not activity.serves(server.address) and activity.steps_of(f"{server.address}:29500") == (0, -1)


@pytest.mark.parametrize(
    ("answers", "may_serve"),
    [
        ([TimeoutError(), None], True),
        ([TimeoutError()] * 3, False),
        ([OSError(errno.EMFILE, "Too many open files")], True),
        ([ConnectionRefusedError(errno.ECONNREFUSED, "refused")], False),
        ([OSError(errno.EHOSTUNREACH, "No route to host")], False),
    ],
)
def test_a_node_that_is_busy_or_cannot_be_asked_may_serve_and_one_that_refuses_does_not(
    answers: list[Exception | None], may_serve: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, timeout: float) -> SimpleNamespace:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(activity.socket, "create_connection", connect)
    assert activity.serves("n1") is may_serve and not answers


def test_silence_is_awaited_until_it_comes_and_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [0.0], [True] * 5 + [False]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(activity, "time", clock)
    monkeypatch.setattr(activity, "serves", lambda host: looks.pop(0))
    activity.await_silence("n1", 100.0)
    assert now == [pytest.approx(0.5)] and looks == [], "it is asked ten times a second"
    looks += [True] * 9
    activity.await_silence("n1", 0.35)
    assert len(looks) == 5


def test_the_work_of_a_process_is_its_own_and_its_descendants() -> None:
    by_pid = {
        1: Process(0, "S", 1.0), 2: Process(1, "S", 2.0), 3: Process(2, "R", 4.0), 4: Process(0, "R", 8.0),
        5: Process(4, "R", 16.0),
    }  # fmt: skip
    assert [activity.processor_seconds(pid, by_pid) for pid in (1, 2, 4, 6)] == [7.0, 6.0, 24.0, 0.0]

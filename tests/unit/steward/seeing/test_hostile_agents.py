"""Whatever a pod answers, the steward's look ends in its time, and what it did not understand is an unknown pod."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from infra.steward import request_handling
from infra.steward.seeing import agents, observe, tiers
from trainer.contract import Status

GOOD = {
    "campaign": "c", "attempt": 1, "node": "n", "phase": "training", "step": 3, "steps": 9, "committed_step": 1,
    "tokens": 1, "loss": 0.5, "step_seconds": None, "ranks": [],
}  # fmt: skip
LATE_S = 0.2
"""The bound of a request in these tests. An answer that were read to its end would take far longer, or for ever."""


@contextmanager
def serving(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on the loopback that does to each connection what it is told; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    over = threading.Event()

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                handle(connection)
            except OSError:
                pass  # the other end has had enough

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        over.set()
        listener.close()


def whole(body: bytes, code: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {code}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def sends(content: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(content)


def endless(begin: bytes, piece: bytes, pause_s: float) -> Callable[[socket.socket], None]:
    def handle(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)

    return handle


def resets(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hangs(connection: socket.socket) -> None:
    connection.recv(1)


def told(**changes: Any) -> Callable[[socket.socket], None]:
    return sends(whole(json.dumps(GOOD | changes).encode()))


BEGIN = b"HTTP/1.1 200 OK\r\n\r\n"
RANK = {"rank": 0, "alive": True, "step": 1, "heartbeat_age_s": 0.1}
HOSTILE = {
    "a garbled status line": sends(b"\x00\xff\x16\x03\x01 what\r\n\r\n{}"),
    "another protocol": sends(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "nothing": sends(b""),
    "headers that do not end": endless(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 4096 + b"\r\n", 0),
    "headers that trickle": endless(b"HTTP/1.1 200 OK\r\n", b"x", 0.05),
    "a body that does not end": endless(BEGIN, b"x" * 65536, 0),
    "a body that trickles": endless(BEGIN, b" ", 0.05),
    "a length that is a lie": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n", b" ", 0.05),
    "a length beyond all": sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n{}"),
    "a length that is none": sends(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
    "a body cut short": sends(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"),
    "chunks": sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n{}\r\n"),
    "no JSON": sends(whole(b"no JSON")),
    "JSON that is deep": sends(whole(b"[" * 500_000)),
    "JSON that is deep where a schema looks": sends(whole(b'{"campaign":' * 80_000)),
    "no text": sends(whole(b"\xff\xfe{}")),
    "another schema": sends(whole(b'{"ok": true}')),
    "a list": sends(whole(b"[]")),
    "a reset": resets,
    "silence": hangs,
    "a redirect": sends(whole(b"", "302 Found", "Location: http://169.254.169.254/\r\n")),
    "an error": sends(whole(json.dumps(GOOD).encode(), "500 Oops")),
    "a step below zero": told(step=-5),
    "a step beyond all": told(step=10**400),
    "a step that is no number": told(step=float("nan")),
    "a committed step beyond all": told(committed_step=2**80),
    "a rank below zero": told(ranks=[RANK | {"rank": -1}]),
    "ranks beyond all": told(ranks=[RANK] * 10_000),
    "a phase that is none": told(phase="\x1b[2Jdancing"),
    "a name without end": told(node="n" * 100_000),
    "a field too many": told(watch="me"),
}


def pod(address: str = "127.0.0.1") -> Any:
    return SimpleNamespace(status=SimpleNamespace(podIP=address))


@pytest.mark.parametrize("handle", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_is_an_unknown_pod(handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "_PROBE_TIMEOUT_S", LATE_S)
    monkeypatch.setattr(tiers, "_TIMEOUT_S", LATE_S)
    monkeypatch.setattr(request_handling, "_TIMEOUT_S", LATE_S)
    monkeypatch.setattr(request_handling, "_BUSY_PAUSE_S", 0.01)
    with serving(handle) as port:
        for module in (observe, tiers, request_handling):
            monkeypatch.setattr(module, "AGENT_PORT", port)
        assert observe._probe(pod()) is None
        assert tiers._of_node("127.0.0.1") == []
        with pytest.raises((OSError, ValueError)):
            request_handling._of_node("127.0.0.1", ())


def test_a_good_answer_is_taken_with_and_without_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(GOOD).encode()
    for answer in (whole(body), BEGIN + body, b"HTTP/1.0 200\r\nServer: x\r\n\r\n" + body):
        with serving(sends(answer)) as port:
            monkeypatch.setattr(observe, "AGENT_PORT", port)
            seen = observe._probe(pod())
        assert seen is not None and (seen.step, seen.loss) == (3, 0.5)


@pytest.mark.parametrize("begin", [BEGIN, b"HTTP/1.1 200 OK\r\ncOnTenT-lEngth:\t300000 \r\nX: y\r\n\r\n"])
def test_an_answer_that_comes_in_many_pieces_is_read_to_its_end(begin: bytes) -> None:
    body = json.dumps(GOOD).encode().ljust(300_000)
    with serving(sends(begin + body)) as port:
        assert agents.get("127.0.0.1", "/status", 30.0, port=port) == (200, body)


def test_an_answer_ends_where_it_says_though_its_connection_does_not() -> None:
    def handle(connection: socket.socket) -> None:
        connection.sendall(whole(b"{}") + b"and more")
        hangs(connection)

    with serving(handle) as port:
        assert agents.get("127.0.0.1", "/status", 3600.0, port=port).body == b"{}"


def test_an_answer_that_says_it_is_too_long_is_not_waited_for() -> None:
    def handle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n")
        hangs(connection)

    with serving(handle) as port, pytest.raises(agents.NoAnswer, match="longer than 1048576 bytes"):
        agents.get("127.0.0.1", "/status", 3600.0, port=port)


@pytest.mark.parametrize(("code", "followed"), [(299, True), (300, False), (399, False), (400, True), (429, True)])
def test_a_code_is_given_back_and_no_redirect_is_one(code: int, followed: bool) -> None:
    with serving(sends(whole(b"x", f"{code} Word"))) as port:
        if followed:
            assert agents.get("127.0.0.1", "/", 30.0, port=port) == (code, b"x")
        else:
            with pytest.raises(agents.NoAnswer, match="elsewhere"):
                agents.get("127.0.0.1", "/", 30.0, port=port)


def test_what_is_asked_is_plain_http() -> None:
    asked: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            connection.sendall(whole(b"{}"))

    server = threading.Thread(target=accept)
    server.start()
    agents.get("127.0.0.1", "/verdicts/7", 30.0, port=port)
    server.join()
    listener.close()
    assert asked == [f"GET /verdicts/7 HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()]


def test_nobody_at_an_address_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(agents.NoAnswer, match="ConnectionRefusedError"):
        agents.get("127.0.0.1", "/", 30.0, port=port)
    with pytest.raises(agents.NoAnswer):
        agents.get("127.0.0.1", "/", -1.0, port=port)


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(told()) as port:
        assert agents.get("127.0.0.1", "/status", 30.0, port=port).code == 200


def test_an_answer_may_have_as_many_bytes_as_the_bound_and_not_one_more() -> None:
    for begin in (BEGIN, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"):
        with serving(sends(begin + b"x" * 1000)) as port:
            assert len(agents.get("127.0.0.1", "/", 30.0, 1000, port).body) == 1000
            with pytest.raises(agents.NoAnswer, match="longer than 999 bytes"):
                agents.get("127.0.0.1", "/", 30.0, 999, port)


def test_a_loss_that_is_no_number_is_not_known_and_the_pod_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(told(loss=float("nan"), step_seconds=float("inf"))) as port:
        monkeypatch.setattr(observe, "AGENT_PORT", port)
        seen = observe._probe(pod())
    assert seen is not None and (seen.step, seen.loss, seen.step_seconds) == (3, None, None)


def test_words_of_a_rank_are_cut_and_never_a_reason_not_to_know_it() -> None:
    seen = [{"rank": 0, "detail": "x" * 100_000, "groups": {"world": [1, 1, 1, float("nan"), 1.0]}}]
    assert len(Status.model_validate_json(json.dumps(GOOD | {"seen": seen})).seen[0].detail) == 4096
    with pytest.raises(ValidationError):
        Status.model_validate_json(json.dumps(GOOD | {"seen": [{"rank": 0, "groups": {"world": [10**40, 1, 1]}}]}))


def test_hundreds_of_pods_that_hang_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the pool has threads are all connected before any of them is given up."""
    count, waiting, all_there = observe._PROBES_AT_ONCE, [], threading.Event()

    def handle(connection: socket.socket) -> None:
        waiting.append(connection)
        if len(waiting) == count:
            all_there.set()
        all_there.wait()
        told()(connection)

    monkeypatch.setattr(observe, "_PROBE_TIMEOUT_S", 60.0)
    with serving(handle) as port, ThreadPoolExecutor(observe._PROBES_AT_ONCE) as pool:
        monkeypatch.setattr(observe, "AGENT_PORT", port)
        assert all(status is not None for status in pool.map(observe._probe, [pod()] * count))
    assert count >= 100

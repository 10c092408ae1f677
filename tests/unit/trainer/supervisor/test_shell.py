"""The remote shell of `mpirun`: whom it calls, and how long it waits for a node that does not come up."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.supervisor import shell


def test_the_nodes_are_named_in_order_by_the_operators_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostfile").write_text("n0 slots=8\n\n  \nn1 slots=8\nn2\n")
    monkeypatch.setenv("BIVOUAC_MPI_HOSTS", str(tmp_path / "hostfile"))
    assert shell.hosts() == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["n1", "orted", "--tree"], "n1", "orted --tree"),
        (["-x", "n1", "orted"], "n1", "orted"),
        (["-o", "Port=1", "-p", "22", "-l", "me", "-i", "key", "-q", "n1", "a", "-p", "b"], "n1", "a -p b"),
    ],
)
def test_options_of_ssh_mean_nothing(
    words: list[str], host: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(shell, "_ask", lambda *arguments: asked.append(arguments) or 7)
    assert shell.call(words) == 7 and asked == [(host, {"command": command}, 600.0)]


@pytest.mark.parametrize("words", [[], ["n1"], ["-p", "22", "n1"]])
def test_a_call_without_a_command_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_ask", lambda *arguments: 0)
    assert shell.call(words) == 255


def test_a_node_that_does_not_come_up_is_called_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, tries = [0.0], []

    def refuse(address: tuple[str, int], timeout: float) -> Any:
        tries.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(shell, "socket", SimpleNamespace(create_connection=refuse))
    monkeypatch.setattr(shell, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert shell._ask("n1", {"command": "true"}, 2.0) == 255
    assert tries == [("n1", shell.PORT)] * 5 and "node n1 cannot be called" in capsys.readouterr().err
    assert shell._ask("n1", {"end": {}}, 0.0) == 255 and len(tries) == 6


class Connection:
    """A node's end of a call: what it answers, and what it has been sent."""

    def __init__(self, answers: bytes | OSError) -> None:
        self.sent, self.timeouts, self._answers = b"", list[float | None](), answers

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def settimeout(self, seconds: float | None) -> None:
        self.timeouts.append(seconds)

    def makefile(self, mode: str) -> Connection:
        return self

    def readline(self, limit: int) -> bytes:
        if isinstance(self._answers, OSError):
            raise self._answers
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    def write(self, content: bytes) -> None:
        self.sent += content

    def flush(self) -> None:
        pass


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    (tmp_path / "key").write_bytes(b"of the job")
    monkeypatch.setenv("BIVOUAC_MPI_KEY", str(tmp_path / "key"))
    return b"of the job"


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        (b"once\n3\n", 3, ""),
        (b"once\n", 255, ""),
        (b"once\nno number\n", 255, "does not answer"),
        (TimeoutError("timed out"), 255, "node n1 does not answer: timed out"),
    ],
)
def test_a_call_ends_with_the_nodes_answer_or_with_that_of_ssh_for_a_broken_line(
    answers: bytes | OSError, code: int, words: str, key: bytes, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    line = Connection(answers)
    monkeypatch.setattr(shell.socket, "create_connection", lambda address, timeout: line)
    assert shell._ask("n1", {"command": "true"}, 0.0) == code and words in capsys.readouterr().err
    if isinstance(answers, bytes):
        request, signature = json.loads(line.sent)
        assert json.loads(request) == {"command": "true"} and line.timeouts == [None]
        assert signature == hmac.new(key, b"once" + request.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("request_line", [b"", b"{", b"3", b'["one"]', b'["a", "b", "c"]', b"null"])
def test_a_node_runs_nothing_for_a_call_that_it_cannot_read(
    request_line: bytes, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell.subprocess, "call", lambda *_, **__: pytest.fail("a command was run"))
    call = SimpleNamespace(wfile=io.BytesIO(), rfile=io.BytesIO(request_line + b"\n"), server=None)
    shell._Call.handle(call)  # type: ignore[arg-type]
    assert len(call.wfile.getvalue()) == 33, "a word for this call, and no answer"


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_signed_command_runs_in_a_session_of_its_own(
    is_signed: bool, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[object, dict[str, object]]] = []

    def run(words: object, **how: object) -> int:
        commands.append((words, how))
        return 7

    monkeypatch.setattr(shell.subprocess, "call", run)
    monkeypatch.setattr(shell.secrets, "token_hex", lambda count: "once")
    request = json.dumps({"command": "orted --tree"})
    signature = shell._signature("once" if is_signed else "twice", request)
    call = SimpleNamespace(wfile=io.BytesIO(), rfile=io.BytesIO(json.dumps([request, signature]).encode() + b"\n"))
    shell._Call.handle(call)  # type: ignore[arg-type]
    how = {"stdin": subprocess.DEVNULL, "start_new_session": True}
    assert commands == ([(["/bin/sh", "-c", "orted --tree"], how)] if is_signed else [])
    assert call.wfile.getvalue() == (b"once\n7\n" if is_signed else b"once\n")

"""Copies between this machine and a container: both ends of `copying`, joined by a command in the container."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from infra.cluster import copying
from infra.cluster.execution import STDOUT, Containers, Execution
from infra.cluster.ranks import Member
from infra.errors import BivouacError, PermanentError, TemporaryError, UserError

_AGAIN = timedelta(seconds=1)


class Watcher(Protocol):
    """Hears how a copy goes on; called from any thread."""

    def of(self, total: int) -> None:
        """The bytes of all files."""

    def passed(self, count: int) -> None: ...
    def note(self, text: str) -> None:
        """Something was left out."""


def out_of(containers: Containers, member: Member, source: str, target: str, watcher: Watcher) -> dict[str, Any]:
    """Copy out of a container; return `path`, `files` and `bytes`. Raises our errors and `OSError`; then nothing new is
    here."""
    errors = _StandardError(watcher)
    with _other_end(containers, member, "send", source) as execution:
        execution.end_input()
        with _Receiver(target, watcher) as receiver:

            def take(channel: int, data: bytes) -> None:
                watcher.passed(len(data))
                receiver.write(data) if channel == STDOUT else errors.take(data)

            code = execution.run(take)
            if code != 0:
                errors.refuse(code, member)
            return receiver.result()


def into(containers: Containers, member: Member, source: str, target: str, watcher: Watcher) -> dict[str, Any]:
    """Copy into a container, likewise."""
    errors, answer = _StandardError(watcher), list[bytes]()
    with _other_end(containers, member, "receive", target) as execution:
        sender = _Sender(source, execution, watcher)
        sender.start()
        try:
            code = execution.run(lambda channel, data: answer.append(data) if channel == STDOUT else errors.take(data))
        except TemporaryError:
            if sender.error is not None:
                raise sender.error from None
            raise
        if code != 0:
            errors.refuse(code, member)
        return dict(json.loads(b"".join(answer)))


@contextmanager
def _other_end(containers: Containers, member: Member, do: str, path: str) -> Iterator[Execution]:
    program = Path(copying.__file__).read_bytes()
    words = ["python3", "-ISc", copying.BEGIN, str(len(program)), do, path]
    with containers.started(member.pod, member.container, words) as execution:
        execution.write(program)
        yield execution


class _Receiver(threading.Thread):
    """Receives from a pipe; leaving without `result` makes the stream end early, which undoes everything."""

    def __init__(self, target: str, watcher: Watcher) -> None:
        super().__init__(name="receive", daemon=True)
        self._target, self._watcher = target, watcher
        reading, self._writing = os.pipe()
        self._stream = os.fdopen(reading, "rb")
        self._done: dict[str, Any] = {}
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self) -> None:
        with self._stream:
            try:
                self._done = copying.receive(self._target, self._stream, self._watcher.of)
            except Exception as error:
                self._error = error

    def write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._writing, data) :]
        except BrokenPipeError:
            self.result()

    def result(self) -> dict[str, Any]:
        self._end()
        if self._error is not None:
            raise _as_own_error(self._error) from self._error
        return self._done

    def _end(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        self.join()


class _Sender(threading.Thread):
    """Sends to a command. A lost connection is told by whoever reads the command's end."""

    def __init__(self, source: str, execution: Execution, watcher: Watcher) -> None:
        super().__init__(name="send", daemon=True)
        self._source, self._execution, self._watcher = source, execution, watcher
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with suppress(TemporaryError):
                copying.send(self._source, self, self._watcher.note)  # type: ignore[arg-type]
                self._execution.end_input()
        except Exception as error:
            self.error = _as_own_error(error)
            # Without the digest at its end the container discards what has arrived.
            self._execution.abort()

    def write(self, data: bytes) -> int:
        self._execution.write(data)
        self._watcher.passed(len(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


class _StandardError:
    """What the container's end said on its standard error: notes, and a refusal as the last line."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher, self._rest, self._last = watcher, b"", ""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._last = line.decode(errors="replace")
            if not self._last.startswith("{"):
                self._watcher.note(self._last)

    def refuse(self, code: int, member: Member) -> NoReturn:
        try:
            refusal = json.loads(self._last)
            kind = UserError if code == copying.REFUSED else PermanentError
            raise kind(refusal["what"], seen=f"{member.pod}: {refusal['seen']}", cure=refusal["cure"])
        except (ValueError, KeyError, TypeError):
            raise PermanentError(
                "the copy failed in the container",
                seen=f"{member.pod}: exit code {code} {self._last}".strip(),
                cure="it needs python3 (3.8 or newer) there, and room",
            ) from None


def _as_own_error(error: Exception) -> Exception:
    if isinstance(error, copying.CopyRefused):
        return UserError(error.what, seen=error.seen, cure=error.cure)
    if isinstance(error, copying.Broken):
        cure = "copy again: nothing was changed"
        return TemporaryError("the copy did not arrive whole", seen=error, cure=cure, delay=_AGAIN)
    assert isinstance(error, BivouacError | OSError), repr(error)
    return error

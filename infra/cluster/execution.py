"""Commands in a pod's container, through the API server's WebSocket: streams apart, the command's own exit code.

`v5.channel.k8s.io` begins each message with the number of its channel. Kubernetes speaks it since 1.30; since 1.36 the
API server passes it through to the node. https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import httpx2
from httpx2.websockets import WebSocketDisconnect, WebSocketNetworkError, WebSocketSession, WebSocketUpgradeError
from wsproto.utilities import LocalProtocolError

from infra.errors import BivouacError, PermanentError, TemporaryError, UserError
from infra.spec.names import NAMESPACE

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
_END_OF_CHANNEL = 255
_CHUNK = 2**17
_LARGEST_MESSAGE = 2**20
_AGAIN = timedelta(seconds=10)
_MARK = "BIVOUAC_EXEC"
_RUN = f"""
import json, os, sys
def refuse(code, why):
    sys.stderr.write("bivouac exec: " + why + "\\n")
    os._exit(code)
words = sys.argv[3:]
if not words:
    left, text = int(sys.argv[2]), b""
    while left > len(text):
        part = os.read(0, left - len(text))
        if not part:
            refuse(125, "the command did not arrive")
        text += part
    words = json.loads(text.decode())
os.environ["{_MARK}"] = sys.argv[1]
try:
    os.execvp(words[0], words)
except OSError as error:
    refuse(127 if isinstance(error, FileNotFoundError) else 126, words[0] + ": " + str(error.strerror))
"""
"""Becomes the command. Its words come by standard input: a cluster's audit log keeps those of the request. A terminal
would show them, so there they are arguments."""
_END = f"""
import os, sys
wanted, found = "{_MARK}=" + sys.argv[1], 0
for name in os.listdir("/proc"):
    try:
        if name.isdigit() and wanted.encode() in open("/proc/" + name + "/environ", "rb").read().split(b"\\0"):
            os.kill(int(name), int(sys.argv[2]))
            found += 1
    except OSError:
        pass
print(found)
"""
"""Signals a command and what it has started. Kubernetes itself lets a command go on when its caller leaves."""


class Execution:
    """One command that runs. `feed` and the rest may be called from another thread than `run`."""

    def __init__(self, session: WebSocketSession, pod: str) -> None:
        self._session, self._pod = session, pod

    def write(self, data: bytes) -> int:
        """Send standard input. Raises `TemporaryError` when the connection is gone."""
        for begin in range(0, len(data), _CHUNK):
            self._send(bytes([STDIN]) + data[begin : begin + _CHUNK])
        return len(data)

    def end_input(self) -> None:
        self._send(bytes([_END_OF_CHANNEL, STDIN]))

    def feed(self, file: int) -> None:
        """Send what a file descriptor gives, to its end, from a thread that nobody waits for."""

        def pump() -> None:
            # Whoever reads the command's end hears of a lost connection.
            with suppress(TemporaryError):
                while data := os.read(file, _CHUNK):
                    self.write(data)
                self.end_input()

        threading.Thread(target=pump, name="stdin", daemon=True).start()

    def resize(self, size: os.terminal_size) -> None:
        with suppress(TemporaryError):
            text = json.dumps({"Width": size.columns, "Height": size.lines})
            self._send(bytes([RESIZE]) + text.encode())

    def abort(self) -> None:
        """Cut the connection: the command's input ends."""
        # The library's thread waits in a read, which closing the socket would not end.
        with suppress(OSError):
            self._session.stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def run(self, take: Callable[[int, bytes], None]) -> int:
        """Pass output to `take(channel, data)` until the command ends; return its exit code.

        Raises `PermanentError` if it could not be started, `TemporaryError` if the connection was lost: then the
        command may run on.
        """
        while True:
            try:
                message = self._session.receive_bytes()
            except (WebSocketDisconnect, WebSocketNetworkError) as error:
                raise self._lost_connection(error) from error
            if message[:1] == bytes([STATUS]) and len(message) > 1:
                return _exit_code(json.loads(message[1:]))
            if message[1:]:
                take(message[0], message[1:])

    def _send(self, message: bytes) -> None:
        try:
            self._session.send_bytes(message)
        except (WebSocketNetworkError, LocalProtocolError, OSError) as error:
            raise self._lost_connection(error) from error

    def _lost_connection(self, error: Exception) -> TemporaryError:
        return TemporaryError(
            "the connection to the command was lost",
            seen=f"{self._pod}: {error or type(error).__name__}",
            cure="the command may run on there, without anybody to read it: look with `bivouac exec NAME RANK -- ps`",
            delay=_AGAIN,
        )


class Containers:
    """The containers of a campaign's pods, seen through the API server."""

    def __init__(self, http: httpx2.Client) -> None:
        """`http` has the API server as its base URL, and credentials."""
        self._http = http

    @contextmanager
    def started(self, pod: str, container: str, words: Sequence[str], *, terminal: bool = False) -> Iterator[Execution]:
        """Start a command and yield it; on leaving, the connection is closed, and the command goes on."""
        streams = ("stdin", "stdout", "tty" if terminal else "stderr")
        options: list[tuple[str, str | int | float | bool | None]] = [("container", container)]
        options += [*((stream, "true") for stream in streams), *(("command", word) for word in words)]
        url = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/exec"
        try:
            # No bound for the answer to a ping: it waits behind input that the command does not read.
            with self._http.websocket(
                url,
                params=options,
                subprotocols=[PROTOCOL],
                max_message_size_bytes=_LARGEST_MESSAGE,
                keepalive_ping_timeout_seconds=None,
            ) as session:
                execution = Execution(session, pod)
                try:
                    yield execution
                finally:
                    execution.abort()
        except WebSocketUpgradeError as error:
            raise error_of(error.response, pod) from error

    @contextmanager
    def running(self, pod: str, container: str, words: Sequence[str], *, terminal: bool = False) -> Iterator[Exec]:
        """`started` for a command of a person's, which can be ended."""
        mark, text = uuid.uuid4().hex, json.dumps(list(words)).encode()
        line = ["python3", "-ISc", _RUN, mark, str(len(text)), *(words if terminal else ())]
        with self.started(pod, container, line, terminal=terminal) as execution:
            if not terminal:
                execution.write(text)
            yield Exec(execution, lambda number: self._end(pod, container, mark, number))

    def _end(self, pod: str, container: str, mark: str, number: int) -> int:
        output: list[bytes] = []
        with self.started(pod, container, ["python3", "-ISc", _END, mark, str(number)]) as ending:
            code = ending.run(lambda channel, data: output.append(data) if channel == STDOUT else None)
        return int(b"".join(output)) if code == 0 else 0


class Exec(NamedTuple):
    """A person's command."""

    execution: Execution
    end: Callable[[int], int]
    """Sends a signal to the command and to what it started; returns how many processes got it."""


def read_refusals(response: httpx2.Response) -> None:
    """Read the body of an answer that opens no WebSocket, while it can be read; a hook of the HTTP client."""
    if response.status_code >= 400:
        response.read()


def _exit_code(status: dict[str, Any]) -> int:
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    if status.get("reason") == "NonZeroExitCode" and codes:
        return codes[0]
    raise PermanentError(
        "the command could not be started in the container",
        seen=status.get("message"),
        cure="the container needs python3 (3.8 or newer), as the job's supervisor does; and it must run",
    )


def error_of(response: httpx2.Response, place: str) -> BivouacError:
    """Return the error for the API server's refusal."""
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text
    return _error(response.status_code, f"{place}: {response.status_code} {message}".strip())


def _error(status: int, fact: str) -> BivouacError:
    if status == 401:
        return UserError(
            "the cluster does not know these credentials",
            seen=fact,
            cure="use the role that ran `bivouac run`, which alone has an access entry, or give yours one: "
            "`aws eks create-access-entry`, `aws eks associate-access-policy`",
        )
    if status == 403:
        cure = "take a role whose access policy allows `create` on `pods/exec`, such as AmazonEKSClusterAdminPolicy"
        return UserError("the cluster does not allow these credentials to run commands", seen=fact, cure=cure)
    if status == 404:
        cure = "`bivouac status NAME` says which attempt runs; give the command again"
        return UserError("the rank's pod is gone", seen=fact, cure=cure)
    return TemporaryError(
        "the node opens no command in the container",
        seen=fact,
        cure="the container may be starting or over, or the node is gone: see `bivouac status NAME`, and try again",
        delay=_AGAIN,
    )

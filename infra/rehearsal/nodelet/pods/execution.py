"""Commands in running containers, as `kubectl exec` asks for them: a kubelet's answer over WebSocket.

The API server of 1.36 passes the client's WebSocket through to a node that declares `FEATURE`; an older protocol than
`PROTOCOL` is refused. Each message begins with the number of its channel.
https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/4006-transition-spdy-to-websockets
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Request
from wsproto.utilities import ProtocolError

from infra.rehearsal.nodelet.pods.sandbox import Container, Standard, StartError

log = logging.getLogger(__name__)

FEATURE = "ExtendWebSocketsToKubelet"
PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
END_OF_CHANNEL = 255
CHUNK = 32768
Say = Callable[[HTTPStatus, str], None]
"""Answers with a text instead of a stream."""


class Channels:
    """The server's end of one WebSocket. `send` is safe from any thread."""

    def __init__(self, handler: BaseHTTPRequestHandler, connection: WSConnection) -> None:
        self._handler, self._connection = handler, connection
        self._lock = threading.Lock()
        self._send(AcceptConnection(subprotocol=PROTOCOL))

    def send(self, channel: int, data: bytes) -> None:
        self._send(BytesMessage(bytes([channel]) + data))

    def receive(self) -> Iterator[bytes]:
        """Yield the client's messages until it leaves."""
        message = b""
        while True:
            for event in self._connection.events():
                if isinstance(event, BytesMessage):
                    message += bytes(event.data)
                    if event.message_finished:
                        yield message
                        message = b""
                elif isinstance(event, Ping):
                    self._send(event.response())
                elif isinstance(event, CloseConnection):
                    return
            data = self._handler.rfile.read1(CHUNK)  # type: ignore[attr-defined]
            if not data:
                return
            self._connection.receive_data(data)

    def close(self) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            self._send(CloseConnection(1000))
            # The thread that waits for messages shall see it.
            self._handler.connection.shutdown(2)

    def _send(self, event: Event) -> None:
        with self._lock:
            if self._handler.wfile.closed:
                raise BrokenPipeError("the client has left")
            self._handler.wfile.write(self._connection.send(event))
            self._handler.wfile.flush()


def serve_execution(
    handler: BaseHTTPRequestHandler, query: dict[str, list[str]], container: Container | None, name: str, say: Say
) -> None:
    """Run the command that `query` asks for, until it ends or the client leaves; the command goes on without it."""
    if container is None:
        return say(HTTPStatus.INTERNAL_SERVER_ERROR, f'container not found ("{name}")')
    connection = WSConnection(ConnectionType.SERVER)
    try:
        headers = [(key.lower().encode(), value.encode()) for key, value in handler.headers.items()]
        connection.initiate_upgrade_connection(headers, handler.path)
        request = next(connection.events())
    except ProtocolError as error:
        return say(HTTPStatus.BAD_REQUEST, f"no WebSocket: {error}")
    if not isinstance(request, Request) or PROTOCOL not in request.subprotocols:
        return say(HTTPStatus.FORBIDDEN, f"a nodelet speaks {PROTOCOL} only")
    handler.close_connection = True
    channels = Channels(handler, connection)
    channels.send(STDOUT, b"")
    streams = {key for key in ("input", "output", "error", "tty") if query.get(key, [""])[0] in ("1", "true")}
    try:
        execution = (_Terminal if "tty" in streams else _Pipes)(container, query.get("command", []), streams)
    except StartError as error:
        channels.send(STATUS, _refusal(f"failed to exec in container: {error.message}"))
        return channels.close()
    threading.Thread(target=_tell, args=(execution, channels), name=f"exec {name}", daemon=True).start()
    try:
        for message in channels.receive():
            execution.take(message)
    finally:
        execution.end_input()
    return None


class _Pipes:
    """A command whose streams are pipes."""

    def __init__(self, container: Container, argv: list[str], stream_names: set[str]) -> None:
        modes = [subprocess.PIPE if key in stream_names else subprocess.DEVNULL for key in ("input", "output", "error")]
        self.process = container.start_beside(argv, Standard(*modes), terminal=False)
        streams = ((STDOUT, self.process.stdout), (STDERR, self.process.stderr))
        self.outputs = {channel: stream.fileno() for channel, stream in streams if stream is not None}

    def take(self, message: bytes) -> None:
        channel, data = message[:1], message[1:]
        if message == bytes([END_OF_CHANNEL, STDIN]):
            self.end_input()
        elif channel == bytes([STDIN]) and self.process.stdin is not None and not self.process.stdin.closed:
            # A command that reads no more is no error of the client's.
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(data)
                self.process.stdin.flush()

    def end_input(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def close(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class _Terminal:
    """A command on a terminal of its own."""

    def __init__(self, container: Container, argv: list[str], streams: set[str]) -> None:
        controller, program_end = os.openpty()
        self._terminal = os.fdopen(controller, "r+b", buffering=0)
        try:
            self.process = container.start_beside(argv, Standard(program_end, program_end, program_end), terminal=True)
        except StartError:
            self._terminal.close()
            raise
        finally:
            os.close(program_end)
        self.outputs = {STDOUT: controller}

    def take(self, message: bytes) -> None:
        # The command's end closes the terminal meanwhile.
        with contextlib.suppress(OSError, ValueError):
            if message[:1] == bytes([STDIN]):
                self._terminal.write(message[1:])
            elif message[:1] == bytes([RESIZE]):
                size = json.loads(message[1:])
                window_size = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, window_size)

    def end_input(self) -> None:
        """A terminal's input has no end."""

    def close(self) -> None:
        self._terminal.close()


def _tell(execution: _Pipes | _Terminal, channels: Channels) -> None:
    """Send all output, then the command's end."""
    pumps = [
        threading.Thread(target=_pump, args=(file, channel, channels), daemon=True)
        for channel, file in execution.outputs.items()
    ]
    for pump in pumps:
        pump.start()
    for pump in pumps:
        pump.join()
    # Of a client that has left nobody reads more: a command that goes on printing is told so by SIGPIPE or SIGHUP.
    execution.close()
    code = execution.process.wait()
    with contextlib.suppress(OSError, ProtocolError):
        channels.send(STATUS, _end_status(128 - code if code < 0 else code))
    channels.close()


def _pump(file: int, channel: int, channels: Channels) -> None:
    try:
        while data := os.read(file, CHUNK):
            channels.send(channel, data)
    except (OSError, ProtocolError) as error:
        # A terminal whose last program has ended, or a client that has left: its command then writes into nothing.
        log.debug("channel %s ends: %s", channel, error)


def _end_status(code: int) -> bytes:
    status: dict[str, Any] = {"metadata": {}, "status": "Success"}
    if code:
        status = {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    return json.dumps(status).encode()


def _refusal(message: str) -> bytes:
    text = f"Internal error occurred: error executing command in container: {message}"
    return json.dumps(
        {"metadata": {}, "status": "Failure", "message": text, "reason": "InternalError", "code": 500}
    ).encode()

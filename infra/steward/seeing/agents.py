"""Requests to the agents of pods. A stranger's job runs beside each agent, so no answer is trusted: its bytes and its
time have one bound each, and whatever is not a plain good answer is none."""

from __future__ import annotations

import re
import socket
import time
from typing import NamedTuple

from trainer.contract import AGENT_PORT

MIB = 2**20
LISTING_BYTES = 16 * MIB
_HEADERS_BYTES = 2**14
_PIECE_BYTES = 2**16
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)


class NoAnswer(OSError):
    """An agent did not answer, or not with what was asked for."""


class TooLong(NoAnswer):
    """An answer is longer than it may be."""


class HttpAnswer(NamedTuple):
    code: int
    """Of HTTP."""
    body: bytes


def get(address: str, path: str, within_s: float, most_bytes: int = MIB, port: int = AGENT_PORT) -> HttpAnswer:
    """Return an agent's answer. `within_s` holds for the whole request, from the connection to the last byte.

    Raises `NoAnswer` for an answer that is late, longer than `most_bytes`, cut short or no HTTP, and for a redirect:
    none is followed, and no proxy is asked. HTTP/1.0, so that an answer is not chunked.
    """
    deadline = time.monotonic() + within_s
    try:
        with socket.create_connection((address, port), within_s) as connection:
            _set_timeout(connection, deadline)
            request = f"GET {path} HTTP/1.0\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode("ascii"))
            return _answer(connection, deadline, most_bytes)
    except NoAnswer:
        raise
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


def _answer(connection: socket.socket, deadline: float, most_bytes: int) -> HttpAnswer:
    buffer = bytearray()
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        if len(buffer) > _HEADERS_BYTES:
            raise NoAnswer("its headers do not end")
        buffer += _piece(connection, deadline) or _cut_short("in its headers")
    head, body = bytes(buffer[: end + 2]), buffer[end + 4 :]
    status, length = _STATUS_LINE.match(head), _LENGTH.search(head)
    if status is None:
        raise NoAnswer("it is no HTTP")
    if 300 <= (code := int(status[1])) < 400:
        raise NoAnswer(f"it leads elsewhere: {code}")
    content_length = None if length is None else int(length[1])
    while content_length is None or len(body) < content_length:
        if max(len(body), content_length or 0) > most_bytes or not (piece := _piece(connection, deadline)):
            break
        body += piece
    if max(len(body), content_length or 0) > most_bytes:
        raise TooLong(f"it is longer than {most_bytes} bytes")
    if content_length is not None and len(body) < content_length:
        _cut_short(f"after {len(body)} of {content_length} bytes")
    return HttpAnswer(code, bytes(body if content_length is None else body[:content_length]))


def _piece(connection: socket.socket, deadline: float) -> bytes:
    _set_timeout(connection, deadline)
    return connection.recv(_PIECE_BYTES)


def _set_timeout(connection: socket.socket, deadline: float) -> None:
    """Let the next call on the socket last until the deadline, which is past for an answer that trickles."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise NoAnswer("it does not end in its time")
    connection.settimeout(left)


def _cut_short(place: str) -> bytes:
    raise NoAnswer(f"it ends {place}")

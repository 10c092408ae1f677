"""A pod's log through the API server, line by line with times, so that a reader continues where another stopped.

Line numbers would not do: after a rotation a kubelet gives a new reader only the newest file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import httpx2

from infra.record.pod_logs import Position
from infra.spec.names import NAMESPACE

SILENT_S = 120.0
"""A connection that is silent for so long is opened again: its other end may be gone."""
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_S = 10**9


class LogLine(NamedTuple):
    at: int
    """ns since the epoch, by the node's container runtime."""
    text: str
    """Ends with a newline."""


class PodLogs:
    def __init__(self, http: httpx2.Client, namespace: str = NAMESPACE) -> None:
        """`http` points to the API server and needs a connection per pod: followed logs never release theirs."""
        self._http, self._namespace = http, namespace

    def follow(self, pod: str, position: Position, follow: bool = True) -> Iterator[LogLine]:
        """Yield lines after this position, with `follow` as they are printed, to the end of the log or of the
        connection.

        Raises `httpx2.HTTPError`: the API server refuses (`HTTPStatusError`) or cannot be reached.
        """
        options = {"follow": str(follow).lower(), "timestamps": "true"}
        if position.at:
            # Kubelets accept whole seconds only.
            options["sinceTime"] = datetime.fromtimestamp(position.at // _S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        timeout = httpx2.Timeout(self._http.timeout)
        timeout.read = SILENT_S
        with self._http.stream("GET", f"{self._path(pod)}/log", params=options, timeout=timeout) as response:
            response.raise_for_status()
            yield from _fresh(_with_times(_lines(response)), position)

    def ended(self, pod: str) -> bool:
        """Return whether the pod has ended, and not only the connection. Raises like `follow`."""
        response = self._http.get(self._path(pod))
        response.raise_for_status()
        return (response.json().get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def _path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{pod}"


def is_gone(error: httpx2.HTTPError) -> bool:
    return (
        isinstance(error, httpx2.HTTPStatusError) and error.response is not None and error.response.status_code == 404
    )


def _lines(response: httpx2.Response) -> Iterator[bytes]:
    """Split at line feeds only: a line with one time may contain carriage returns."""
    tail = b""
    for block in response.iter_bytes():
        *lines, tail = (tail + block).split(b"\n")
        yield from lines
    if tail:
        yield tail


def _with_times(lines: Iterator[bytes]) -> Iterator[LogLine]:
    time = 0
    for line in lines:
        stamp = _TIME.match(line)
        if stamp is not None:
            time, line = _nanoseconds(stamp), line[stamp.end() :]
        # A line without a time is a kubelet's message about an unreadable log, or the rest of a very long line.
        if time:
            yield LogLine(time, line.decode(errors="replace") + "\n")


def _nanoseconds(match: re.Match[bytes]) -> int:
    zone = match[3].decode().replace("Z", "+00:00")
    seconds = int(datetime.fromisoformat(match[1].decode() + zone).timestamp())
    return seconds * _S + int((match[2] or b"0").ljust(9, b"0"))


def _fresh(lines: Iterator[LogLine], position: Position) -> Iterator[LogLine]:
    count = 0
    for line in lines:
        if line.at < position.at:
            continue
        count += line.at == position.at
        if line.at > position.at or count > position.lines:
            yield line
            break
    # All later lines are new, even if the node's clock was set back.
    yield from lines

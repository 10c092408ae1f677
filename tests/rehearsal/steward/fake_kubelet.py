"""Pods' logs behind an API server, as Kubernetes gives them: with times, of the newest file, for whole seconds."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2

START_NS = 1_795_312_345_123_456_789
_S = 10**9


def rfc3339(at: int) -> str:
    """As Go writes nanoseconds: without zeros at the end."""
    fraction = f"{at % _S:09d}".rstrip("0")
    return f"{datetime.fromtimestamp(at // _S, UTC):%Y-%m-%dT%H:%M:%S}{'.' if fraction else ''}{fraction}Z"


@dataclass
class PodLog:
    lines: list[tuple[int, str]] = field(default_factory=list)
    """Of the newest file: (ns since the epoch, text with its newline)."""
    phase: str = "Running"
    still_to_come: Iterable[tuple[int, str]] = ()
    """Printed while it is followed."""


Cut = Callable[[int, PodLog], int | None]
"""(number of the connection, log) -> after how many lines it breaks, None: not before its end."""


class Kubelet(httpx2.BaseTransport):
    """A connection gives what is there and ends; `cut` breaks it, `then` is called when it is over."""

    def __init__(
        self,
        pods: dict[str, PodLog],
        cut: Cut = lambda number, log: None,
        then: Callable[[int, PodLog], None] = lambda number, log: None,
    ) -> None:
        self.pods, self.cut, self.then = pods, cut, then
        self.connections = 0
        self.asked: list[str | None] = []
        """The `sinceTime` of each connection."""
        self._lock = threading.Lock()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        found = re.fullmatch(r"/api/v1/namespaces/[^/]+/pods/([^/]+)(/log)?", request.url.path)
        log = self.pods.get(found[1]) if found else None
        if log is None:
            return httpx2.Response(404, content=json.dumps({"code": 404}), request=request)
        if not found or not found[2]:
            return httpx2.Response(200, json={"status": {"phase": log.phase}}, request=request)
        assert request.url.params["timestamps"] == request.url.params["follow"] == "true"
        since = request.url.params.get("sinceTime")
        assert since is None or re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", since), since
        with self._lock:
            self.connections += 1
            self.asked.append(since)
            number = self.connections
        oldest = int(datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp()) * _S if since else 0
        return httpx2.Response(200, content=self._written(number, log, oldest), request=request)

    def _written(self, number: int, log: PodLog, oldest: int) -> Iterator[bytes]:
        cut = self.cut(number, log)
        for at, text in list(log.lines)[:cut]:
            if at >= oldest:
                yield f"{rfc3339(at)} {text}".encode()
        for at, text in log.still_to_come:
            yield f"{rfc3339(at)} {text}".encode()
        self.then(number, log)
        if cut is not None:
            raise httpx2.ReadError("the node's endpoint is gone")

"""The server of the page of dashboards: files, panels, and the series of one panel. It answers no other query, and
nobody who does not know its token: loopback belongs to all users of a machine."""

from __future__ import annotations

import json
import math
import re
import secrets
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infra.cli.look.metrics import window
from infra.cli.look.series import LiveSeries, SeriesSource
from infra.errors import BivouacError
from infra.monitoring import page
from infra.monitoring.dashboards import ACROSS, Panel, dashboards
from infra.monitoring.series import MetricSeries

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/uPlot.css": ("uPlot.css", "text/css"),
    "/uPlot.min.js": ("uPlot.min.js", "text/javascript"),
}
_SERIES = re.compile(r"/series/([a-z]+)/(\d{1,3})")
_MOST_SERIES = 64
"""Of a panel: more lines than these tell nobody anything."""
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'"


class PanelServer(ThreadingHTTPServer):
    """Serves on a socket that listens already. A page of another origin may not read the answers: a name that resolves
    to this address is refused by its `Host`."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, campaign: str | None, source: SeriesSource) -> None:
        """`campaign`: None for the dashboard across campaigns alone."""
        super().__init__(listener.getsockname(), PanelHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.campaign, self.source = campaign, source
        self.title = campaign or "all campaigns"
        self.token = secrets.token_urlsafe(16)
        """First part of each path that is answered."""

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/{self.token}/"


class PanelHandler(BaseHTTPRequestHandler):
    server: PanelServer
    timeout = 60.0

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"only for loopback\n")
        token, _, path_below = address.path.removeprefix("/").partition("/")
        # Bytes: text that is not ASCII cannot be compared in constant time.
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"open the address that the command has printed\n")
        path = f"/{path_below}"
        if path in _FILES:
            name, kind = _FILES[path]
            return self._answer(HTTPStatus.OK, kind, page.content(name))
        if path == "/panels":
            return self._json(HTTPStatus.OK, self._panels())
        match = _SERIES.fullmatch(path)
        panels = dashboards()[match[1]].panels if match is not None and match[1] in dashboards() else ()
        if match is None or int(match[2]) >= len(panels):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"known: / /panels /series/BOARD/NUMBER\n")
        span = parse_qs(address.query).get("since", ["0"])[0]
        try:
            answer = series_of_panel(self.server.source, panels[int(match[2])], int(span) if span.isdigit() else 0)
        except BivouacError as error:
            return self._json(HTTPStatus.BAD_GATEWAY, {"error": str(error)})
        self._json(HTTPStatus.OK, answer)

    def _panels(self) -> dict[str, Any]:
        source = self.server.source
        boards = [
            {"name": name, **board.model_dump(exclude={"panels": {"__all__": {"queries"}}})}
            for name, board in dashboards().items()
            if (name == ACROSS) is (self.server.campaign is None)
        ]
        facts = {"campaign": self.server.title, "origin": source.origin, "live": isinstance(source, LiveSeries)}
        return facts | {"across": self.server.campaign is None, "boards": boards}

    def _json(self, status: HTTPStatus, value: Any) -> None:
        self._answer(status, "application/json", json.dumps(value, allow_nan=False).encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """A request is not worth a line."""


def series_of_panel(source: SeriesSource, panel: Panel, last_s: int) -> dict[str, Any]:
    """Return a panel's series for the page, of the last `last_s` seconds, 0 for all. A value that is no number is none.
    Raises what the source raises."""
    begin, end, step = window(source, float(last_s) or None)
    rows = [
        {"legend": legend_of(legend, row), "points": [[second, _finite(value)] for second, value in row.points]}
        for query, legend in panel.queries.items()
        for row in source.ask(query, begin, end, step)
    ]
    hidden_count = max(0, len(rows) - _MOST_SERIES)
    return {"begin": begin, "end": end, "step": step, "series": rows[:_MOST_SERIES], "more": hidden_count}


def legend_of(legend: str, row: MetricSeries) -> str:
    """Return a legend with the values of the labels that it names."""
    return re.sub(r"{{(\w+)}}", lambda match: row.labels.get(match[1], "?"), legend)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

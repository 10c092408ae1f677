"""The server on a pod's address, of any supervisor and of the built-in trainer's agent: `/status`, `/metrics`,
`/healthz`, and what they add: `/checkpoints`, `/verdicts/STEP` and shards."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Mapping, Optional, Tuple

from trainer.contract.metrics import PLACES, SUPERVISOR, exposition

PORT = 8471
"""`trainer.contract.AGENT_PORT`."""
_REQUEST_S = 10.0
"""For a request to be sent; `http.server` bounds its line and headers."""
_PHASES = ("starting", "restoring", "training", "saving", "evaluating", "finishing")
"""`trainer.contract.Phase`."""

More = Callable[[str], Optional[Tuple[int, bytes]]]
"""From a path to a code of HTTP and JSON."""
Stream = Callable[[BaseHTTPRequestHandler], bool]
"""Answers a request by itself; returns whether the request was for it."""


def serve(
    address: str,
    status: Callable[[], dict[str, Any]],
    answer_other: More,
    port: int = PORT,
    stream: Stream = lambda request: False,
) -> ThreadingHTTPServer:
    """Serve in a thread until the process ends; `stream` and `answer_other` answer for other paths. Raises `OSError`
    where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            if self.path == "/status":
                self._answer(200, "application/json", json.dumps(status()).encode())
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", metrics(status()).encode())
            elif self.path == "/healthz":
                self._answer(200, "text/plain", b"ok\n")
            elif stream(self):
                return
            elif (answer := answer_other(self.path)) is not None:
                self._answer(answer[0], "application/json", answer[1])
            else:
                self._answer(404, "text/plain", b"known: /status /metrics /checkpoints /verdicts/STEP /healthz\n")

        def _answer(self, code: int, kind: str, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are polls; they are not worth a line each."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()
    return server


def metrics(status: Mapping[str, Any]) -> str:
    """Return the supervisor's metrics in Prometheus' text form."""
    facts = {
        **status,
        "phases": {phase: phase == status["phase"] for phase in _PHASES},
        "heartbeat_ages": {row["rank"]: row["heartbeat_age_s"] for row in status["ranks"]},
    }
    return exposition(SUPERVISOR, facts, {name: status[name] for name in PLACES[SUPERVISOR]})

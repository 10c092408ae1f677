"""The server on a pod's address, of any supervisor and of the built-in trainer's agent: `/status`, `/metrics`,
`/healthz`, `/stacks`, and what they add: `/checkpoints`, `/verdicts/STEP` and shards."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Mapping, Tuple

from trainer.contract.metrics import PLACES, SUPERVISOR, exposition

PORT = 8471
"""`trainer.contract.AGENT_PORT`."""
_REQUEST_S = 10.0
"""For a request to be sent; `http.server` bounds its line and headers."""
_PHASES = ("starting", "restoring", "training", "saving", "evaluating", "finishing")
"""`trainer.contract.Phase`."""

Answer = Tuple[int, bytes]
"""Code of HTTP and content."""
_LONGEST = 1 << 20
"""Bytes of a message."""


def serve(
    address: str,
    status: Callable[[], dict[str, Any]],
    answer_other: Callable[[str], Answer | None],
    port: int = PORT,
    stream: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False,
    take: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
) -> ThreadingHTTPServer:
    """Serve in a thread until the process ends. For other paths than three, `stream` answers a request by itself, or
    returns that it was not for it, and then `answer_other` does. `take` answers what another node's supervisor posts.
    Raises `RuntimeError` where the port is taken: an `OSError` would count as a failure of the storage."""

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

        def do_POST(self) -> None:
            try:
                length = max(0, min(_LONGEST, int(self.headers.get("Content-Length", 0))))
                answer = None if take is None else take(json.loads(self.rfile.read(length)))
            except (ValueError, KeyError, TypeError):
                answer = None
            self._answer(400 if answer is None else 200, "application/json", json.dumps(answer).encode())

        def _answer(self, code: int, kind: str, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are polls; they are not worth a line each."""

    try:
        server = ThreadingHTTPServer((address, port), Handler)
    except OSError as error:
        cure = "end the process that listens there (ss -ltnp), or give the pod a network of its own"
        raise RuntimeError(f"the pod cannot serve on {address}:{port}: {error.strerror}; cure: {cure}") from error
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

"""What a node's supervisor serves on the pod's address: `/status`, `/metrics`, `/healthz`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional, Tuple

PORT = 8471
"""`trainer.contract.AGENT_PORT`."""
_REQUEST_S = 10.0
"""For a request to be sent; `http.server` bounds its line and headers."""
_GAUGES = {
    "step": "Newest step that the job told of",
    "steps": "Steps planned",
    "committed_step": "Newest sealed step, -1 before the first",
    "tokens": "Tokens consumed, if the job tells them",
    "loss": "Training loss of the newest step",
    "step_seconds": "Duration of the last step",
}


More = Callable[[str], Optional[Tuple[int, bytes]]]
"""From a path to a code of HTTP and JSON."""


def serve(address: str, status: Callable[[], dict[str, Any]], more: More, port: int = PORT) -> ThreadingHTTPServer:
    """Serve in a thread until the process ends; `more` answers for other paths. Raises `OSError` where the port is
    taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            if self.path == "/status":
                self._answer(200, "application/json", json.dumps(status()).encode())
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", metrics(status()).encode())
            elif self.path == "/healthz":
                self._answer(200, "text/plain", b"ok\n")
            elif (found := more(self.path)) is not None:
                self._answer(found[0], "application/json", found[1])
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


def metrics(status: dict[str, Any]) -> str:
    """Return the gauges in Prometheus' text form."""
    labels = ",".join(f'{name}="{status[name]}"' for name in ("campaign", "attempt", "node"))
    lines = []
    for name, text in _GAUGES.items():
        if status.get(name) is not None:
            lines += [f"# HELP bivouac_{name} {text}", f"# TYPE bivouac_{name} gauge"]
            lines.append(f"bivouac_{name}{{{labels}}} {float(status[name])}")
    return "\n".join(lines) + "\n"

"""Serve the steward's metrics on its pod's address, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from infra.clock import Clock
from infra.steward.seeing.views import Observation
from trainer.contract.metrics import STEWARD, STEWARD_PORT, exposition


class Exporter:
    """Keeps the figures of the newest look; before the first one it has none."""

    def __init__(self, campaign: str, clock: Clock, hang_timeout: timedelta, interval: timedelta) -> None:
        """`interval`: the longest between two commits by the plan."""
        self._campaign, self._clock = campaign, clock
        self._limits = {
            "hang_timeout_s": hang_timeout.total_seconds(),
            "save_interval_s": interval.total_seconds(),
        }
        self._facts: dict[str, Any] = {}
        self._safe_step, self._in_flight = -1, False
        self._since = clock.monotonic()
        """Begin of the training time without a commit."""

    def note(self, view: Observation, budget_usd: float, attempts: int, look_s: float) -> None:
        """Take the figures of a look. `look_s`: its duration in seconds; `attempts`: those launched so far."""
        now = self._clock.monotonic()
        if view.committed_step > self._safe_step or not (self._in_flight and view.in_flight):
            self._since = now
        self._safe_step, self._in_flight = max(view.committed_step, self._safe_step), view.in_flight
        self._facts = {
            **self._limits,
            "looked_at": view.now.timestamp(),
            "look_s": look_s,
            "attempts": attempts,
            "in_flight": view.in_flight,
            "held": view.held_since is not None,
            "pods": Counter(pod.phase for pod in view.pods) if view.in_flight else None,
            "silent": {
                pod.name: pod.silent_for.total_seconds()
                for pod in view.pods
                if pod.phase == "Running" and pod.silent_for is not None
            },
            "nodes": {
                "wanted": view.nodes_wanted,
                "there": len(view.nodes),
                "fit": sum(node.fit for node in view.nodes),
            },
            "step": view.step,
            "since_step_s": view.since_step.total_seconds() if view.in_flight else None,
            "committed_step": view.committed_step,
            "since_commit_s": now - self._since if view.in_flight else None,
            "spent_usd": view.spent_usd,
            "usd_per_hour": view.usd_per_hour,
            "budget_usd": budget_usd,
            "deadline": view.deadline.timestamp(),
            "unseen": {outage.source: outage.lasts.total_seconds() for outage in view.unseen},
            "troubles": len(view.troubles),
        }

    def text(self) -> str:
        """Return the metrics in Prometheus' text form."""
        return exposition(STEWARD, self._facts, {"campaign": self._campaign})

    def open(self, address: str = "", port: int = STEWARD_PORT) -> ThreadingHTTPServer:
        """Serve in a thread until the process ends. Raises `OSError` where the port is taken."""
        server = ThreadingHTTPServer((address, port), _handler(self.text))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            is_known = self.path == "/metrics"
            content = text().encode() if is_known else b"known: /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """A scrape is not worth a line."""

    return Handler

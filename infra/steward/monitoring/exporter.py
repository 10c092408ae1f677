"""Serve the steward's metrics on its pod's address, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from infra.clock import Clock
from infra.report.causes import TimeCause
from infra.steward.monitoring.figures import DIP, CheckpointAges, Dip, cause_of
from infra.steward.seeing.views import Observation
from trainer.contract import Phase
from trainer.contract.metrics import DRIVER, STEWARD, STEWARD_PORT, exposition

_TRAINING = (Phase.TRAINING, Phase.SAVING, Phase.EVALUATING, Phase.FINISHING)
_OF_ATTEMPT = ("pods", "silent", "since_step_s", "since_commit_s", "projected_usd", "checkpoint_ages")


class Exporter:
    """Keeps the figures of the newest look; before the first one it has none."""

    def __init__(self, campaign: str, clock: Clock, hang_timeout: timedelta) -> None:
        self._campaign, self._clock, self._hang_timeout = campaign, clock, hang_timeout
        self._facts: dict[str, Any] = {}
        self._safe_step, self._trains = -1, False
        self._since = clock.monotonic()
        """Begin of the training time without a commit."""
        self._causes: dict[str, float] = {}
        self._dip, self._dip_due_s, self._ages = Dip(), 0.0, CheckpointAges()
        """Seconds of dips that ended, and that no useful time was counted as yet: a counter never falls."""
        self._highest_step = 0
        self._look_time: float | None = None

    def note(
        self,
        view: Observation,
        budget_usd: float,
        attempts: int,
        look_s: float,
        interval: timedelta,
        extra: Mapping[str, Any] | None = None,
        step_s: float | None = None,
    ) -> None:
        """Take the figures of a look. `look_s`: its duration in seconds; `attempts`: those launched so far; `interval`:
        between two commits on a tier that outlives a node; `extra`: further fields of the metrics; `step_s`: seconds of
        the newest step."""
        now = self._clock.monotonic()
        self._count_time(view, now, step_s)
        trains = view.in_flight and any(pod.trainer_phase in _TRAINING for pod in view.pods)
        if view.committed_step > self._safe_step or not (self._trains and trains):
            self._since = now
        self._safe_step, self._trains = max(view.committed_step, self._safe_step), trains
        further = extra or {}
        self._facts = {
            "hang_timeout_s": self._hang_timeout.total_seconds(),
            "save_interval_s": interval.total_seconds(),
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
                "wanted": view.pods_wanted,
                "there": len(view.nodes),
                "fit": sum(node.fit for node in view.nodes),
            },
            "step": view.step,
            "since_step_s": view.since_step.total_seconds() if view.in_flight else None,
            "committed_step": view.committed_step,
            "since_commit_s": now - self._since if trains else None,
            "spent_usd": view.spent_usd,
            "usd_per_hour": view.usd_per_hour,
            "budget_usd": budget_usd,
            "deadline": view.deadline.timestamp(),
            "unseen": {outage.source: outage.lasts.total_seconds() for outage in view.unseen},
            "troubles": len(view.troubles),
            "cause_seconds": dict(self._causes),
            **further,
        }
        ages = self._ages.note(_committed_steps(view), now)
        self._facts["checkpoint_ages"] = {**ages, "archive": further.get("copy_age_s")}

    def _count_time(self, view: Observation, now: float, step_s: float | None) -> None:
        """Add the time since the last look to its cause."""
        cause, lasts_s = cause_of(view, self._highest_step), 0.0 if self._look_time is None else now - self._look_time
        self._highest_step, self._look_time = max(self._highest_step, view.step), now
        self._dip_due_s += self._dip.note(view.step, step_s, _committed_steps(view).get("local", -1))
        if cause == TimeCause.USEFUL.value:
            dip_s = min(self._dip_due_s, lasts_s)
            self._dip_due_s -= dip_s
            self._causes[DIP] = self._causes.get(DIP, 0.0) + dip_s
            lasts_s -= dip_s
        self._causes[cause] = self._causes.get(cause, 0.0) + lasts_s

    def live_on(self) -> None:
        """Note that the steward lives, while it waits for an archive or a grace and does not look."""
        if self._facts:
            self._facts = {**self._facts, "looked_at": self._clock.now().timestamp()}

    def rest(self) -> None:
        """Note that no attempt runs any more: what is known of pods and steps is past."""
        self._facts = {name: value for name, value in self._facts.items() if name not in _OF_ATTEMPT} | {"in_flight": 0}

    def end(self) -> None:
        """Note that the steward has nothing to do any more."""
        self._facts = {"over": 1}

    def text(self) -> str:
        """Return the metrics in Prometheus' text form."""
        place = {"campaign": self._campaign}
        return exposition(STEWARD, self._facts, place) + exposition(DRIVER, self._facts, place)

    def open(self, address: str = "", port: int = STEWARD_PORT) -> ThreadingHTTPServer:
        """Serve in a thread until the process ends. Raises `OSError` where the port is taken."""
        server = ThreadingHTTPServer((address, port), _handler(self.text))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server


def _committed_steps(view: Observation) -> dict[str, int]:
    """Return tier -> newest step committed there, -1 for none; without a tier of which nothing was heard."""
    steps = [pod.committed_step for pod in view.pods if pod.trainer_phase is not None]
    tiers = {"local": max(steps)} if steps else {}
    return tiers if view.committed_step < 0 and view.troubles else {**tiers, "shared": view.committed_step}


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

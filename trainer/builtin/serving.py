"""The agent's HTTP server on the pod's address: `/status`, `/metrics` and `/healthz` from the ranks' heartbeats,
`/checkpoints` and `/verdicts` from the node's local tier."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trainer.builtin.checkpoint.shard_server import PREFIX, answer
from trainer.builtin.checkpoint.verdict import Busy, verdict
from trainer.builtin.failures.first_end import state_of
from trainer.builtin.failures.verdict import seen_alive
from trainer.builtin.heartbeat import Beat, read_beats
from trainer.contract import AGENT_PORT, Phase, RankStatus, Status, StepFigures
from trainer.contract.listing import CHECKPOINTS_PATH, VERDICTS_PATH, Listing, list_folder
from trainer.errors import TrainerError
from trainer.place import generation

_ORDER = list(Phase)


@dataclass
class Node:
    """The agent's place in the campaign, and the folders of its heartbeats and checkpoints."""

    campaign: str
    attempt: int
    name: str
    steps: int
    first_rank: int
    """It changes once, when the nodes have agreed on their order."""
    ranks: int
    run: Path
    checkpoints: Path
    """The campaign's folder on the local tier, which is listed and from which other nodes may fetch shards."""
    started: float = field(default_factory=time.monotonic)

    def status(self) -> Status:
        beats = {beat.rank: beat for beat in read_beats(self.run)}
        ranks = range(self.first_rank, self.first_rank + self.ranks)
        slowest = min(beats.values(), key=lambda beat: beat.step, default=None)
        return Status(
            campaign=self.campaign,
            attempt=self.attempt,
            generation=generation(),
            node=self.name,
            phase=min((beat.phase for beat in beats.values()), key=_ORDER.index, default=Phase.STARTING),
            step=slowest.step if slowest and len(beats) == self.ranks else 0,
            steps=self.steps,
            committed_step=max((beat.committed_step for beat in beats.values()), default=-1),
            tokens=slowest.tokens if slowest else 0,
            loss=slowest.loss if slowest else None,
            step_seconds=slowest.step_seconds if slowest else None,
            data_wait_seconds=max((b.data_wait_seconds for b in beats.values() if b.data_wait_seconds), default=None),
            figures=slowest.figures if slowest else None,
            alarms=max((beat.alarms for beat in beats.values()), default=0),
            ranks=tuple(self._rank(rank, beats.get(rank)) for rank in ranks),
            seen=seen_alive(self.run, list(beats.values())),
        )

    def _rank(self, rank: int, beat: Beat | None) -> RankStatus:
        if beat is None:
            age = time.monotonic() - self.started
            return RankStatus(rank=rank, alive=True, step=0, heartbeat_age_s=round(age, 3))
        age = time.monotonic() - beat.at
        alive = beat.outcome is None and state_of(beat.pid) not in ("", "Z", "X")
        return RankStatus(rank=rank, alive=alive, step=beat.step, heartbeat_age_s=round(age, 3))


def serve(node: Node, address: str) -> ThreadingHTTPServer:
    """Start serving in a daemon thread.

    Raises `TrainerError` when the port is taken: a plain `OSError` would count as a storage failure.
    """
    registry = CollectorRegistry()
    registry.register(_StatusCollector(node))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/status":
                self._answer(200, "application/json", node.status().model_dump_json().encode())
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", generate_latest(registry))
            elif self.path == CHECKPOINTS_PATH:
                rows = list_folder(node.checkpoints, "local", node.campaign, node.name)
                self._answer(200, "application/json", Listing(rows=tuple(rows)).model_dump_json().encode())
            elif self.path.startswith(VERDICTS_PATH):
                self._verdict(self.path.removeprefix(VERDICTS_PATH))
            elif self.path.startswith(PREFIX):
                answer(self, node.checkpoints)
            elif self.path == "/healthz":
                self._answer(200, "text/plain", b"ok\n")
            else:
                self._answer(404, "text/plain", b"known: /status /metrics /checkpoints /verdicts/STEP /healthz\n")

        def _verdict(self, step: str) -> None:
            try:
                found = verdict(node.checkpoints, int(step), node.campaign, node.name) if step.isdecimal() else None
            except Busy:
                self._answer(429, "text/plain", b"another step is being read\n")
                return
            if found is None:
                self._answer(404, "text/plain", b"no such step is committed here\n")
            else:
                self._answer(200, "application/json", found.model_dump_json().encode())

        def _answer(self, code: int, kind: str, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: requests are polls."""

    try:
        server = ThreadingHTTPServer((address, AGENT_PORT), Handler)
    except OSError as error:
        cure = "end the process that listens there (ss -ltnp), or give the pod a network of its own"
        raise TrainerError("the agent cannot serve", f"{address}:{AGENT_PORT}: {error.strerror}", cure) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()
    return server


class _StatusCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        status = self._node.status()
        place = {"campaign": status.campaign, "attempt": str(status.attempt), "node": status.node}
        values = {
            "step": ("Optimizer steps finished by the slowest local rank", status.step),
            "steps": ("Optimizer steps planned", status.steps),
            "committed_step": ("Newest step committed on this node, -1 before the first", status.committed_step),
            "tokens": ("Tokens consumed by all ranks", status.tokens),
            "loss": ("Training loss of the last step, nats per token", status.loss),
            "step_seconds": ("Duration of the last step", status.step_seconds),
            "data_wait_seconds": ("Spent waiting for data in this attempt", status.data_wait_seconds),
            "watch_alarms": ("Alarms of the watch in this attempt", status.alarms),
            **_of_figures(status.figures or StepFigures()),
        }
        for name, (text, value) in values.items():
            if value is not None:
                yield _gauge(name, text, place, value)
        phase = GaugeMetricFamily("bivouac_phase", "1 for the current phase", labels=[*place, "phase"])
        for each in Phase:
            phase.add_metric([*place.values(), each.value], float(each is status.phase))
        yield phase
        figures = status.figures or StepFigures()
        layers = GaugeMetricFamily("bivouac_layer_norm", "Norm of a group's gradients", labels=[*place, "layers"])
        for group, norm in figures.layers.items():
            layers.add_metric([*place.values(), group], norm)
        yield layers
        age = GaugeMetricFamily("bivouac_heartbeat_age_seconds", "Since a rank's last beat", labels=[*place, "rank"])
        for rank in status.ranks:
            age.add_metric([*place.values(), str(rank.rank)], rank.heartbeat_age_s)
        yield age


def _of_figures(figures: StepFigures) -> dict[str, tuple[str, float | None]]:
    """Return name -> (meaning, value) of the last step's figures; seconds are means over the ranks."""
    return {
        "gradient_norm": ("Norm of all gradients before clipping", figures.norm),
        "learning_rate": ("Learning rate", figures.rate),
        "loss_scale": ("Factor of the loss in its backward pass", figures.loss_scale),
        "tokens_per_second": ("Tokens of all ranks per second", figures.tokens_per_second),
        "mfu": ("Model FLOP/s / peak of the accelerators (PaLM, appendix B)", figures.mfu),
        "hfu": ("The same with what is computed again", figures.hfu),
        "memory_gib": ("Most memory that one rank has used", figures.memory_gib),
        "step_data_seconds": ("Part of the step that waited for data", figures.data_s),
        "step_compute_seconds": ("Part of the step in forward and backward passes", figures.compute_s),
        "step_communication_seconds": ("Part of the step that reduced gradients", figures.communication_s),
        "step_optimizer_seconds": ("Part of the step in the optimizer", figures.optimizer_s),
        "step_checkpoint_seconds": ("Stall of a save before the step", figures.checkpoint_s),
        "slowest_rank": ("Rank with the longest forward passes", figures.slowest_rank),
        "slowest_rank_ratio": ("Its time / the median over the ranks", figures.slowest_ratio),
    }


def _gauge(name: str, text: str, place: dict[str, str], value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"bivouac_{name}", text, labels=list(place))
    family.add_metric(list(place.values()), float(value))
    return family

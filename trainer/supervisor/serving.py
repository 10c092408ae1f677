"""The server on a pod's address, of any supervisor and of the built-in trainer's agent: `/status`, `/metrics`,
`/healthz`, and what they add: `/checkpoints`, `/verdicts/STEP` and shards."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Iterable, Mapping, Tuple

PORT = 8471
"""`trainer.contract.AGENT_PORT`."""
_REQUEST_S = 10.0
"""For a request to be sent; `http.server` bounds its line and headers."""
_GAUGES = (
    ("step", "step", "Newest finished step: optimizer steps of the slowest local rank, or what the job told"),
    ("steps", "steps", "Steps planned"),
    ("committed_step", "committed_step", "Newest step committed, -1 before the first"),
    ("tokens", "tokens", "Tokens consumed by all ranks, as far as they are known"),
    ("loss", "loss", "Training loss of the newest step"),
    ("step_seconds", "step_seconds", "Duration of the last step"),
    ("data_wait_seconds", "data_wait_seconds", "Spent waiting for data in this attempt"),
    ("watch_alarms", "alarms", "Alarms of the watch in this attempt"),
)
"""Name, field of the status, meaning. A field that is not known has no gauge."""
_FIGURES = (
    ("gradient_norm", "norm", "Norm of all gradients before clipping"),
    ("learning_rate", "rate", "Learning rate"),
    ("loss_scale", "loss_scale", "Factor of the loss in its backward pass"),
    ("tokens_per_second", "tokens_per_second", "Tokens of all ranks per second"),
    ("mfu", "mfu", "Model FLOP/s / peak of the accelerators (PaLM, appendix B)"),
    ("hfu", "hfu", "The same with what is computed again"),
    ("memory_gib", "memory_gib", "Most memory that one rank has used"),
    ("step_data_seconds", "data_s", "Part of the step that waited for data"),
    ("step_compute_seconds", "compute_s", "Part of the step in forward and backward passes"),
    ("step_communication_seconds", "communication_s", "Part of the step that reduced gradients"),
    ("step_optimizer_seconds", "optimizer_s", "Part of the step in the optimizer"),
    ("step_checkpoint_seconds", "checkpoint_s", "Stall of a save before the step"),
    ("slowest_rank", "slowest_rank", "Rank with the longest forward passes"),
    ("slowest_rank_ratio", "slowest_ratio", "Its time / the median over the ranks"),
)
"""The same of the status' `figures`, of the last step; seconds are means over the ranks."""
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
            content = self.rfile.read(min(_LONGEST, int(self.headers.get("Content-Length", 0))))
            try:
                answer = None if take is None else take(json.loads(content))
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
    """Return the gauges in Prometheus' text form."""
    place = {name: status[name] for name in ("attempt", "campaign", "node")}
    figures = status.get("figures") or {}
    lines: list[str] = []

    def gauge(name: str, meaning: str, label: str, values: Iterable[tuple[Any, Any]]) -> None:
        rows = [({**place, **({label: key} if label else {})}, value) for key, value in values if value is not None]
        if rows:
            lines.extend([f"# HELP bivouac_{name} {meaning}", f"# TYPE bivouac_{name} gauge"])
        for labels, value in rows:
            text = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            lines.append(f"bivouac_{name}{{{text}}} {float(value)}")

    for source, gauges in ((status, _GAUGES), (figures, _FIGURES)):
        for name, field, meaning in gauges:
            gauge(name, meaning, "", [("", source.get(field))])
    gauge("phase", "1 for the current phase", "phase", [(phase, phase == status["phase"]) for phase in _PHASES])
    gauge("layer_norm", "Norm of a group's gradients", "layers", figures.get("layers", {}).items())
    ages = [(row["rank"], row["heartbeat_age_s"]) for row in status["ranks"]]
    gauge("heartbeat_age_seconds", "Since a rank's last sign of life", "rank", ages)
    return "\n".join(lines) + "\n"

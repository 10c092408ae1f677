"""Exporters that have nothing to read in a rehearsal, without GPU, EFA device and NVMe disk: a drill gives them words.

They serve it as the real ones do, so Prometheus takes it by the jobs of the release. Names and labels are those of the
pages that `infra/monitoring/exporters.yaml` names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from infra.rehearsal.nodelet.metadata import LocalServer, Quiet
from trainer.contract.frozen import Frozen

_PORTS = {"dcgm-exporter": 9400, "prometheus-node-exporter": 9100}
"""Name of the chart's pods -> port of the exporter."""
_SETTLES_S = 15.0
"""Until then Prometheus has scraped `before`."""


class Sample(Frozen):
    """One series: `before` for 15 s, then `value`, which grows by `per_s` each second."""

    series: str
    """As the exporter writes it, `NAME{label="value"}`; `{node}` in it is the node's name."""
    before: float = 0.0
    value: float = 0.0
    per_s: float = 0.0

    def at(self, age_s: float) -> float:
        return self.before if age_s < _SETTLES_S else self.value + self.per_s * (age_s - _SETTLES_S)


class Words(Frozen):
    """What one exporter tells of a node, until it is gone."""

    exporter: Literal["dcgm-exporter", "prometheus-node-exporter"]
    samples: tuple[Sample, ...]
    gone_after_s: float


class Exporters:
    """Servers of one address, which start when a drill first speaks by them. Any thread may call its methods."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._words = dict[str, tuple[float, str, Words]]()
        """Exporter -> since when, the node, and what it tells."""
        self._servers = dict[str, LocalServer]()
        self._lock = threading.Lock()

    def tell(self, node: str, words: Words) -> None:
        """Let an exporter tell this, and nothing else. Raises `OSError` if its port is taken."""
        with self._lock:
            self._words[words.exporter] = (self._clock(), node, words)
            if words.exporter not in self._servers:
                handler = _handler(lambda: self.text(words.exporter))
                server = LocalServer((self._address, _PORTS[words.exporter]), handler)
                self._servers[words.exporter] = server
                threading.Thread(target=server.serve_forever, name=words.exporter, daemon=True).start()

    def text(self, exporter: str) -> str:
        """Return what it tells now, in Prometheus' text format."""
        since, node, words = self._words[exporter]
        age_s = self._clock() - since
        lines = (f"{sample.series.replace('{node}', node)} {sample.at(age_s)!r}\n" for sample in words.samples)
        return "".join(lines)

    def targets(self) -> Iterator[dict[str, Any]]:
        """Yield the exporters that are not gone, as Prometheus' discovery names the pods of their charts."""
        for exporter, (since, node, words) in list(self._words.items()):
            if self._clock() - since < words.gone_after_s:
                labels = {
                    "__meta_kubernetes_namespace": "kube-system",
                    "__meta_kubernetes_pod_name": f"{exporter}-{node}",
                    "__meta_kubernetes_pod_node_name": node,
                    "__meta_kubernetes_pod_label_app_kubernetes_io_name": exporter,
                    "__meta_kubernetes_pod_container_port_name": "metrics",
                }
                yield {"targets": [f"{self._address}:{_PORTS[exporter]}"], "labels": labels}

    def stop(self) -> None:
        with self._lock:
            for server in self._servers.values():
                server.shutdown()
                server.server_close()
            self._servers.clear()
            self._words.clear()


def node_exporter_job(relabelings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scrape job that the chart's operator makes for node-exporter. `relabelings`: the release's."""
    name = "prometheus-node-exporter"
    keep = {"source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_name"], "regex": name, "action": "keep"}
    return {
        "job_name": "node-exporter",
        "kubernetes_sd_configs": [{"role": "pod"}],
        "relabel_configs": [keep],
        "metric_relabel_configs": [
            {"source_labels" if key == "sourceLabels" else key: value for key, value in row.items()}
            for row in relabelings
        ],
    }


def _handler(text: Callable[[], str]) -> type[Quiet]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            self.answer(text, "text/plain; version=0.0.4")

    return Handler

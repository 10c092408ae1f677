"""Bench: what monitoring costs: series of a node, Prometheus' memory for 512 nodes, and a scrape of a supervisor.

    .venv/bin/python -m tests.bench.monitoring [--nodes 512] [--seconds 30] [--interval 3s]

`series`: of a node with eight GPUs, eight NVMe disks and EFA, as its exporters write them: the supervisor's by its own
code with every field known, dcgm-exporter's by the list of counters that it gets from us, for each GPU with the labels
that it adds, node-exporter's by what the chart's rules keep. `memory`: the real Prometheus with the chart's intervals
and all of our rules scrapes so many nodes with these series, and a steward, from one process on loopback; its memory is
read after the time, so it holds no more samples than that time has. `exporting`: processor time of a supervisor's
process for a scrape, as a part of the time between two; a training whose only core it took would be so much slower.
Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from infra.folders import tools_dir
from infra.monitoring.alerts import CHART, rule_groups
from infra.monitoring.exporters import GPU_CHART, with_counters
from infra.plan import catalogue
from tests.bench.parts.verdict import Verdict, judge
from tests.bench.steward.__main__ import Figures
from tests.results import keep, results_of
from tests.root import ROOT
from trainer.contract.metrics import METRICS, STEWARD, SUPERVISOR, exposition
from trainer.supervisor import serving

RESULTS = results_of("bench", "monitoring")
MOST_SERIES, MOST_MB, MOST_SHARE = 2000, 1000.0, 0.001
JOBS = ("trainer", "gpus", "nodes")
ANSWERED = "count(max_over_time(up[5m])==1)"
ALL_ANSWER_S = 130.0
"""Longest time until each target has answered once."""
GPUS, SCRAPES = 8, 400
DISKS = [*(f"nvme{number}n1" for number in range(9)), "md127"]
NETWORKS = [f"ens{number}" for number in range(33)]
NODE_METRICS = {
    "disk": ("node_disk_read_bytes_total", "node_disk_written_bytes_total", "node_disk_io_time_seconds_total",
             "node_disk_reads_completed_total"),
    "network": ("node_network_receive_bytes_total", "node_network_transmit_bytes_total", "node_network_up"),
    "filesystem": ("node_filesystem_avail_bytes", "node_filesystem_size_bytes", "node_filesystem_readonly"),
    "": ("node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes", "node_load1", "node_context_switches_total"),
}  # fmt: skip
"""Some that node-exporter writes for each of a kind, and that the chart's rules keep or drop.
https://github.com/prometheus/node_exporter/blob/master/collector/fixtures/e2e-output.txt"""


def chart_values() -> dict[str, Any]:
    return next(chart for chart in catalogue.charts() if chart.name == CHART).values_from(None)


def status(node: int) -> dict[str, Any]:
    """A supervisor's status with a value for every field of its metrics."""
    tree: dict[str, Any] = {}
    for metric in METRICS:
        if metric.source == SUPERVISOR:
            *parents, last = metric.field.split(".")
            place = tree
            for parent in parents:
                place = place.setdefault(parent, {})
            labels = {"layers": [f"layers.{n}" for n in range(8)], "tier": ["local", "shared"]}.get(metric.label, ["x"])
            place[last] = dict.fromkeys(labels, 0.5) if metric.label else 0.5
    ranks = [{"rank": GPUS * node + n, "heartbeat_age_s": 0.2} for n in range(GPUS)]
    return {**tree, "campaign": "bench", "attempt": 1, "node": f"node-{node}", "phase": "training", "ranks": ranks}


def gpu_lines(node: int) -> Iterator[str]:
    """Yield dcgm-exporter's lines, with its labels. https://github.com/NVIDIA/dcgm-exporter#quickstart"""
    names = [line.split(",")[0] for line in with_counters(GPU_CHART, {})["customMetrics"].splitlines()]
    for gpu in range(GPUS):
        place = f'gpu="{gpu}",UUID="GPU-{node:08d}-{gpu}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}"'
        pod = f'modelName="NVIDIA H100 80GB HBM3",Hostname="node-{node}",pod="bench-a1-gang-0-{node}"'
        for name in names:
            yield f"{name}{{{place},{pod}}} 17"


def node_lines() -> Iterator[str]:
    """Yield node-exporter's lines that the chart's rules keep."""
    (rule,) = chart_values()["prometheus-node-exporter"]["prometheus"]["monitor"]["metricRelabelings"]
    assert rule["action"] == "keep" and rule["sourceLabels"] == ["__name__"]
    places = {"disk": DISKS, "network": NETWORKS, "filesystem": ["/", "/boot", "/mnt/k8s-disks/0"], "": [""]}
    for kind, names in NODE_METRICS.items():
        for name in names:
            for place in places[kind] if re.fullmatch(rule["regex"], name) else ():
                yield f'{name}{{device="{place}",mountpoint="{place}"}} 4711' if place else f"{name} 4711"


def body_of(path: str) -> str:
    """Return what `/JOB/NODE` answers."""
    job, _, number = path.strip("/").partition("/")
    if job == "trainer":
        return serving.metrics(status(int(number)))
    if job == "gpus":
        return "\n".join(gpu_lines(int(number))) + "\n"
    if job == "nodes":
        return "\n".join(node_lines()) + "\n"
    fields = {metric.field: {"x": 1.0} if metric.label else 1.0 for metric in METRICS if metric.source == STEWARD}
    silent = {f"bench-a1-gang-0-{node}": 0.2 for node in range(int(number))}
    return exposition(STEWARD, {**fields, "silent": silent}, {"campaign": "bench"})


async def serve(nodes: int) -> None:
    """Answer as all exporters of so many nodes, until killed; print the port."""
    paths = [*(f"/{job}/{node}" for job in JOBS for node in range(nodes)), f"/steward/{nodes}"]
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: "
    answers = {path: f"{head}{len(body)}\r\n\r\n{body}".encode() for path in paths for body in [body_of(path)]}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(answers[request.split(b" ", 2)[1].decode()])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def samples(text: str) -> int:
    return sum(bool(line) and not line.startswith("#") for line in text.splitlines())


def count() -> dict[str, int]:
    """Return the series of one node by exporter."""
    return {job: samples(body_of(f"/{job}/0")) for job in JOBS}


def document_of(paths: list[str], port: int, interval: str, folder: Path) -> dict[str, Any]:
    """Return Prometheus' configuration, which scrapes each path of the port as a target of its own."""
    spec = chart_values()["prometheus"]["prometheusSpec"]
    groups = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"path": path, "node": path.rpartition("/")[2]}} for path in paths
    ]
    places = [{"source_labels": ["path"], "target_label": label} for label in ("__metrics_path__", "instance")]
    relabel = [*places, {"regex": "path", "action": "labeldrop"}]
    return {
        "global": {
            "scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": spec["evaluationInterval"]
        },
        "rule_files": [str(folder / "rules.json")],
        "scrape_configs": [{"job_name": "all", "static_configs": groups, "relabel_configs": relabel}],
    }  # fmt: skip


def prometheus_memory(nodes: int, seconds: float, interval: str, folder: Path) -> dict[str, Any]:
    """Return memory and series of a Prometheus that scrapes so many nodes, this time after each has answered once."""
    paths = [*(f"/{job}/{node}" for job in JOBS for node in range(nodes)), f"/steward/{nodes}"]
    own = [sys.executable, "-m", "tests.bench.monitoring", "--serve", "--nodes", str(nodes)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        listener = f"127.0.0.1:{free.getsockname()[1]}"
    argv = [
        str(tools_dir() / "prometheus"), f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={folder / 'series'}", f"--web.listen-address={listener}", "--log.level=warn",
    ]  # fmt: skip
    (folder / "rules.json").write_text(json.dumps(rule_groups()))
    with subprocess.Popen(own, cwd=ROOT, stdout=-1) as exporters:
        try:
            port = int(cast(IO[bytes], exporters.stdout).readline())
            (folder / "prometheus.json").write_text(json.dumps(document_of(paths, port, interval, folder)))
            with subprocess.Popen(argv) as process:
                try:
                    begun = time.monotonic()
                    while answered(listener) < len(paths) and time.monotonic() - begun < ALL_ANSWER_S:
                        time.sleep(1.0)
                    time.sleep(seconds)
                    figures, lasts_s = Figures(process.pid), time.monotonic() - begun
                    series = asked(listener, "/api/v1/status/tsdb")["headStats"]["numSeries"]
                    up = answered(listener)
                finally:
                    process.kill()
        finally:
            exporters.kill()
    return {"memory_mb": round(figures.memory_mb, 1), "series": series, "targets": len(paths), "answered": up,
            "core_share": round(figures.processor_s / lasts_s, 2), "interval": interval}  # fmt: skip


def asked(listener: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{listener}{path}", timeout=30) as answer:
        return dict(json.load(answer)["data"])


def answered(listener: str) -> int:
    """Return the number of targets that have answered; 0 before Prometheus does."""
    with suppress(OSError):
        rows = asked(listener, f"/api/v1/query?query={ANSWERED}")["result"]
        return int(rows[0]["value"][1]) if rows else 0
    return 0


SUPERVISOR_PROCESS = """
import json, sys, threading
from trainer.supervisor.serving import serve
status = json.loads(sys.argv[1])
print(serve("127.0.0.1", lambda: status, lambda path: None, 0).server_port, flush=True)
threading.Event().wait()
"""


def scrape_cost_s() -> float:
    """Return the processor seconds of a supervisor's process for one scrape."""
    argv = [sys.executable, "-c", SUPERVISOR_PROCESS, json.dumps(status(0))]
    with subprocess.Popen(argv, cwd=ROOT, stdout=-1) as process:
        try:
            address = f"http://127.0.0.1:{int(cast(IO[bytes], process.stdout).readline())}/metrics"
            before = Figures(process.pid).processor_s
            for _ in range(SCRAPES):
                urllib.request.urlopen(address, timeout=30).read()
            return (Figures(process.pid).processor_s - before) / SCRAPES
        finally:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=30.0, help="after each target has answered")
    chart_interval = chart_values()["prometheus"]["prometheusSpec"]["scrapeInterval"]
    parser.add_argument("--interval", default=chart_interval, help="between two scrapes; longer on a loaded machine")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.nodes))
    by_exporter, cost_s = count(), scrape_cost_s()
    with tempfile.TemporaryDirectory(prefix="bivouac-monitoring-") as folder:
        memory = prometheus_memory(options.nodes, options.seconds, options.interval, Path(folder))
    row = {"series_of_a_node": by_exporter, "scrape_ms": round(1000 * cost_s, 3), **memory}
    print(json.dumps(row), flush=True)
    keep(RESULTS, row)
    assert memory["answered"] == memory["targets"], "a target that did not answer costs no memory"
    return judge(
        Verdict("series of a node", (sum(by_exporter.values()),), MOST_SERIES, unit="series"),
        Verdict(f"memory of Prometheus, {options.nodes} nodes", (memory["memory_mb"],), MOST_MB, unit="MB"),
        Verdict("a scrape, part of a core", (cost_s / float(chart_interval[:-1]),), MOST_SHARE, unit="cores"),
    )


if __name__ == "__main__":
    sys.exit(main())

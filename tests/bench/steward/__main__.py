"""A steward's own price: processor and memory for 2 nodes, and the length of its loop for 512 light ones.

    .venv/bin/python -m tests.bench.steward [--nodes 2 512] [--seconds 30]

The real steward, in a process of its own, against a process that plays the account, the API server and the agents of a
gang that trains: a step a second, eight ranks and a log for each node. A turn is one question to every agent; between
two turns it rests as on AWS. The other process's load is not the steward's, but on few cores it slows the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, cast

from infra.cluster.steward_config import StewardConfig
from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from tests.root import ROOT

RESULTS = results_of("bench", "steward")
SETTLES_S, STARTS_WITHIN_S = 15.0, 240.0
MOST_SHARE, MOST_MB, MOST_TURN_S = 0.02, 150.0, 1.0
TICKS = os.sysconf("SC_CLK_TCK")


STEWARD = """
import sys
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User
from infra.spec.names import NAMESPACE
from infra.steward import __main__ as pod
from infra.steward.monitoring.exporter import Exporter

server, pod.CONFIG_PATH = sys.argv[1:]
in_cluster = KubeConfig.from_one(cluster=Cluster(server=server), user=User(), context_name="bench", namespace=NAMESPACE)
KubeConfig.from_service_account = classmethod(lambda cls: in_cluster)
serve_on = Exporter.open
Exporter.open = lambda self: serve_on(self, "127.0.0.1", 0)
pod.main()
"""
"""The pod's own program, but for where its API server, its configuration and its metrics are."""


class Figures:
    """What a process has used, by /proc."""

    def __init__(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.processor_s = (int(fields[11]) + int(fields[12])) / TICKS
        self.memory_mb = int(status["VmRSS"].split()[0]) * 1024 / 10**6
        self.threads = int(status["Threads"])
        self.at = time.monotonic()


def asked(world: subprocess.Popen[str]) -> int:
    """Return how many questions the agents have answered."""
    cast(IO[str], world.stdin).write("asked\n")
    cast(IO[str], world.stdin).flush()
    return int(cast(IO[str], world.stdout).readline())


def measure(nodes: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Return the figures of a steward of so many nodes, over this time."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-m", "tests.bench.steward.fleet", str(nodes), str(folder / "account")]
    folder.mkdir(parents=True)
    log = (folder / "steward.log").open("w")
    with log, subprocess.Popen(command, cwd=ROOT, env=environment, stdin=-1, stdout=-1, text=True) as world:
        try:
            facts = json.loads(cast(IO[str], world.stdout).readline())
            own = [sys.executable, "-c", STEWARD, facts["api"], facts["config"]]
            with subprocess.Popen(
                own, cwd=ROOT, env=environment | facts["environment"], stdout=log, stderr=log
            ) as process:
                try:
                    begun = time.monotonic()
                    while asked(world) < 5 * nodes:
                        is_late = time.monotonic() - begun > STARTS_WITHIN_S
                        assert process.poll() is None and not is_late, (folder / "steward.log").read_text()[-2000:]
                        time.sleep(0.2)
                    time.sleep(SETTLES_S)
                    before, questions = Figures(process.pid), asked(world)
                    time.sleep(seconds)
                    after, more = Figures(process.pid), asked(world)
                finally:
                    process.kill()
        finally:
            world.kill()
    lasts_s, turns = after.at - before.at, (more - questions) / nodes
    rest_s = StewardConfig.model_fields["poll"].default.total_seconds()
    return {
        "nodes": nodes, "turns": round(turns, 1), "turn_s": round(lasts_s / turns - rest_s, 3),
        "core_share": round((after.processor_s - before.processor_s) / lasts_s, 4),
        "memory_mb": round(after.memory_mb, 1), "threads": after.threads,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 512])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bivouac-steward-"))
    rows = []
    for nodes in options.nodes:
        rows.append(measure(nodes, options.seconds, folder / str(nodes)))
        print(json.dumps(rows[-1]), flush=True)
    keep(RESULTS, rows)
    verdicts = []
    for row in rows:
        if row["nodes"] == 2:
            verdicts.append(Verdict("2 nodes, share of a core", (row["core_share"],), MOST_SHARE, unit="cores"))
            verdicts.append(Verdict("2 nodes, memory", (row["memory_mb"],), MOST_MB, unit="MB"))
        else:
            verdicts.append(Verdict(f"{row['nodes']} nodes, a turn", (row["turn_s"],), MOST_TURN_S))
    return judge(*verdicts)


if __name__ == "__main__":
    sys.exit(main())

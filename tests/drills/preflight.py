"""Drill: gangs of real preflight pods with one node made slow; the gang must name exactly that one.

Each node is a pod's process on a loopback address of its own; the slow one is stopped and continued by signals for most
of the time while it measures. The floor is a part of what a gang of the same size reached just before, undisturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from infra.plan.catalogue import limits
from tests.results import conclude, results_of
from tests.root import ROOT
from trainer.contract import Env, Expectation, HealthReport
from trainer.contract.exits import TERMINATION_LOG_VARIABLE

RESULTS = results_of("drills", "preflight")
PORT = 29531
STOPPED_S, RUNNING_S = 0.4, 0.01
FLOOR = 0.33
"""Of the undisturbed gang's bandwidth: the slow node keeps about a twentieth."""
PLAIN = Expectation(
    profile="drill", cpus=1, memory_gib=0.1, accelerators=0, local_disk_gib=0.01, shared_disk_gib=0.01,
    mounts=("/shared-checkpoints",), clock_skew_s=30.0, all_reduce_mib=16, bus_bandwidth_gb_s=0.0,
    limits=limits(),
)  # fmt: skip


def gang(folder: Path, nodes: int, floor: float, slow: int | None, chance: random.Random) -> list[HealthReport]:
    folder.mkdir()
    file = folder / "expectation.json"
    file.write_text(PLAIN.model_copy(update={"bus_bandwidth_gb_s": floor}).model_dump_json())
    network, pods = f"127.{chance.randint(1, 250)}.{chance.randint(0, 250)}.", []
    for node in range(nodes):
        environment = os.environ | {
            Env.CAMPAIGN: "drill", Env.ATTEMPT: "1", Env.NODE_NAME: f"node-{node}", Env.POD_IP: f"{network}{node + 1}",
            Env.NODE_RANK: str(node), Env.NODE_COUNT: str(nodes), Env.RANKS_PER_NODE: "1",
            Env.RENDEZVOUS: f"{network}1:{PORT}", TERMINATION_LOG_VARIABLE: str(folder / f"message-{node}"),
        }  # fmt: skip
        command = [sys.executable, "-m", "trainer.health", "--expectation", str(file), "--local", str(folder),
                   "--shared", str(folder), "--join-timeout-s", "120"]  # fmt: skip
        log = (folder / f"log-{node}").open("wb")
        pods.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    over = threading.Event()
    brake = threading.Thread(target=_brake, args=(pods[slow].pid if slow is not None else 0, over))
    if slow is not None:
        brake.start()
    try:
        for pod in pods:
            pod.wait(timeout=300)
    finally:
        over.set()
        if slow is not None:
            brake.join()
        for pod in pods:
            pod.kill()
    return [HealthReport.model_validate_json((folder / f"message-{node}").read_text()) for node in range(nodes)]


def _brake(pid: int, over: threading.Event) -> None:
    """Stop and continue the measuring process of a pod, once it has joined the others."""
    joined: list[int] = []
    with suppress(psutil.Error):
        while not joined and not over.wait(0.02):
            joined = [
                worker.pid
                for worker in psutil.Process(pid).children()
                if any(connection.status == psutil.CONN_ESTABLISHED for connection in worker.net_connections())
            ]
    with suppress(ProcessLookupError):
        while joined and not over.is_set():
            os.kill(joined[0], signal.SIGSTOP)
            over.wait(STOPPED_S)
            os.kill(joined[0], signal.SIGCONT)
            time.sleep(RUNNING_S)


def one_case(folder: Path, chance: random.Random) -> dict[str, Any]:
    """Raises AssertionError where the promise is broken."""
    nodes = chance.randint(3, 5)
    slow = chance.randrange(nodes)
    sound = gang(folder / "sound", nodes, 0.0, None, chance)
    whole = sound[0].bus_bandwidth_gb_s or 0.0
    assert all(report.fit for report in sound) and whole > 0, sound
    seen = gang(folder / "slow", nodes, whole * FLOOR, slow, chance)
    named = [report.node for report in seen if any(p.name == "slow_node" and not p.ok for p in report.probes)]
    told = {p.seen for report in seen for p in report.probes if p.name == "slow_node" and p.ok}
    row = {"nodes": nodes, "slow": f"node-{slow}", "named": named, "sound_gb_s": whole,
           "slow_gb_s": seen[0].bus_bandwidth_gb_s, "told": sorted(told)}  # fmt: skip
    assert named == [f"node-{slow}"], row
    assert told == {f"the slow node is node-{slow}"}, row
    return row


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    chance, begun, failed, rows = random.Random(options.seed), time.monotonic(), 0, list[dict[str, Any]]()
    for number in range(options.count):
        started, row = time.monotonic(), dict[str, Any]()
        with tempfile.TemporaryDirectory(prefix="bivouac-preflight-") as folder:
            try:
                row, verdict = one_case(Path(folder), chance), "ok"
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                failed, verdict = failed + 1, f"FAILED {str(error)[:600]}"
        row |= {"case": number, "verdict": verdict, "seconds": round(time.monotonic() - started, 1)}
        rows.append(row)
        named = f"{row.get('nodes')} nodes, slow {row.get('slow')}, named {row.get('named')}"
        print(f"{number:3d} {row['seconds']:6.1f} s  {verdict}  {named}", flush=True)
    return conclude(RESULTS, rows, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())

"""The node's processes of the collective over all nodes, one per GPU, and their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer.contract import Expectation, Probe
from trainer.errors import TrainerError, first_line
from trainer.health.parsers.fabric import NcclLog, parse_nccl
from trainer.network import interface_of, split_endpoint, wait_for_name
from trainer.supervisor.place import Place

_MEASURING_S = 240.0
"""Longest time of the measurements after all have joined: even a bisection takes seconds on a working fabric."""
_POLL_S = 0.1
_LEFT_S = 5.0
"""Wait after a process of the node has failed: the others may be in a collective that never ends."""


@dataclass(frozen=True)
class Collective:
    probes: tuple[Probe, ...]
    bus_bandwidth_gb_s: float | None
    log: NcclLog | None
    """None if NCCL was not used."""
    error: str | None
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Node -> its host's name on the fabric, empty if unknown. Only node 0 has them."""


def run(place: Place, expectation: Expectation, expectation_file: Path, timeout_s: float, work: Path) -> Collective:
    """Run the node's part of the collective. Failures are in `error` and never raised."""
    try:
        interface = interface_of(place.pod_ip)
        wait_for_name(split_endpoint(place.rendezvous)[0], timeout_s)
    except (TrainerError, OSError) as error:
        return Collective((), None, None, first_line(error))
    # A node alone without GPUs measures between two processes: with one there is nothing to add up.
    count = expectation.accelerators or (2 if place.node_count == 1 else 1)
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(work / "nccl-%p.log"),
    }
    outs = [work / f"found-{number}.json" for number in range(count)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "trainer.health.fabric", "--expectation", str(expectation_file), "--local-rank",
             str(number), "--locals", str(count), "--join-timeout-s", str(timeout_s), "--out", str(file)],
            env=environment, stdout=sys.stderr,
        )
        for number, file in enumerate(outs)
    ]  # fmt: skip
    try:
        silent = _wait(workers, outs, time.monotonic() + timeout_s + _MEASURING_S)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    text = "\n".join(path.read_text(errors="replace") for path in sorted(work.glob("nccl-*.log")))
    return _collect(outs, silent, parse_nccl(text) if text else None)


def _wait(workers: list[subprocess.Popen[bytes]], outs: list[Path], deadline: float) -> str | None:
    """Wait until all have written their results; return why one has not."""
    left = None
    while not all(file.exists() for file in outs):
        now = time.monotonic()
        dead = [
            number for number, worker in enumerate(workers) if worker.poll() is not None and not outs[number].exists()
        ]
        has_failed = any(_error(file) for file in outs if file.exists())
        if (dead or has_failed) and left is None:
            left = now + _LEFT_S
        if now > deadline or (left is not None and now > left):
            if dead:
                return f"process {dead[0]} of the node died with {workers[dead[0]].returncode}"
            return None if has_failed else "the collective has not ended in time"
        time.sleep(_POLL_S)
    return None


def _error(file: Path) -> str | None:
    error = json.loads(file.read_text())["error"]
    return None if error is None else str(error)


def _collect(outs: list[Path], silent: str | None, log: NcclLog | None) -> Collective:
    """Return the first process's result, with the error of any process."""
    results = [json.loads(file.read_text()) for file in outs if file.exists()]
    error = next((entry["error"] for entry in results if entry["error"]), None) or silent
    if not outs[0].exists():
        return Collective((), None, log, error or "the first process found nothing")
    first_result = json.loads(outs[0].read_text())
    probes = tuple(Probe.model_validate(entry) for entry in first_result["probes"])
    return Collective(probes, first_result["bus_bandwidth_gb_s"], log, error, first_result["hosts"])

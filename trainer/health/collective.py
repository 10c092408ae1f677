"""The node's processes of the collective over all nodes, one per GPU, and their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import Expectation, Probe
from trainer.errors import TrainerError
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


def run(place: Place, expectation: Expectation, expectation_file: Path, timeout_s: float, work: Path) -> Collective:
    """Run the node's part of the collective. Failures are in `error` and never raised."""
    try:
        interface = interface_of(place.pod_ip)
        wait_for_name(split_endpoint(place.rendezvous)[0], timeout_s)
    except (TrainerError, OSError) as error:
        return Collective((), None, None, str(error).splitlines()[0])
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
             str(number), "--locals", str(count), "--join-timeout-s", str(timeout_s), "--out", str(out)],
            env=environment, stdout=sys.stderr,
        )
        for number, out in enumerate(outs)
    ]  # fmt: skip
    try:
        silent = _wait(workers, outs, time.monotonic() + timeout_s + _MEASURING_S)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    text = "\n".join(path.read_text(errors="replace") for path in sorted(work.glob("nccl-*.log")))
    return _found(outs, silent, parse_nccl(text) if text else None)


def _wait(workers: list[subprocess.Popen[bytes]], outs: list[Path], until: float) -> str | None:
    """Wait until all have written their results; return why one has not."""
    left = None
    while not all(out.exists() for out in outs):
        now = time.monotonic()
        dead = [number for number, one in enumerate(workers) if one.poll() is not None and not outs[number].exists()]
        failed = any(_error(out) for out in outs if out.exists())
        if (dead or failed) and left is None:
            left = now + _LEFT_S
        if now > until or (left is not None and now > left):
            if dead:
                return f"process {dead[0]} of the node died with {workers[dead[0]].returncode}"
            return None if failed else "the collective has not ended in time"
        time.sleep(_POLL_S)
    return None


def _error(out: Path) -> str | None:
    error = json.loads(out.read_text())["error"]
    return None if error is None else str(error)


def _found(outs: list[Path], silent: str | None, log: NcclLog | None) -> Collective:
    """Return the first process's result, with the error of any process."""
    there = [json.loads(out.read_text()) for out in outs if out.exists()]
    error = next((one["error"] for one in there if one["error"]), None) or silent
    if not outs[0].exists():
        return Collective((), None, log, error or "the first process found nothing")
    first = json.loads(outs[0].read_text())
    probes = tuple(Probe.model_validate(one) for one in first["probes"])
    return Collective(probes, first["bus_bandwidth_gb_s"], log, error)

"""The fabric: clocks compared and an all-reduce over all nodes that must be right, and fast enough."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.contract import Expectation, Probe
from trainer.network import split_endpoint
from trainer.place import Place
from trainer.store import open_store

_ROUNDS = 5
_MIB = 2**20


@dataclass(frozen=True)
class Fabric:
    probes: tuple[Probe, ...]
    bus_bandwidth_gb_s: float


def prove(place: Place, expectation: Expectation, timeout_s: float) -> Fabric:
    """One process per node, on its first device, joins and measures; raises torch's error when they do not meet."""
    _join(place, timeout_s)
    try:
        skew = _clock_skew()
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        right, bandwidth = _all_reduce(expectation.all_reduce_mib * _MIB, device)
        return Fabric(tuple(_probes(expectation, skew, right, bandwidth)), bandwidth)
    finally:
        dist.destroy_process_group()


def bus_bandwidth(size_bytes: int, seconds: float, ranks: int) -> float:
    """GB/s on the busiest link of a ring, 2 (n-1)/n x bytes / time (NCCL tests, PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks * size_bytes / seconds / 1e9


def _probes(expectation: Expectation, skew: float, right: bool, bandwidth: float) -> Iterator[Probe]:
    yield Probe(
        name="clock_skew_s",
        ok=abs(skew) <= expectation.clock_skew_s,
        seen=f"{skew:+.3f}",
        wanted=f"within {expectation.clock_skew_s}",
    )
    yield Probe(name="all_reduce", ok=right, seen="the right sum" if right else "a wrong sum", wanted="the right sum")
    single = dist.get_world_size() == 1
    yield Probe(
        name="bus_bandwidth_gb_s",
        ok=single or bandwidth >= expectation.bus_bandwidth_gb_s,
        seen="one node alone" if single else f"{bandwidth:.3f}",
        wanted=f">= {expectation.bus_bandwidth_gb_s}",
    )


def _join(place: Place, timeout_s: float) -> None:
    store = open_store(place, split_endpoint(place.rendezvous), timedelta(seconds=timeout_s))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    dist.init_process_group(
        backend, store=store, rank=place.node_rank, world_size=place.node_count, timeout=timedelta(seconds=timeout_s)
    )


def _clock_skew() -> float:
    """This node's clock minus rank 0's, seconds; the median over rounds of reading both at the same barrier."""
    control = dist.new_group(backend="gloo")
    seen = []
    for _ in range(_ROUNDS):
        dist.barrier(group=control)
        mine = time.time()
        theirs = torch.tensor([mine], dtype=torch.float64)
        dist.broadcast(theirs, src=0, group=control)
        seen.append(mine - float(theirs))
    return statistics.median(seen)


def _all_reduce(size_bytes: int, device: torch.device) -> tuple[bool, float]:
    """Whether every element came out right in every round, and the bus bandwidth of the slowest rank's best round."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    elements = size_bytes // 4
    # Small integers: their sums are exact in float32 and each element differs from its neighbours.
    pattern = torch.arange(elements, dtype=torch.float32, device=device) % 251
    wanted = pattern * ranks + ranks * (ranks - 1) / 2
    best, right = float("inf"), True
    for _ in range(_ROUNDS):
        tensor = pattern + rank
        dist.barrier()
        started = time.monotonic()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.monotonic() - started)
        right = right and torch.equal(tensor, wanted)
    slowest = torch.tensor([best], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return right, bus_bandwidth(size_bytes, float(slowest), ranks)

"""The fabric's check: compare clocks, all-reduce over all GPUs of all nodes, and locate the node that is slow.

`python -m trainer.health.fabric` is the process for one GPU; `collective.py` starts one per GPU of the node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.contract import Expectation, Probe
from trainer.errors import TrainerError, first_line
from trainer.health.bisection import Group, SlowNodes, locate
from trainer.health.clocks import skew_probe
from trainer.health.infiniband.ports import host_of
from trainer.network import split_endpoint
from trainer.place import place_of
from trainer.store import open_store
from trainer.supervisor.place import Place

_ROUNDS = 5
_MIB = 2**20


@dataclass(frozen=True)
class Reading:
    """One group's result: whether every sum was right, and the bus bandwidth in the best round."""

    right: bool
    bus_bandwidth_gb_s: float


def bus_bandwidth(size_bytes: int, seconds: float, ranks: int) -> float:
    """Return GB/s on the busiest link of a ring, 2 (n-1)/n x bytes / time (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks * size_bytes / seconds / 1e9


class Fabric:
    """This process in the gang. All methods but `hosts` are collective: every process calls them in the same order."""

    def __init__(self, place: Place, local_rank: int, locals_: int, timeout: timedelta) -> None:
        """Meet the other processes. Raises `TrainerError` when they do not come."""
        self.place, self.locals, self.timeout = place, locals_, timeout
        self.rank, self.world = place.node_rank * locals_ + local_rank, place.node_count * locals_
        self.device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        seat = place._replace(node_rank=self.rank, node_count=self.world)
        self.store = open_store(seat, split_endpoint(place.rendezvous), timeout)
        self.backend = "nccl" if self.device.type == "cuda" else "gloo"
        self.told = 0
        if local_rank == 0:
            self.store.set(f"host-{place.node_rank}", json.dumps([place.node_name, host_of()]))

    def join(self) -> None:
        """Join the gang. Raises torch's error when the others do not."""
        dist.init_process_group(
            self.backend, store=self.store, rank=self.rank, world_size=self.world, timeout=self.timeout
        )

    def hosts(self) -> dict[str, str]:
        """Return each node's host on the fabric, empty if unknown; nothing but on the first process of all."""
        count = self.place.node_count if self.rank == 0 else 0
        return dict(json.loads(self.store.get(f"host-{node}")) for node in range(count))

    def names(self) -> list[str]:
        """Return the nodes' names by node rank."""
        self.store.set(f"name-{self.place.node_rank}", self.place.node_name)
        return [self.store.get(f"name-{node}").decode() for node in range(self.place.node_count)]

    def clocks(self) -> list[float] | None:
        """Return each node's clock minus node 0's by node rank, in seconds: the median over rounds.

        One process of each node compares; the others return None.
        """
        firsts = list(range(0, self.world, self.locals))
        control = dist.new_group(firsts, backend="gloo", timeout=self.timeout)
        if self.rank not in firsts:
            return None
        rounds = []
        for _ in range(_ROUNDS):
            dist.barrier(group=control)
            node_time = torch.tensor([time.time()], dtype=torch.float64)
            times = [torch.empty_like(node_time) for _ in firsts]
            dist.all_gather(times, node_time, group=control)
            rounds.append([float(peer_time - times[0]) for peer_time in times])
        return [statistics.median(offsets) for offsets in zip(*rounds, strict=True)]

    def measure(self, groups: Sequence[Group], mib: int) -> list[Reading]:
        """All-reduce `mib` MiB in each group of nodes, all at the same time. Return the same list everywhere."""
        self.told += 1
        for number, nodes in enumerate(groups):
            ranks = [node * self.locals + local for node in nodes for local in range(self.locals)]
            # Torch requires that all processes create all groups.
            group = dist.new_group(ranks, timeout=self.timeout)
            if self.rank in ranks:
                reading = self._all_reduce(group, len(ranks), ranks.index(self.rank), mib * _MIB)
                if self.rank == ranks[0]:
                    self.store.set(
                        f"reading-{self.told}-{number}", json.dumps([reading.right, reading.bus_bandwidth_gb_s])
                    )
                dist.destroy_process_group(group)
        keys = [f"reading-{self.told}-{number}" for number in range(len(groups))]
        return [Reading(*json.loads(self.store.get(key))) for key in keys]

    def _all_reduce(self, group: dist.ProcessGroup, ranks: int, index: int, size_bytes: int) -> Reading:
        """Return whether every rank's sums are right, and the bandwidth of the slowest rank's best round."""
        elements = size_bytes // 4
        # Small integers have exact sums in float32, and each element differs from its neighbours.
        pattern = torch.arange(elements, dtype=torch.float32, device=self.device) % 251
        expected = pattern * ranks + ranks * (ranks - 1) / 2
        best, right = float("inf"), True
        for _ in range(_ROUNDS):
            tensor = pattern + index
            dist.barrier(group=group)
            start = time.monotonic()
            dist.all_reduce(tensor, group=group)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.monotonic() - start)
            right = right and torch.equal(tensor, expected)
        worst = torch.tensor([best, 0.0 if right else 1.0], device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
        slowest, wrong = worst.tolist()
        return Reading(wrong == 0.0, bus_bandwidth(size_bytes, slowest, ranks))


def prove(fabric: Fabric, expectation: Expectation) -> Iterator[Probe | float]:
    """Yield this node's probes, and the gang's bus bandwidth (GB/s) as the only number."""
    clocks = fabric.clocks()
    if clocks is not None:
        # All have the same clocks, so either all exchange their names or none does.
        yield skew_probe(fabric.place.node_rank, fabric.names, clocks, expectation.clock_skew_s)
    nodes = tuple(range(fabric.place.node_count))
    (reading,) = fabric.measure([nodes], expectation.all_reduce_mib)
    single, floor = fabric.world == 1, expectation.bus_bandwidth_gb_s
    yield reading.bus_bandwidth_gb_s
    yield Probe(
        name="all_reduce",
        ok=reading.right,
        seen="the right sum" if reading.right else "a wrong sum",
        wanted="the right sum",
    )
    fast = single or reading.bus_bandwidth_gb_s >= floor
    finding = "one process alone" if single else f"{reading.bus_bandwidth_gb_s:.3f}"
    yield Probe(name="bus_bandwidth_gb_s", ok=fast, seen=finding, wanted=f">= {floor}")
    if not (reading.right and fast) and len(nodes) > 2:
        yield _blame(fabric, expectation, nodes)


def _blame(fabric: Fabric, expectation: Expectation, nodes: Group) -> Probe:
    """Probe this node in a gang that is slow or wrong."""
    worst: dict[Group, Reading] = {}

    def sound(groups: Sequence[Group]) -> list[bool]:
        readings = fabric.measure(groups, expectation.all_reduce_mib)
        worst.update(zip(groups, readings, strict=True))
        return [reading.right and reading.bus_bandwidth_gb_s >= expectation.bus_bandwidth_gb_s for reading in readings]

    slow_nodes = locate(nodes, sound)
    return blame_probe(fabric.place.node_rank, fabric.names(), slow_nodes, worst, expectation.bus_bandwidth_gb_s)


def blame_probe(
    me: int, names: Sequence[str], slow_nodes: SlowNodes, readings: dict[Group, Reading], floor_gb_s: float
) -> Probe:
    """Judge whether this node makes the gang slow; `readings`: results of the measured groups."""
    target = f"sound with others, >= {floor_gb_s} GB/s"
    slow = ", ".join(names[node] for node in slow_nodes.slow)
    if me not in slow_nodes.slow:
        finding = f"the slow node is {slow}" if slow else f"no single node is to blame after {slow_nodes.rounds} rounds"
        return Probe(name="slow_node", ok=True, seen=finding, wanted=target)
    pairs = [(group, reading) for group, reading in readings.items() if len(group) == 2 and me in group]
    finding = "; ".join(
        f"{reading.bus_bandwidth_gb_s:.3f} GB/s{'' if reading.right else ' and a wrong sum'} with "
        + ", ".join(names[node] for node in group if node != me)
        for group, reading in pairs
    )
    return Probe(name="slow_node", ok=False, seen=finding, wanted=target, cure="replace this node")


def main() -> int:
    """Join, measure, and write the results as JSON to `--out`; the exit code is always 0."""
    options = _parse()
    expectation = Expectation.model_validate_json(options.expectation.read_bytes())
    report: dict[str, object] = {"probes": [], "bus_bandwidth_gb_s": None, "error": None, "hosts": {}}
    probes = list[Probe]()
    try:
        place = place_of(os.environ)
        fabric = Fabric(place, options.local_rank, options.locals, timedelta(seconds=options.join_timeout_s))
        # Before the gang joins: a fabric on which it cannot is what these names are for.
        report["hosts"] = fabric.hosts()
        fabric.join()
        try:
            for result in prove(fabric, expectation):
                if isinstance(result, Probe):
                    probes.append(result)
                else:
                    report["bus_bandwidth_gb_s"] = result
        finally:
            dist.destroy_process_group()
    except (TrainerError, RuntimeError, OSError) as error:
        report["error"] = first_line(error)[:400]
    report["probes"] = [result.model_dump(mode="json") for result in probes]
    temporary = options.out.with_suffix(".part")
    temporary.write_text(json.dumps(report))
    temporary.rename(options.out)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.health.fabric")
    parser.add_argument("--expectation", type=Path, required=True)
    parser.add_argument("--local-rank", type=int, required=True)
    parser.add_argument("--locals", type=int, required=True)
    parser.add_argument("--join-timeout-s", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads of a failed fabric may not end by themselves.
    os._exit(code)

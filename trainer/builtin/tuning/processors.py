"""A rank's processors: those next to its GPU, and as many threads as its share of them has cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

SYS = Path("/sys")


class ProcessorShare(NamedTuple):
    processors: frozenset[int]
    """Those the rank may run on."""
    threads: int


def take_processors(threads: int) -> int:
    """Bind this rank to the NUMA node of its GPU, and return its number of threads: `threads` where there is no GPU,
    since results of a CPU depend on it."""
    if not torch.cuda.is_available():
        return threads
    local_rank, usable = int(os.environ["LOCAL_RANK"]), frozenset(os.sched_getaffinity(0))
    share = share_of(local_rank, [_address(index) for index in range(torch.cuda.device_count())], usable)
    if share.processors != usable:
        os.sched_setaffinity(0, share.processors)
    return share.threads


def share_of(gpu: int, addresses: Sequence[str], usable: frozenset[int], root: Path = SYS) -> ProcessorShare:
    """Return what a rank with this GPU takes. `addresses`: of all GPUs on the PCI bus, as `0000:53:00.0`.

    All of `usable` where the machine tells of no NUMA nodes, or has none of that node's processors for this pod.
    """
    nodes = [int(_read(root / "bus/pci/devices" / address / "numa_node") or -1) for address in addresses]
    near_processors = _processors(nodes[gpu], root) & usable
    sharing = nodes.count(nodes[gpu]) if near_processors else len(addresses)
    processors = near_processors or usable
    return ProcessorShare(processors, max(1, _cores(processors, root) // sharing))


def _address(index: int) -> str:
    properties: Any = torch.cuda.get_device_properties(index)
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def _processors(node: int, root: Path) -> frozenset[int]:
    return _numbers(_read(root / f"devices/system/node/node{node}/cpulist"))


def _cores(processors: frozenset[int], root: Path) -> int:
    """Return the number of cores; a core's hyperthreads are processors that name each other as siblings."""
    topology = "devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({_numbers(_read(root / topology.format(cpu))) or frozenset({cpu}) for cpu in processors})


def _numbers(ranges: str) -> frozenset[int]:
    """Return the numbers of a list as the kernel writes it, such as `0-23,96-119`."""
    numbers = set[int]()
    for part in filter(None, ranges.split(",")):
        start, _, end = part.partition("-")
        numbers |= set(range(int(start), int(end or start) + 1))
    return frozenset(numbers)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

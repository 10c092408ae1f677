"""A rank takes the processors next to its GPU, of a /sys that is written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.builtin.tuning.processors import ProcessorShare, share_of, take_processors

GPUS = [f"0000:{bus}:00.0" for bus in ("4f", "60", "70", "80", "90", "a0", "b0", "c0")]
"""Of a p5.48xlarge: `topology/p5.48xl-topo.xml` of github.com/aws/aws-ofi-nccl, which tells of no NUMA nodes."""
NODES = {0: "0-47,96-143", 1: "48-95,144-191"}
"""Synthetic for a p5: as `nvidia-smi topo -m` prints them for another machine of 8 H100, whose GPUs 0 to 3 are on node
0 (github.com/HazyResearch/ThunderKittens, issue 167). A p5 has as many processors, 192."""
ALL = frozenset(range(192))
FIRST = frozenset(range(48)) | frozenset(range(96, 144))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for index, address in enumerate(GPUS):
        write(tmp_path / "bus/pci/devices" / address / "numa_node", str(index // 4))
    for node, processors in NODES.items():
        write(tmp_path / f"devices/system/node/node{node}/cpulist", processors)
    for core in range(96):
        for processor in (core, core + 96):
            folder = tmp_path / f"devices/system/cpu/cpu{processor}/topology"
            write(folder / "thread_siblings_list", f"{core},{core + 96}")
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(content + "\n")


def test_each_rank_takes_its_gpus_node_and_a_quarter_of_its_cores_as_threads(root: Path) -> None:
    found = [share_of(gpu, GPUS, ALL, root) for gpu in range(8)]
    assert found[:4] == [ProcessorShare(FIRST, 12)] * 4
    assert found[4:] == [ProcessorShare(ALL - FIRST, 12)] * 4


def test_a_pod_that_may_use_some_processors_alone_stays_on_them(root: Path) -> None:
    assert share_of(0, GPUS, frozenset(range(24)), root) == ProcessorShare(frozenset(range(24)), 6)
    far = frozenset(range(48, 56))
    assert share_of(0, GPUS, far, root) == ProcessorShare(far, 1)


def test_without_numa_nodes_a_rank_stays_where_it_may_run(root: Path) -> None:
    for address in GPUS:
        (root / "bus/pci/devices" / address / "numa_node").write_text("-1\n")
    assert share_of(3, GPUS, ALL, root) == ProcessorShare(ALL, 12)


def test_a_machine_that_tells_nothing_counts_every_processor_as_a_core(tmp_path: Path) -> None:
    assert share_of(1, GPUS[:2], frozenset(range(8)), tmp_path) == ProcessorShare(frozenset(range(8)), 4)


def test_without_a_gpu_the_threads_are_the_configurations() -> None:
    assert take_processors(3) == 3

"""The sums of a gang: equal on all ranks, and between nodes only the first rank of each speaks."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing

from trainer.builtin.gang import Gang


def rank_of(rank: int, port: int, per_node: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"LOCAL_RANK": str(rank % per_node), "LOCAL_WORLD_SIZE": str(per_node)}
    dist.init_process_group("gloo", rank=rank, world_size=4)
    gang = Gang.join(timedelta(seconds=60))
    sums = [gang.sums([float(rank), 10.0**rank, float("nan") if rank == 2 else 0.0]) for _ in range(3)][-1]
    first = gang.of_first(torch.tensor([rank + 5])).item()
    held = gang.of_holder(b"of rank 2" if rank == 2 else None, 2) + gang.of_holder(b"" if rank == 1 else None, 1)
    crosses = gang.tree is None or gang.tree.firsts is not None
    (folder / str(rank)).write_text(f"{sums} {first} {held!r} {crosses}")


@pytest.mark.nightly
@pytest.mark.parametrize(("per_node", "crossing"), [(1, 4), (2, 2), (4, 4)])
def test_sums_are_equal_on_all_ranks_and_one_of_each_node_crosses(per_node: int, crossing: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.spawn(rank_of, (port, per_node, tmp_path), nprocs=4)
    said = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert {line.rpartition(" ")[0] for line in said} == {"[6.0, 1111.0, nan] 5 b'of rank 2'"}
    assert sum(line.endswith("True") for line in said) == crossing

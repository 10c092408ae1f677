"""All ranks of an attempt, and the small exchanges by which they agree; always over gloo, beside the training's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_DISKS_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True)
class Gang:
    rank: int
    local_rank: int
    world_size: int
    group: dist.ProcessGroup
    beside: dist.ProcessGroup | None = None
    """Of the background threads, whose exchanges wait for disks and must not meet those of the loop."""

    @classmethod
    def join(cls, timeout: timedelta) -> Gang:
        """Needs an initialised process group."""
        group, beside = (dist.new_group(backend="gloo", timeout=each) for each in (timeout, _DISKS_TIMEOUT))
        return cls(dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size(), group, beside)

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def first_on_node(self) -> bool:
        return self.local_rank == 0

    def sums(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return [float(value) for value in tensor]

    def all_agree(self, mine: bool) -> bool:
        return self.sums([float(mine)])[0] == self.world_size

    def gather(self, mine: Any) -> list[Any]:
        """Everyone's value, by rank; among ranks that trust each other only, since it travels as a pickle."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, mine, group=self.group)
        return values

    def gather_beside(self, mine: Any) -> list[Any]:
        """As `gather`, for the one background thread that exchanges anything; waits for the slowest rank's disk."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, mine, group=self.beside)
        return values

    def barrier(self) -> None:
        self.sums([0.0])

"""All ranks of an attempt and their small exchanges, over gloo and apart from the training's collectives."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from trainer.errors import PeerLost
from trainer.events import emit

_DISKS_TIMEOUT = timedelta(hours=1)
_TELL_S = 0.25
"""Time between two exchanges of ranks that wait for each other."""
_FIRST_TOLD_S = 5.0
"""Age at which a wait is first reported; then each time its age has doubled."""
T = TypeVar("T")


@dataclass(frozen=True)
class RankTree:
    """Groups for sums over a node's ranks and over the nodes' first ranks."""

    first: int
    """First rank of this node."""
    node: dist.ProcessGroup
    firsts: dist.ProcessGroup | None
    """Only the first rank of a node has it."""

    @classmethod
    def grow(cls, rank: int, ranks: int, per_node: int, timeout: timedelta) -> RankTree | None:
        if per_node == 1 or per_node >= ranks or ranks % per_node:
            return None
        first_rank = rank - rank % per_node
        firsts = dist.new_group(range(0, ranks, per_node), backend="gloo", timeout=timeout)
        # Every rank takes part in making every group, in one order.
        node_groups = [
            dist.new_group(range(start, start + per_node), backend="gloo", timeout=timeout)
            for start in range(0, ranks, per_node)
        ]
        return cls(first_rank, node_groups[first_rank // per_node], firsts if rank == first_rank else None)

    def sum(self, tensor: torch.Tensor) -> None:
        dist.reduce(tensor, dst=self.first, group=self.node)
        if self.firsts is not None:
            dist.all_reduce(tensor, group=self.firsts)
        dist.broadcast(tensor, src=self.first, group=self.node)


@dataclass(frozen=True)
class Gang:
    rank: int
    local_rank: int
    world_size: int
    group: dist.ProcessGroup
    beside: dist.ProcessGroup | None = None
    """Group for the background threads: their exchanges wait for disks and must not mix with the loop's."""
    tree: RankTree | None = None
    """None where all ranks are on one node, or each on its own."""
    local_size: int = 1
    """Ranks of this node."""
    timeout: timedelta = timedelta(minutes=10)
    """Timeout of a step's exchanges."""

    @classmethod
    def join(cls, timeout: timedelta, disks: timedelta = _DISKS_TIMEOUT) -> Gang:
        """Return the gang of the initialised process group. `disks`: longest wait for another rank's disk."""
        group, disk_group = (dist.new_group(backend="gloo", timeout=limit) for limit in (timeout, disks))
        rank, ranks, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        tree = RankTree.grow(rank, ranks, local_size, timeout)
        return cls(rank, local, ranks, group, disk_group, tree, local_size, timeout)

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def first_on_node(self) -> bool:
        return self.local_rank == 0

    def wait_up_to(self, timeout: timedelta) -> None:
        """Change the timeout of all exchanges that begin from now on, in every group of this process (also DeepSpeed's)
        but `beside`.

        Public are only the timeouts of `init_process_group` and `new_group`; torch (2.13) has no public function that
        changes one. This is the function that it names to users for that, in `distributed_c10d`.
        """
        for group in list(dist.distributed_c10d._world.pg_map):
            if group is not self.beside:
                dist.distributed_c10d._set_pg_timeout(timeout, group)

    def sums(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks: first over those of a node, so that one rank of each crosses the network."""
        tensor = torch.tensor(values, dtype=torch.float64)
        if self.tree is None:
            dist.all_reduce(tensor, group=self.group)
        else:
            self.tree.sum(tensor)
        return [float(value) for value in tensor.tolist()]

    def all_agree(self, vote: bool) -> bool:
        return self.sums([float(vote)])[0] == self.world_size

    def together(self, title: str, work: Callable[[], T]) -> T:
        """Run `work`, wait until it has ended on every rank, and return this rank's value.

        `work` may wait for disks or nodes as long as it likes. Meanwhile the ranks exchange signs of life: one that is
        gone or frozen ends the others within the timeout of a step. Raises `work`'s error, or `PeerLost` if it failed
        on another rank. `work` must not exchange anything itself. A long wait is reported with `title`.
        """
        task, start_s, told_s = _Task(work), time.monotonic(), _FIRST_TOLD_S
        while True:
            has_ended = task.ended.wait(_TELL_S)
            ended_ranks, failed_ranks = self.sums([float(has_ended), float(has_ended and task.error is not None)])
            if failed_ranks:
                own_error = task.error if has_ended else None
                raise own_error or PeerLost(f"another rank failed: {title}", f"{int(failed_ranks)} ranks")
            if ended_ranks == self.world_size:
                return task.value
            if self.first and (waited_s := time.monotonic() - start_s) > told_s:
                emit("ranks_wait", what=title, done=int(ended_ranks), of=self.world_size, seconds=round(waited_s, 1))
                told_s = 2 * waited_s

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Let the collectives in the block, DeepSpeed's as well, wait as long as disks may take."""
        self.wait_up_to(_DISKS_TIMEOUT)
        try:
            yield
        finally:
            self.wait_up_to(self.timeout)

    def gather(self, own_value: Any) -> list[Any]:
        """Return every rank's value, by rank. The values are pickled: ranks must trust each other."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, own_value, group=self.group)
        return values

    def gather_beside(self, own_value: Any) -> list[Any]:
        """Like `gather`, for the one background thread with exchanges; wait for the slowest rank's disk."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, own_value, group=self.beside)
        return values

    def of_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return rank 0's tensor; all ranks give one of its shape and type."""
        shared = tensor.clone()
        dist.broadcast(shared, src=0, group=self.group)
        return shared

    def of_holder(self, content: bytes | None, holder: int) -> bytes:
        """Return the bytes that rank `holder` gives."""
        size = torch.tensor([len(content or b"")])
        dist.broadcast(size, src=holder, group=self.group)
        payload = bytearray(content or bytes(int(size.item())))
        if payload:
            dist.broadcast(torch.frombuffer(payload, dtype=torch.uint8), src=holder, group=self.group)
        return bytes(payload)

    def barrier(self) -> None:
        self.sums([0.0])


class _Task(Generic[T]):
    """Work in a daemon thread: the process does not wait for it when it ends."""

    value: T

    def __init__(self, work: Callable[[], T]) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        threading.Thread(target=self._run, args=(work,), name="together", daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self.value = work()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

"""Shards between nodes: each node serves its own over its agent's HTTP and keeps those of its predecessor.

The loss of one node then costs no trip to the shared tier. What is fetched counts only with the digest that the
manifest names; who may fetch says so with a token that the ranks of an attempt exchange among themselves.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainer.checkpoint.fetching import fetch_into
from trainer.checkpoint.shard_server import PREFIX, TOKEN_VARIABLE
from trainer.checkpoint.tiers import Tier
from trainer.contract import AGENT_PORT, Env, Manifest, Shard, step_folder
from trainer.errors import StorageError
from trainer.gang import Gang

_CHUNK_BYTES = 2**20
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ShardAddress:
    """Where a node's shards can be fetched."""

    node: int
    ranks: tuple[int, ...]
    address: str
    port: int
    token: str

    def fetch(self, step: int, shard: Shard, target: Path, resumable: bool = True) -> int:
        """Bring a shard here, durable, checked against its digest; returns the bytes that came now, less than its size
        where an earlier fetch was cut. Raises `OSError` or `StorageError`; see `fetching`."""
        return fetch_into(target, shard, partial(self._give, f"{PREFIX}{step_folder(step)}/{shard.file}"), resumable)

    def _give(self, path: str, start: int, end: int, write: Callable[[bytes, int], object]) -> None:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=_TIMEOUT_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Range": f"bytes={start}-{end - 1}"}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            if response.status != 206:
                raise StorageError("a neighbour does not give a shard", f"{self.address} {path}: {response.status}")
            while chunk := response.read(_CHUNK_BYTES):
                write(chunk, start)
                start += len(chunk)
            if start != end:
                raise OSError(f"{self.address} {path}: ended {end - start} bytes too early")
        except http.client.HTTPException as error:
            raise OSError(f"{self.address}: {error!r}") from error
        finally:
            connection.close()


@dataclass(frozen=True)
class Neighbours:
    """The doors of all nodes, by node; empty where there is one node, or no agent."""

    node: int
    doors: tuple[ShardAddress, ...] = ()

    @property
    def predecessor(self) -> ShardAddress | None:
        return self.doors[self.node - 1] if len(self.doors) > 1 else None

    def holding(self, manifest: Manifest, shard: Shard) -> tuple[ShardAddress, ...]:
        """Doors to try for a shard: the node that wrote it, then its successor, then the others; never one's own."""
        writer = shard.rank * len(self.doors) // max(1, manifest.world_size)
        order = [(writer + further) % len(self.doors) for further in range(len(self.doors))]
        return tuple(self.doors[node] for node in order if node != self.node)


def meet(gang: Gang) -> Neighbours:
    """Exchange doors over the gang; a rank without an agent (a bench, a drill of one process) has none."""
    token, address = os.environ.get(TOKEN_VARIABLE, ""), os.environ.get(Env.POD_IP, "")
    node = int(os.environ.get(Env.NODE_RANK, "0"))
    return neighbours_of(gang, node, (address, AGENT_PORT, token) if token and address else None)


def neighbours_of(gang: Gang, node: int, mine: tuple[str, int, str] | None) -> Neighbours:
    everyone: list[tuple[int, tuple[str, int, str] | None]] = gang.gather((node, mine))
    if any(door is None for _, door in everyone):
        return Neighbours(node)
    doors: dict[int, ShardAddress] = {}
    for number, door in everyone:
        assert door is not None
        ranks = tuple(rank for rank, (other, _) in enumerate(everyone) if other == number)
        doors[number] = ShardAddress(number, ranks, *door)
    return Neighbours(node, tuple(doors[number] for number in sorted(doors)))


def keep_for(door: ShardAddress, manifest: Manifest, tier: Tier) -> int:
    """Fetch what only `door`'s node holds of a committed step; returns the bytes that came."""
    came = 0
    for shard in manifest.shards:
        target = tier.folder(manifest.step) / shard.file
        if shard.rank in door.ranks and not target.exists():
            came += door.fetch(manifest.step, shard, target, resumable=False)
    return came

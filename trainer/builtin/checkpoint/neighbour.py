"""Shards between nodes: each node's agent serves its shards over HTTP, and each node keeps its predecessor's.

The loss of one node then needs no read of the shared tier. A fetched shard must have the digest in the manifest. The
ranks of an attempt exchange tokens that allow them to fetch.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainer.builtin.checkpoint.fetching import fetch_into
from trainer.builtin.checkpoint.tiers import Tier
from trainer.builtin.gang import Gang
from trainer.builtin.serving import PREFIX, TOKEN_VARIABLE
from trainer.contract import AGENT_PORT, Env, Manifest, Shard, step_folder
from trainer.errors import StorageError

_CHUNK_BYTES = 2**20
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ShardAddress:
    """Address and token of a node's shard server."""

    node: int
    ranks: tuple[int, ...]
    address: str
    port: int
    token: str

    def fetch(self, step: int, shard: Shard, target: Path, resumable: bool = True) -> int:
        """Fetch a shard durably and check its digest. Return the bytes of this fetch, fewer than the shard's after a
        resume. Raises `OSError` or `StorageError`; see `fetching`."""
        return fetch_into(target, shard, partial(self._give, f"{PREFIX}{step_folder(step)}/{shard.file}"), resumable)

    def _give(self, path: str, start: int, end: int, write: Callable[[bytes, int], object]) -> None:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=_TIMEOUT_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Range": f"bytes={start}-{end - 1}"}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            if response.status != 206:
                raise StorageError("a neighbour refuses a shard", f"{self.address} {path}: {response.status}")
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
    """The shard servers of all nodes, by node; empty without an agent."""

    node: int
    servers: tuple[ShardAddress, ...] = ()

    @property
    def predecessor(self) -> ShardAddress | None:
        return self.servers[self.node - 1] if len(self.servers) > 1 else None

    def holding(self, manifest: Manifest, shard: Shard) -> tuple[ShardAddress, ...]:
        """Return the servers to try for a shard: its writer, the writer's successor, then the others; never our own."""
        writer = shard.rank * len(self.servers) // max(1, manifest.world_size)
        order = [(writer + further) % len(self.servers) for further in range(len(self.servers))]
        return tuple(self.servers[node] for node in order if node != self.node)


def meet(gang: Gang) -> Neighbours:
    """Exchange the servers' addresses over the gang; a rank without an agent (a benchmark, a drill) has none."""
    token, address = os.environ.get(TOKEN_VARIABLE, ""), os.environ.get(Env.POD_IP, "")
    node = int(os.environ.get(Env.NODE_RANK, "0"))
    return neighbours_of(gang, node, (address, AGENT_PORT, token) if token and address else None)


def neighbours_of(gang: Gang, node: int, own_address: tuple[str, int, str] | None) -> Neighbours:
    everyone: list[tuple[int, tuple[str, int, str] | None]] = gang.gather((node, own_address))
    if any(server is None for _, server in everyone):
        return Neighbours(node)
    servers: dict[int, ShardAddress] = {}
    for number, server in everyone:
        assert server is not None
        ranks = tuple(rank for rank, (node_of_rank, _) in enumerate(everyone) if node_of_rank == number)
        servers[number] = ShardAddress(number, ranks, *server)
    return Neighbours(node, tuple(servers[number] for number in sorted(servers)))


def keep_for(server: ShardAddress, manifest: Manifest, tier: Tier, reads_back: bool = True) -> int:
    """Fetch the shards of a committed step that only `server`'s node holds; frozen weights once, and links of that file
    later, with `reads_back` after its digest. Return the fetched bytes."""
    fetched_bytes = 0
    for shard in manifest.shards:
        target = tier.folder(manifest.step) / shard.file
        is_due = shard.rank in server.ranks and not target.exists()
        if is_due and not tier.link_frozen(shard, manifest.step, reads_back):
            fetched_bytes += server.fetch(manifest.step, shard, target, resumable=False)
    return fetched_bytes

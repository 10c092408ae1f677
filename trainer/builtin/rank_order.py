"""The order of an attempt's nodes: each gets the ranks whose shards its own disk holds, so that one lost node costs one
node's traffic. Ranks that nobody holds go by the network: next to the node of the rank before.

A pod's index only says in which order the scheduler placed the pods.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed import PrefixStore, Store

from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import TOPOLOGY_NAME, Manifest, attempt_folder
from trainer.contract.frozen import Frozen
from trainer.supervisor.place import Place


class Standing(Frozen, extra="ignore"):
    """What one pod tells about its node."""

    held: dict[int, dict[int, int]] = {}
    """Step -> node rank in the attempt that wrote it -> bytes of that node's shards on this disk."""
    network: tuple[str, ...] = ()
    """The node's place in the network, from the top layer down; empty if unknown."""


def agree(store: Store, place: Place, mine: Standing) -> int:
    """Return this node's rank. Pod 0 decides once all have told; the others wait as long as the store does."""
    told = PrefixStore("rank-order", store)
    told.set(str(place.node_rank), mine.model_dump_json())
    if place.node_rank == 0:
        everyone = [Standing.model_validate_json(told.get(str(index))) for index in range(place.node_count)]
        told.set("order", json.dumps(order(everyone)))
    ranks: list[int] = json.loads(told.get("order"))
    return ranks[place.node_rank]


def standing(local: Tier, place: Place, config: Path) -> Standing:
    """Return this node's standing. A disk or a file that cannot be read tells nothing; the restore then says why."""
    held, network = dict[int, dict[int, int]](), dict[str, list[str]]()
    with contextlib.suppress(OSError):
        for claim in local.claims():
            if claim.manifest is not None and claim.manifest.world_size == place.node_count * place.ranks_per_node:
                held[claim.step] = _held(local, claim.manifest, place.ranks_per_node)
    with contextlib.suppress(OSError, ValueError):
        network = json.loads(config.with_name(TOPOLOGY_NAME).read_bytes())
    return Standing(held=held, network=tuple(network.get(place.node_name, ())))


def order(pods: Sequence[Standing]) -> list[int]:
    """Return the node rank of each pod, by the pod's index."""
    steps = sorted({step for pod in pods for step in pod.held}, reverse=True)
    claims = [
        (_worth(pod.held, rank, steps, len(pods)), index == rank, -index, rank)
        for index, pod in enumerate(pods)
        for rank in {rank for held in pod.held.values() for rank in held if rank < len(pods)}
    ]
    pod_of: dict[int, int] = {}
    free = sorted(range(len(pods)), key=lambda index: (pods[index].network, index))
    for _, _, negative, rank in sorted(claims, reverse=True):
        if rank not in pod_of and -negative in free:
            pod_of[rank] = -negative
            free.remove(-negative)
    for rank in range(len(pods)):
        if rank not in pod_of:
            beside = [pods[pod_of[other]].network for other in _neighbours(rank, len(pods)) if other in pod_of]
            # Of equally near pods `max` takes the first.
            pod_of[rank] = max(free, key=lambda index: [_shared(pods[index].network, one) for one in beside])
            free.remove(pod_of[rank])
    ranks = {index: rank for rank, index in pod_of.items()}
    return [ranks[index] for index in range(len(pods))]


def _worth(held: Mapping[int, Mapping[int, int]], rank: int, steps: Sequence[int], nodes: int) -> list[int]:
    """Return for each step, newest first, the bytes that the pod need not fetch as this rank: its own shards, and with
    them those that it keeps for the rank before."""
    of_steps = [held.get(step, {}) for step in steps]
    return [of[rank] + of.get((rank - 1) % nodes, 0) if of.get(rank) else 0 for of in of_steps]


def _neighbours(rank: int, nodes: int) -> tuple[int, int]:
    return (rank - 1) % nodes, (rank + 1) % nodes


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many layers of the network two nodes share, from the top."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _held(local: Tier, manifest: Manifest, ranks_per_node: int) -> dict[int, int]:
    """Return node rank -> bytes, by the sizes of the files."""
    folder, held = attempt_folder(manifest.attempt), Counter[int]()
    with os.scandir(local.folder(manifest.step) / folder) as found:
        sizes = {f"{folder}/{one.name}": one.stat(follow_symlinks=False).st_size for one in found}
    for shard in manifest.shards:
        if not shard.common and sizes.get(shard.file) == shard.size_bytes:
            held[shard.rank // ranks_per_node] += shard.size_bytes
    return dict(held)

"""The order of an attempt's nodes: each gets the ranks whose shards its own disk holds, so that one lost node costs one
node's traffic. Ranks that nobody holds go by the network: next to the node of the rank before. The network is EC2's,
which the steward writes into a file, or else InfiniBand's, which pod 0 asks.

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
from trainer.errors import TrainerError
from trainer.health.infiniband.gang import network_places
from trainer.health.infiniband.ports import INFINIBAND, SYSFS, read_ports
from trainer.health.looking import Look
from trainer.supervisor.place import Place


class Standing(Frozen, extra="ignore"):
    """What one pod tells about its node."""

    held: dict[int, dict[int, int]] = {}
    """Step -> node rank in the attempt that wrote it -> bytes of that node's shards on this disk."""
    network: tuple[str, ...] = ()
    """The node's place in the network, from the top layer down; empty if unknown."""
    node: str = ""


def agree(store: Store, place: Place, own_standing: Standing, look: Look, sysfs: Path = SYSFS) -> int:
    """Return this node's rank. Pod 0 decides once all have told; the others wait as long as the store does."""
    messages = PrefixStore("rank-order", store)
    messages.set(str(place.node_rank), own_standing.model_dump_json())
    if place.node_rank == 0:
        everyone = [Standing.model_validate_json(messages.get(str(index))) for index in range(place.node_count)]
        messages.set("order", json.dumps(order(with_network(everyone, look, sysfs))))
    ranks: list[int] = json.loads(messages.get("order"))
    return ranks[place.node_rank]


def with_network(pods: Sequence[Standing], look: Look, sysfs: Path = SYSFS) -> list[Standing]:
    """Return the pods with their places in InfiniBand's tree where nobody knows any place and this node is on it."""
    if any(pod.network for pod in pods) or not any(port.layer == INFINIBAND for port in read_ports(look, sysfs)):
        return list(pods)
    places = network_places(look, [pod.node for pod in pods if pod.node])
    return [pod.model_copy(update={"network": places.get(pod.node, ())}) for pod in pods]


def standing(local: Tier, place: Place, config: Path) -> Standing:
    """Return this node's standing. A disk or a file that cannot be read tells nothing; the restore then says why."""
    bytes_by_step, network = dict[int, dict[int, int]](), dict[str, list[str]]()
    with contextlib.suppress(OSError, TrainerError):
        for claim in local.claims():
            if claim.manifest is not None and claim.manifest.world_size == place.node_count * place.ranks_per_node:
                bytes_by_step[claim.step] = _bytes_by_node(local, claim.manifest, place.ranks_per_node)
    with contextlib.suppress(OSError, ValueError):
        network = json.loads(config.with_name(TOPOLOGY_NAME).read_bytes())
    return Standing(held=bytes_by_step, network=tuple(network.get(place.node_name, ())), node=place.node_name)


def order(pods: Sequence[Standing]) -> list[int]:
    """Return the node rank of each pod, by the pod's index."""
    steps = sorted({step for pod in pods for step in pod.held}, reverse=True)
    claims = [
        (_worth(pod.held, rank, steps, len(pods)), index == rank, -index, rank)
        for index, pod in enumerate(pods)
        for rank in {rank for bytes_by_rank in pod.held.values() for rank in bytes_by_rank if rank < len(pods)}
    ]
    pod_of: dict[int, int] = {}
    free = sorted(range(len(pods)), key=lambda index: (pods[index].network, index))
    for _, _, negative, rank in sorted(claims, reverse=True):
        if rank not in pod_of and -negative in free:
            pod_of[rank] = -negative
            free.remove(-negative)
    for rank in range(len(pods)):
        if rank not in pod_of:
            networks = [pods[pod_of[peer]].network for peer in _neighbours(rank, len(pods)) if peer in pod_of]
            # Of equally near pods `max` takes the first.
            pod_of[rank] = max(
                free, key=lambda index: [_shared_layers(pods[index].network, network) for network in networks]
            )
            free.remove(pod_of[rank])
    ranks = {index: rank for rank, index in pod_of.items()}
    return [ranks[index] for index in range(len(pods))]


def _worth(bytes_by_step: Mapping[int, Mapping[int, int]], rank: int, steps: Sequence[int], nodes: int) -> list[int]:
    """Return for each step, newest first, the bytes that the pod need not fetch as this rank: its own shards, and with
    them those that it keeps for the rank before."""
    of_steps = [bytes_by_step.get(step, {}) for step in steps]
    return [sizes[rank] + sizes.get((rank - 1) % nodes, 0) if sizes.get(rank) else 0 for sizes in of_steps]


def _neighbours(rank: int, nodes: int) -> tuple[int, int]:
    return (rank - 1) % nodes, (rank + 1) % nodes


def _shared_layers(left: Sequence[str], right: Sequence[str]) -> int:
    """Return how many layers of the network two nodes share, from the top."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _bytes_by_node(local: Tier, manifest: Manifest, ranks_per_node: int) -> dict[int, int]:
    """Return node rank -> bytes, by the sizes of the files."""
    folder, sizes_by_node = attempt_folder(manifest.attempt), Counter[int]()
    with os.scandir(local.folder(manifest.step) / folder) as entries:
        sizes = {f"{folder}/{entry.name}": entry.stat(follow_symlinks=False).st_size for entry in entries}
    for shard in manifest.shards:
        if not shard.common and sizes.get(shard.file) == shard.size_bytes:
            sizes_by_node[shard.rank // ranks_per_node] += shard.size_bytes
    return dict(sizes_by_node)

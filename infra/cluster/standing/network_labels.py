"""A node's place in the network of an existing cluster, by the labels that topograph or EKS writes.

NVIDIA/topograph writes `fabric.topograph.run/tier-N`, 0 the nearest switch (its page of node labels, at commit
e2b6250); before its commit 71314a4 it wrote leaf, spine and core below `network.topology.nvidia.com`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from infra.cluster.nodes import NETWORK_LABELS

_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d+)")
_EARLIER = tuple(f"network.topology.nvidia.com/{layer}" for layer in ("core", "spine", "leaf"))


def network_place(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the node's switches from the top layer down; empty where no label names one."""
    tiers = {int(match[1]): labels[match[0]] for match in map(_TIER.fullmatch, labels) if match}
    if tiers:
        return tuple(tiers[tier] for tier in sorted(tiers, reverse=True))
    for family in (_EARLIER, NETWORK_LABELS):
        if place := tuple(labels[name] for name in family if name in labels):
            return place
    return ()

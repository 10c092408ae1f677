"""The fabric as a tree, by `ibnetdiscover`: which node is below which switches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

SWITCH, ADAPTER = "Switch", "Ca"
_ELEMENT = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s+#\s+"([^"]*)"')
_CABLE = re.compile(r'^\[(\d+)\](?:\[ext[^]]*\])?\S*\s+"([^"]+)"\[(\d+)\]')
_DEVICE = re.compile(r"(?:mlx\d+|hfi\d+|qib\d+|ibp?\w+|rocep?\w+|HCA-|bnxt_re)\S*\d")
_SWITCH_INSIDE = "Aggregation Node"
"""A switch's own end point for SHARP looks like an adapter of a host."""


@dataclass(frozen=True)
class Element:
    kind: str
    name: str
    """Its description."""


@dataclass(frozen=True)
class FabricTree:
    elements: Mapping[str, Element]
    """By their identities: `S-` or `H-` and the GUID."""
    cables: Mapping[tuple[str, int], str]
    """(element, port) -> element; each cable is there from both ends."""

    @cached_property
    def hosts(self) -> dict[str, dict[str, str]]:
        """Return host -> adapter -> switch, for each adapter that has a cable to one."""
        hosts: dict[str, dict[str, str]] = defaultdict(dict)
        for (identity, _), peer in sorted(self.cables.items()):
            element = self.elements[identity]
            host, device = split_description(element.name)
            if host and element.kind == ADAPTER and self.elements[peer].kind == SWITCH:
                hosts[host][device] = peer
        return dict(hosts)

    @cached_property
    def nameless(self) -> tuple[str, ...]:
        """Return the descriptions of adapters that name no host."""
        adapters = (element.name for element in self.elements.values() if element.kind == ADAPTER)
        return tuple(name for name in adapters if _SWITCH_INSIDE not in name and not split_description(name)[0])

    def spines(self, nodes: Collection[str]) -> dict[str, list[str]]:
        """Return each leaf of the nodes with the switches above it, one for each cable."""
        leaves = {switch for node in nodes for switch in self.hosts.get(node, {}).values()}
        spines: dict[str, list[str]] = {leaf: [] for leaf in sorted(leaves)}
        for (identity, _), peer in self.cables.items():
            if identity in leaves and self.elements[peer].kind == SWITCH and peer not in leaves:
                spines[identity].append(peer)
        return spines

    def places(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return each node's place from the top down: the leaves that spines connect without a core, by one of them,
        and the leaf of the node's first adapter."""
        group_by_leaf: dict[str, str] = {}
        spines = self.spines(nodes)
        for start in spines:
            front = {start} - group_by_leaf.keys()
            while front:
                group_by_leaf |= dict.fromkeys(front, start)
                reachable = {spine for leaf in front for spine in spines[leaf]}
                front = {leaf for leaf in spines if not reachable.isdisjoint(spines[leaf])} - group_by_leaf.keys()
        leaves = {node: self.hosts[node][min(self.hosts[node])] for node in nodes if node in self.hosts}
        return {node: (group_by_leaf[leaf], leaf) for node, leaf in leaves.items()}

    def name(self, identity: str) -> str:
        """Return a switch's description and GUID: unmanaged switches all have the same description."""
        return f"{self.elements[identity].name} (0x{identity.rpartition('-')[2]})"


def split_description(description: str) -> tuple[str, str]:
    """Return the host and the adapter of a description as rdma-ndd makes it: `node-7 mlx5_0`. Both are empty where it
    is the firmware's, such as `MT4129 ConnectX7   Mellanox Technologies`."""
    host, _, device = description.partition(" ")
    return (host, device) if _DEVICE.fullmatch(device) else ("", "")


def parse_topology(text: str) -> FabricTree:
    """Parse `ibnetdiscover` (infiniband-diags). A cable to an element that it does not describe is left out."""
    elements: dict[str, Element] = {}
    cables: dict[tuple[str, int], str] = {}
    identity = ""
    for line in text.splitlines():
        if match := _ELEMENT.match(line):
            identity = match[2]
            elements[identity] = Element(match[1], match[3])
        elif identity and (match := _CABLE.match(line)):
            cables[identity, int(match[1])] = match[2]
    return FabricTree(elements, {end: peer for end, peer in cables.items() if peer in elements})

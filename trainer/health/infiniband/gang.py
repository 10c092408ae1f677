"""The fabric between the nodes of a gang: what a launch must not start on, each with its place and its cure.

One node looks, by `ibnetdiscover` and `iblinkinfo`: both walk the whole fabric, and 512 nodes at once would burden it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from trainer.contract import Probe, Verdict
from trainer.health.infiniband.findings import CABLE_CURE, MANAGER_CURE, RIGHTS_CURE, finding, several
from trainer.health.infiniband.links import INITIALIZE, Cable, parse_links
from trainer.health.infiniband.tree import FabricTree, parse_topology, split_description
from trainer.health.looking import CannotLook, Look, blind, text_of

_PATIENCE_S = 120.0
_ORDER_PATIENCE_S = 30.0
"""For a look that only orders ranks, while all other pods wait."""
_LINKS_TARGET = "every link as wide and as fast as both its ends support"
_NOBODYS = "left to the all-reduce, since it is no node's"
_MOST_BLAMED = 16
"""Names that fit into a pod's termination message of 4096 bytes, beside the other probes."""


def gang_probes(look: Look, nodes: Collection[str], one_leaf: bool = False, adapters: int = 0) -> Iterator[Probe]:
    """Judge the fabric between these nodes, named by their hosts' names, which the probes also blame.

    `one_leaf`: each adapter of all nodes must be below one leaf. `adapters`: of each node; 0 for as many as most nodes
    have.
    """
    try:
        tree = read_tree(look)
        text = text_of(look("iblinkinfo", "-l", timeout_s=_PATIENCE_S), "iblinkinfo")
    except CannotLook as error:
        yield blind("infiniband_fabric", error, "a look at the fabric", RIGHTS_CURE)
        return
    yield from _judge(tree, parse_links(text), nodes, one_leaf, adapters)


def campaign_probes(look: Look, hosts: Mapping[str, str], one_leaf: bool = False, adapters: int = 0) -> Iterator[Probe]:
    """Judge the fabric between a campaign's nodes. `hosts`: node -> its host's name on the fabric, empty if unknown.

    A name that several nodes have, as clones of an image do, tells none of them apart. The probes blame nodes by the
    names that the campaign knows. A failure that blames none is told and not judged: a tenant owns no switch.
    """
    sharers = Counter(hosts.values())
    unknown = [node for node, host in hosts.items() if not host or sharers[host] > 1]
    if unknown or not hosts:
        reason = f"the adapters of {several(unknown) or 'no node'} do not say whose they are, or say the same"
        cure = "give each host a name of its own, and start rdma-ndd on it"
        yield blind("infiniband_fabric", reason, "a look at the fabric between the nodes", cure)
        return
    nodes = {host: node for node, host in hosts.items()}
    for probe in map(_limit_blame, map(_excuse, gang_probes(look, nodes, one_leaf, adapters))):
        hosts_at_fault = probe.blamed_nodes
        blamed_nodes = hosts_at_fault and tuple(nodes[host] for host in hosts_at_fault)
        yield probe.model_copy(update={"blamed_nodes": blamed_nodes})


def _excuse(probe: Probe) -> Probe:
    """Return the probe as one that judges nothing where it blames nobody, such as for a cable between switches: the
    floor of the all-reduce judges whether the gang is too slow by it, and each node its own ports."""
    if probe.verdict is not Verdict.FAIL or probe.blamed_nodes != ():
        return probe
    return probe.model_copy(update={"looked": False, "blamed_nodes": None, "seen": f"{_NOBODYS}: {probe.seen}"})


def _limit_blame(probe: Probe) -> Probe:
    """Return the probe without blame where too many nodes have the fault: they share its cause."""
    is_shared_fault = probe.blamed_nodes is not None and len(probe.blamed_nodes) > _MOST_BLAMED
    return probe.model_copy(update={"blamed_nodes": ()}) if is_shared_fault else probe


def _judge(
    tree: FabricTree, cables: Iterable[Cable], nodes: Collection[str], one_leaf: bool, adapters: int
) -> Iterator[Probe]:
    links = tuple(_of_gang(cables, tree, nodes))
    yield _hosts_probe(tree, nodes)
    yield _adapters_probe(tree, nodes, adapters)
    waiting = [_place(link) for link in links if link.state == INITIALIZE]
    yield finding("infiniband_subnet_manager", waiting, "every link is configured",
                  "a subnet manager that has configured every link", MANAGER_CURE, ())  # fmt: skip
    slow_links, target = [link for link in links if link.could_be], _LINKS_TARGET
    slow = [f"{_place(link)}: {link.shortfall}" for link in slow_links]
    if links:
        blamed_nodes = chain(*(_hosts_of(link) & set(nodes) for link in slow_links))
        fine = f"{len(links)} links as fast as both ends can"
        yield finding("infiniband_links", slow, fine, target, CABLE_CURE, blamed_nodes)
    else:
        yield blind("infiniband_links", "iblinkinfo lists no link of these nodes that can be read", target, RIGHTS_CURE)
    yield _uplinks_probe(tree, nodes)
    if one_leaf:
        yield _leaf_probe(tree, nodes)


def read_tree(look: Look, within_s: float = _PATIENCE_S) -> FabricTree:
    """Return the fabric. Raises CannotLook."""
    return parse_topology(text_of(look("ibnetdiscover", timeout_s=within_s), "ibnetdiscover"))


def network_places(look: Look, nodes: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return each node's place in the fabric from the top layer down; none for a node that could not be seen there."""
    try:
        return read_tree(look, _ORDER_PATIENCE_S).places(nodes)
    except CannotLook:
        return {}


def _of_gang(links: Iterable[Cable], tree: FabricTree, nodes: Collection[str]) -> Iterator[Cable]:
    """Yield the cables of the gang's adapters and those between its leaves and the switches above them."""
    leaves = tree.spines(nodes)
    switches = {f"0x{identity.rpartition('-')[2]}" for identity in {*leaves, *chain(*leaves.values())}}
    for link in links:
        if not _hosts_of(link).isdisjoint(nodes) or all(end.guid in switches for end in link.ends):
            yield link


def _hosts_of(link: Cable) -> set[str]:
    return {split_description(end.name)[0] for end in link.ends}


def _place(link: Cable) -> str:
    """Return a link's ends in words, an adapter's first."""
    return " to ".join(map(str, sorted(link.ends, key=lambda end: not split_description(end.name)[0])))


def _hosts_probe(tree: FabricTree, nodes: Collection[str]) -> Probe:
    name, target = "infiniband_hosts", f"all {len(nodes)} nodes on the fabric"
    missing = [node for node in nodes if node not in tree.hosts]
    if missing and tree.nameless:
        reason = f"{len(tree.nameless)} adapters do not say whose they are, such as {tree.nameless[0]!r}"
        return blind(name, f"{reason}: of {several(missing)} nothing is known", target, "start rdma-ndd on each host")
    bad = [f"{node} is not on the fabric" for node in missing]
    return finding(name, bad, "all", target, CABLE_CURE, missing)


def _adapters_probe(tree: FabricTree, nodes: Collection[str], spec_count: int) -> Probe:
    """Compare the nodes' adapters that have a cable. A node without any is another probe's."""
    devices = {node: tree.hosts[node].keys() for node in nodes if node in tree.hosts}
    counts = Counter(map(len, devices.values()))
    count = spec_count or max(counts, key=lambda number: (counts[number], number), default=0)
    usual = dict(Counter(chain(*devices.values())).most_common(count)).keys()
    bad = {node: f"{node}: {len(names)} of {count}{_without(usual - names)}" for node, names in devices.items()
           if len(names) < count}  # fmt: skip
    name, target = "infiniband_adapters", f"{count} adapters of each node with a cable"
    if bad and tree.nameless:
        reason = f"{len(tree.nameless)} adapters do not say whose they are: {several(bad.values())}"
        return blind(name, reason, target, "start rdma-ndd on each host")
    cure = f"run ibstat on that node: a port in Polling has no cable; {CABLE_CURE}"
    return finding(name, bad.values(), f"{count} each", target, cure, bad)


def _uplinks_probe(tree: FabricTree, nodes: Collection[str]) -> Probe:
    """Compare the leaves' cables to the switches above them."""
    spines = tree.spines(nodes)
    peak = max(map(len, spines.values()), default=0)
    everywhere = set(chain(*spines.values()))
    bad = [f"{tree.name(leaf)}: {len(peers)} of {peak}{_without(map(tree.name, everywhere.difference(peers)))}"
           for leaf, peers in spines.items() if len(peers) < peak]  # fmt: skip
    fine = f"{peak} of each of {len(spines)} leaves"
    return finding("infiniband_uplinks", bad, fine, f"{peak} cables upwards from each leaf of the gang", CABLE_CURE, ())


def _without(names: Iterable[str]) -> str:
    text = ", ".join(sorted(names))
    return f", without {text}" if text else ""


def _leaf_probe(tree: FabricTree, nodes: Collection[str]) -> Probe:
    """Find the nodes that are below another leaf than most, for each adapter: in a fabric of rails each has its own."""
    bad: dict[str, str] = {}
    usual: dict[str, None] = {}
    for device in sorted(set(chain(*(tree.hosts.get(node, {}) for node in nodes)))):
        leaves = {node: tree.hosts[node][device] for node in nodes if device in tree.hosts.get(node, {})}
        common_leaf = Counter(leaves.values()).most_common(1)[0][0]
        usual[tree.name(common_leaf)] = None
        for node, leaf in leaves.items():
            if leaf != common_leaf:
                bad.setdefault(node, f"{node}: {device} is at {tree.name(leaf)}, most are at {tree.name(common_leaf)}")
    target, cure = "each adapter of all nodes below one leaf", "take nodes of one leaf, or do not ask for one"
    return finding("infiniband_leaf", bad.values(), f"all below {', '.join(usual)}", target, cure, bad)

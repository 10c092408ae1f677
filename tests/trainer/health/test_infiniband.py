"""InfiniBand's faults on a simulated fabric: the real tools look, and each fault is refused with its place and cure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.campaign.verdicts import fault_text, judge
from tests.trainer.health.test_health import PLAIN
from tests.worlds.fabric import EDR, HDR, NARROW, WIDE, FatTree, SimulatedFabric, simulated
from trainer.builtin.rank_order import Standing, order, with_network
from trainer.contract import HealthReport, Probe, Verdict
from trainer.health.__main__ import fabric_probes, serialize
from trainer.health.collective import Collective
from trainer.health.infiniband import __main__ as command
from trainer.health.infiniband.gang import campaign_probes, gang_probes, read_tree
from trainer.health.infiniband.links import errors_probe, parse_links, read_errors
from trainer.health.infiniband.node import choice_of, infiniband_probes
from trainer.health.infiniband.ports import parse_ibstat
from trainer.health.infiniband.settings import derive
from trainer.health.looking import CannotLook, Output, look

SMALL, BIG = FatTree(8, 2, 2), FatTree(512, 16, 8)
SIZES = pytest.mark.parametrize("tree", [SMALL, BIG], ids=["8 hosts", "512 hosts"])


def pairs(big: set[str], *rows: tuple[Any, ...]) -> list[Any]:
    """Pair each row with 8 hosts. A fabric of 512 takes 0.7 s of a processor to simulate, so that by day it has the
    faults in `big`, whose verdict is one of most or of all; a fault of one cable does not ask how many there are."""
    night = pytest.mark.nightly
    return [
        pytest.param(tree, *row, id=f"{row[0]}-{size}", marks=() if tree is SMALL or row[0] in big else night)
        for row in rows
        for tree, size in ((SMALL, "8 hosts"), (BIG, "512 hosts"))
    ]


Fabrics = Callable[[FatTree], SimulatedFabric]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, SimulatedFabric]]:
    """A fabric of each size without a fault, by the number of hosts."""
    with (
        simulated(SMALL, tmp_path_factory.mktemp("small")) as small,
        simulated(BIG, tmp_path_factory.mktemp("big")) as big,
    ):
        yield {SMALL.nodes: small, BIG.nodes: big}


@contextmanager
def faulty(tree: FatTree, folder: Path, managed: bool = True) -> Iterator[SimulatedFabric]:
    with simulated(tree, folder, managed) as fabric:
        yield fabric


def failures(probes: list[Probe]) -> dict[str, Probe]:
    assert not [probe for probe in probes if probe.verdict is Verdict.BLIND]
    return {probe.name: probe for probe in probes if probe.verdict is Verdict.FAIL}


def gang_failures(fabric: SimulatedFabric, one_leaf: bool = False, adapters: int = 0) -> dict[str, Probe]:
    return failures(list(gang_probes(fabric.look(0), fabric.tree.names(), one_leaf, adapters)))


def node_failures(fabric: SimulatedFabric, node: int, folder: Path) -> dict[str, Probe]:
    choice = choice_of(fabric.look(node), fabric.sysfs(node, folder / f"sysfs-{node}"))
    return failures(list(infiniband_probes(choice, fabric.look(node), {})))


@SIZES
def test_the_readers_return_what_the_net_file_says(tree: FatTree, healthy: dict[int, SimulatedFabric]) -> None:
    fabric = healthy[tree.nodes]

    found = read_tree(fabric.look(0))
    links = parse_links(fabric.look(0)("iblinkinfo", "-l").text)
    ports = parse_ibstat(fabric.look(3)("ibstat").text)

    leaf_names = {host: {found.elements[leaf].name for leaf in rows.values()} for host, rows in found.hosts.items()}
    assert leaf_names == {f"node-{n:03d}": {f"leaf-{n * tree.leaves // tree.nodes:02d}"} for n in range(tree.nodes)}
    assert {tuple(rows) for rows in found.hosts.values()} == {("mlx5_0", "mlx5_1")} and not found.nameless
    assert len(links) == tree.nodes * tree.adapters + tree.leaves * tree.spines, "each cable once"
    assert {(link.width, link.speed, link.state, link.could_be) for link in links} == {
        ("12X", "53.125 Gbps", "Active", "")
    }
    spines = Counter(end.name for link in links for end in link.ends if end.name.startswith("spine"))
    assert spines == {f"spine-{spine:02d}": tree.leaves for spine in range(tree.spines)}
    assert [(port.name, port.state, port.physical_state, port.layer) for port in ports] == [
        ("mlx5_0:1", "Active", "LinkUp", "InfiniBand"), ("mlx5_1:1", "Active", "LinkUp", "InfiniBand")
    ]  # fmt: skip
    assert all(port.sm_lid for port in ports)


@SIZES
def test_a_sound_fabric_is_fit_and_the_order_of_ranks_follows_its_leaves(
    tree: FatTree, healthy: dict[int, SimulatedFabric], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabric = healthy[tree.nodes]
    assert gang_failures(fabric) == {} == node_failures(fabric, 5, tmp_path)
    assert command.main(["gang", "--nodes", "node-000,node-001", "--one-leaf"], fabric.look(0)) == 0
    assert "all below leaf-00 (0x" in capsys.readouterr().out

    # Pods in an order that alternates between the leaves.
    per_leaf = tree.nodes // tree.leaves
    nodes = [first + step for step in range(per_leaf) for first in range(0, tree.nodes, per_leaf)]
    pods = [Standing(node=f"node-{node:03d}") for node in nodes]
    ranks = order(with_network(pods, fabric.look(0), fabric.sysfs(0, tmp_path / "of pod 0")))

    node_by_rank = [node for _, node in sorted(zip(ranks, nodes, strict=True))]
    leaves = [tree.leaf(node, 0) for node in node_by_rank]
    assert sum(left != right for left, right in itertools.pairwise(leaves)) == tree.leaves - 1


def test_a_pod_that_knows_ec2s_network_or_has_no_infiniband_starts_no_tool(tmp_path: Path) -> None:
    def refuse(*command: str, timeout_s: float = 0) -> Output:
        raise AssertionError(f"{command} was started")

    known = [Standing(network=("nn-1", "nn-2"), node="node-000"), Standing(node="node-001")]
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n"), (port / "link_layer").write_text("InfiniBand\n")
    assert with_network(known, refuse, tmp_path / "infiniband") == known
    unknown = [Standing(node="node-000"), Standing(node="node-001")]
    assert with_network(unknown, refuse, tmp_path / "none") == unknown
    choice = choice_of(refuse, tmp_path / "none")
    assert list(infiniband_probes(choice, refuse, {})) == [] and derive(choice) == {}


@pytest.mark.parametrize(
    ("tree", "name", "probe", "places"),
    pairs(
        {"uplink", "half", "wrong leaf"},
        ("cut", "infiniband_adapters", ["node-005: 1 of 2, without mlx5_1"]),
        ("cut off", "infiniband_hosts", ["node-005 is not on the fabric"]),
        ("unequal", "infiniband_adapters", ["node-006: 1 of 2, without mlx5_0"]),
        ("narrow", "infiniband_links", ["node-003 mlx5_1", "leaf-00", "4X 53.125 Gbps, could be 12X"]),
        ("slow", "infiniband_links", ["node-003 mlx5_0", "leaf-00", "12X 25.78125 Gbps, could be 53.125 Gbps"]),
        ("uplink", "infiniband_uplinks", ["leaf-01", "without spine-01"]),
        ("half", "infiniband_adapters", ["node-000: 1 of 2", "and"]),
        ("wrong leaf", "infiniband_leaf", ["node-001: mlx5_0 is at leaf-01", "most are at leaf-00"]),
    ),
)
def test_a_fault_of_the_fabric_is_refused_with_its_place_and_its_cure(
    name: str, probe: str, places: list[str], tree: FatTree, tmp_path: Path
) -> None:
    per_leaf = tree.nodes // tree.leaves
    changes: dict[str, dict[str, object]] = {
        "cut": {"cut": {(5, 1)}},
        "cut off": {"cut": {(5, 0), (5, 1)}},
        "unequal": {"missing": {(6, 0)}},
        "narrow": {"slow": {(3, 1): f"{NARROW} s=7 {HDR}"}},
        "slow": {"slow": {(3, 0): f"{WIDE} s=7 {EDR}"}},
        "uplink": {"cut_uplinks": {(1, 1)}},
        "half": {"cut": {(node, 1) for node in range(tree.nodes)}},
        "wrong leaf": {"moved": {1: 1}},
    }
    with faulty(replace(tree, **changes[name]), tmp_path / "fabric") as fabric:  # type: ignore[arg-type]
        nodes = fabric.tree.names()[:per_leaf] if name == "wrong leaf" else fabric.tree.names()
        found = failures(list(gang_probes(fabric.look(0), nodes, name == "wrong leaf", 2 if name == "half" else 0)))
        code = command.main(
            ["gang", "--nodes", ",".join(nodes), "--adapters", "2", *(["--one-leaf"] if name == "wrong leaf" else [])],
            fabric.look(0),
        )

    assert code == 70
    assert found.keys() == {probe}
    assert all(place in found[probe].seen for place in places), found[probe].seen
    assert found[probe].cure


@SIZES
def test_a_node_names_its_own_dead_and_slow_ports_before_a_rank_starts(tree: FatTree, tmp_path: Path) -> None:
    options = f"{NARROW} s=7 {HDR}"
    with faulty(replace(tree, cut={(5, 1)}, slow={(3, 1): options}), tmp_path / "fabric") as fabric:
        dead, slow = node_failures(fabric, 5, tmp_path), node_failures(fabric, 3, tmp_path)
        sysfs = fabric.sysfs(5, tmp_path / "of 5 again")
        assert command.main(["node"], fabric.look(5), sysfs) == 70
        assert derive(choice_of(fabric.look(5), sysfs)) == {"NCCL_IB_HCA": "=mlx5_0:1"}
        assert node_failures(fabric, 4, tmp_path) == {}

    assert dead.keys() == {"infiniband_ports"}, "half of the adapters is not enough"
    assert "mlx5_1:1 Down, Polling" in dead["infiniband_ports"].seen and "cable" in dead["infiniband_ports"].cure
    text = slow["infiniband_links"].seen
    assert "mlx5_1:1" in text and "leaf-00" in text and "could be 12X" in text and slow["infiniband_links"].cure


@SIZES
def test_a_fabric_without_a_subnet_manager_is_refused_by_the_node_and_by_the_gang(
    tree: FatTree, tmp_path: Path
) -> None:
    with faulty(tree, tmp_path / "fabric", managed=False) as fabric:
        gang, node = gang_failures(fabric), node_failures(fabric, 5, tmp_path)

    assert gang.keys() == {"infiniband_subnet_manager"} == node.keys()
    links = tree.nodes * tree.adapters + tree.leaves * tree.spines
    assert gang["infiniband_subnet_manager"].seen.count(" to ") == 4
    assert gang["infiniband_subnet_manager"].seen.endswith(f"and {links - 4} more")
    assert "mlx5_0:1 Initializing, SM lid 0" in node["infiniband_subnet_manager"].seen
    assert "opensm" in node["infiniband_subnet_manager"].cure


@pytest.mark.parametrize(
    ("tree", "fault"),
    pairs({"one cable", "half of all"}, ("none",), ("wrong leaf",), ("one cable",), ("half of all",), ("uplink",)),
)
def test_a_campaigns_preflight_judges_the_fabric_between_its_nodes_before_a_rank_starts(
    fault: str, tree: FatTree, tmp_path: Path
) -> None:
    """Pod 0 looks for all, and the driver blames the node that it names, or none."""
    per_leaf = tree.nodes // tree.leaves
    changes: dict[str, dict[str, object]] = {
        "none": {},
        "wrong leaf": {"moved": {1: 1}},
        "one cable": {"cut": {(1, 1)}},
        "half of all": {"cut": {(node, 1) for node in range(tree.nodes)}},
        "uplink": {"cut_uplinks": {(1, 1)}},
    }
    expectation = PLAIN.model_copy(update={"one_leaf": fault in ("none", "wrong leaf"), "adapters": 2})
    hosts = tree.names()[:per_leaf] if expectation.one_leaf else tree.names()
    nodes = [f"{host}.racks.example.org" for host in hosts]
    met = Collective((), 1.0, None, None, dict(zip(nodes, hosts, strict=True)))
    with faulty(replace(tree, **changes[fault]), tmp_path / "fabric") as fabric:  # type: ignore[arg-type]
        ports = choice_of(fabric.look(0), fabric.sysfs(0, tmp_path / "sysfs"))
        probes = tuple(fabric_probes(expectation, met, ports, fabric.look(0)))
    reports = {node: HealthReport(node=node, probes=()) for node in nodes}
    reports[nodes[0]] = HealthReport(node=nodes[0], probes=probes)
    sent = {node: HealthReport.model_validate_json(serialize(report)) for node, report in reports.items()}
    verdict = judge(sent, [])

    assert len(probes) == 5 + expectation.one_leaf
    assert [probe.name for probe in verdict.blind] == (["infiniband_uplinks"] if fault == "uplink" else [])
    assert [row["node"] for row in verdict.unfit] == ([nodes[1]] if fault in ("wrong leaf", "one cable") else [])
    words = {row["node"]: fault_text(row, "racks") for row in verdict.verdicts}
    if verdict.unfit:
        name = {"wrong leaf": "infiniband_leaf: node-001", "one cable": "infiniband_adapters: node-001"}[fault]
        assert name in words[nodes[1]] and "infiniband" not in words[nodes[0]], "it only looked"
    if fault == "half of all":
        assert verdict.common or "infiniband_adapters: node-000: 1 of 2" in words[nodes[0]]
    if fault == "uplink":
        (told,) = verdict.blind
        assert "leaf-01" in told.seen and "without spine-01" in told.seen and told.cure
    everyones = [bool(verdict.common), not verdict.fabric]
    assert any(everyones) == (fault == "half of all"), "a tenant does not own a leaf's uplinks"


def test_an_adapter_that_names_no_host_may_be_the_one_that_its_node_lacks(
    healthy: dict[int, SimulatedFabric],
) -> None:
    fabric = healthy[SMALL.nodes]

    def run(*command: str, timeout_s: float = 0) -> Output:
        text = fabric.look(0)(*command).text
        return Output(0, text.replace('"node-001 mlx5_1"', '"MT4129 ConnectX7   Mellanox Technologies"'), "")

    probes = {probe.name: probe for probe in gang_probes(run, SMALL.names(), adapters=2)}
    probe = probes.pop("infiniband_adapters")
    assert probe.verdict is Verdict.BLIND and "rdma-ndd" in probe.cure
    assert "1 adapters do not say whose they are: node-001: 1 of 2" in probe.seen
    assert not failures(list(probes.values()))


@pytest.mark.parametrize("own", [False, True], ids=["a switch's alone", "a node's too"])
def test_a_slow_cable_between_switches_refuses_no_campaign_and_hides_no_nodes_own(own: bool, tmp_path: Path) -> None:
    slow = {(3, 1): f"{NARROW} s=7 {HDR}"} if own else {}
    with faulty(replace(SMALL, slow=slow), tmp_path / "fabric") as fabric:

        def run(*command: str, timeout_s: float = 0) -> Output:
            """The simulator's tools, but that the cable from leaf to spine is as slow as that of a slow node."""
            lines = fabric.look(0)(*command).text.splitlines()
            slow_lines = [
                line.replace("==(12X", "==( 4X").replace("( )", "(Could be 12X )")
                if '"leaf-00" ( )' in line and "spine-01" in line
                else line
                for line in lines
            ]
            return Output(0, "\n".join(slow_lines), "")

        hosts = {f"pod-{host}": host for host in SMALL.names()}
        links = {probe.name: probe for probe in campaign_probes(run, hosts)}["infiniband_links"]
        by_hand = failures(list(gang_probes(run, SMALL.names())))

    assert by_hand.keys() == {"infiniband_links"} and "spine-01" in by_hand["infiniband_links"].seen
    assert links.verdict is (Verdict.FAIL if own else Verdict.BLIND) and "spine-01" in links.seen
    assert links.blamed_nodes == (("pod-node-003",) if own else None)


def test_new_errors_of_a_port_are_refused_and_old_ones_are_told(
    healthy: dict[int, SimulatedFabric], tmp_path: Path
) -> None:
    fabric = healthy[SMALL.nodes]
    ports = choice_of(fabric.look(3), fabric.sysfs(3, tmp_path / "sysfs")).usable

    def with_errors(symbol_errors: int, downs: int) -> Callable[..., Output]:
        """`perfquery` of the simulator, whose counters are always 0, with two of its numbers replaced."""

        def run(*command: str, timeout_s: float = 0) -> Output:
            text = fabric.look(3)(*command).text
            text = text.replace(
                "SymbolErrorCounter:..............0", f"SymbolErrorCounter:..............{symbol_errors}"
            )
            return Output(
                0, text.replace("LinkDownedCounter:...............0", f"LinkDownedCounter:...............{downs}"), ""
            )

        return run

    clean = read_errors(ports, fabric.look(3))
    assert errors_probe(clean, clean).ok and len(clean.counts) == 8
    old = read_errors(ports, with_errors(900, 3))
    told = errors_probe(old, old)
    assert told.ok and "mlx5_0:1: 900 SymbolErrorCounter" in told.seen
    new = errors_probe(old, read_errors(ports, with_errors(905, 4)))
    assert not new.ok and new.seen == "mlx5_0:1: 1 LinkDownedCounter; mlx5_1:1: 1 LinkDownedCounter" and new.cure
    assert not errors_probe(old, read_errors(ports, with_errors(911, 3))).ok


def test_a_look_that_is_refused_judges_nothing(healthy: dict[int, SimulatedFabric], tmp_path: Path) -> None:
    """Without the tools or their rights the ports' own states are judged all the same, by the kernel's files."""

    def refuse(*command: str, timeout_s: float = 0) -> Output:
        raise CannotLook(f"there is no {command[0]} in the image")

    sysfs = healthy[SMALL.nodes].sysfs(2, tmp_path / "sysfs")
    for adapter in sysfs.iterdir():  # the kernel has it, the simulator's copy has not
        (adapter / "ports/1/link_layer").write_text("InfiniBand\n")
    choice = choice_of(refuse, sysfs)
    by_verdict = {probe.name: probe.verdict for probe in infiniband_probes(choice, refuse, {})}
    assert by_verdict == {
        "infiniband_ports": Verdict.PASS, "infiniband_subnet_manager": Verdict.PASS,
        "infiniband_links": Verdict.BLIND, "infiniband_settings": Verdict.PASS,
    }  # fmt: skip
    assert [probe.verdict for probe in gang_probes(refuse, ["node-000"])] == [Verdict.BLIND]
    assert errors_probe(read_errors(choice.usable, refuse), read_errors(choice.usable, refuse)).verdict is Verdict.BLIND
    assert command.main(["gang", "--nodes", "node-000"], refuse) == 69
    (sysfs / "mlx5_1/ports/1/state").write_text("1: DOWN\n")
    (sysfs / "mlx5_1/ports/1/phys_state").write_text("3: Disabled\n")
    probes = {probe.name: probe for probe in infiniband_probes(choice_of(refuse, sysfs), refuse, {})}
    assert not probes["infiniband_ports"].ok and "ibportstate" in probes["infiniband_ports"].cure


def test_a_machine_without_adapters_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["node"], look, tmp_path) == 0
    assert "no InfiniBand and no RoCE" in capsys.readouterr().out

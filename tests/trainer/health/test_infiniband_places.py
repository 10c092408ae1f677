"""What nodes say of their places on the fabric: hosts' names, leaves, rails, and adapters that name nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.health.test_health import PLAIN
from tests.trainer.health.test_infiniband import failures, faulty
from tests.worlds.fabric import FatTree
from trainer.contract import Verdict
from trainer.health.__main__ import fabric_probes
from trainer.health.collective import Collective
from trainer.health.infiniband.gang import campaign_probes, gang_probes, read_tree
from trainer.health.infiniband.ports import Port, host_of
from trainer.health.infiniband.settings import PortChoice
from trainer.health.looking import Output


@pytest.mark.parametrize("layers", [(), ("Ethernet",)], ids=["no port", "RoCE"])
def test_a_leaf_that_the_spec_wants_is_not_passed_over_where_there_is_no_infiniband(layers: tuple[str, ...]) -> None:
    def refuse(*command: str, timeout_s: float = 0) -> Output:
        raise AssertionError(f"{command} was started")

    ports = PortChoice(tuple(Port("mlx5_0", 1, "Active", "LinkUp", 400.0, layer) for layer in layers))
    met = Collective((), 1.0, None, None, {"a": "gpu-01", "b": "gpu-02"})
    assert list(fabric_probes(PLAIN, met, ports, refuse)) == []
    (probe,) = fabric_probes(PLAIN.model_copy(update={"one_leaf": True}), met, ports, refuse)
    assert (probe.name, probe.verdict) == ("infiniband_fabric", Verdict.BLIND) and "one_leaf" in probe.cure


def test_nodes_that_say_the_same_name_are_told_from_each_other_by_nobody() -> None:
    def refuse(*command: str, timeout_s: float = 0) -> Output:
        raise AssertionError(f"{command} was started")

    (probe,) = campaign_probes(refuse, {"a": "localhost", "b": "gpu-02", "c": "localhost"})
    assert probe.verdict is Verdict.BLIND and "the adapters of a; c do not say" in probe.seen
    assert "or say the same" in probe.seen and "a name of its own" in probe.cure


def test_a_campaign_whose_adapters_name_no_host_is_told_that_nobody_could_look() -> None:
    def refuse(*command: str, timeout_s: float = 0) -> Output:
        raise AssertionError(f"{command} was started")

    (probe,) = campaign_probes(refuse, {"a": "node-000", "b": ""})
    assert probe.verdict is Verdict.BLIND and "adapters of b do not say" in probe.seen and "rdma-ndd" in probe.cure
    assert [probe.verdict for probe in campaign_probes(refuse, {})] == [Verdict.BLIND]


def test_the_nodes_tell_each_other_their_hosts_names_on_the_fabric(tmp_path: Path) -> None:
    for adapter, text in {"mlx5_0": "MT4129 ConnectX7   Mellanox Technologies", "mlx5_1": "gpu-07 mlx5_1"}.items():
        (tmp_path / adapter).mkdir()
        (tmp_path / adapter / "node_desc").write_text(f"{text}\n")
    assert host_of(tmp_path) == "gpu-07"
    assert host_of(tmp_path / "none") == ""
    (tmp_path / "mlx5_1/node_desc").unlink()
    assert host_of(tmp_path) == "", "the firmware's words are no host"


def test_each_rail_of_a_fabric_of_rails_is_one_leaf(tmp_path: Path) -> None:
    with faulty(FatTree(8, 4, 2, rails=True), tmp_path / "fabric") as fabric:
        names = fabric.tree.names()
        assert not failures(list(gang_probes(fabric.look(0), names[:4], one_leaf=True)))
        (probe,) = failures(list(gang_probes(fabric.look(0), names[:5], one_leaf=True))).values()
    assert probe.name == "infiniband_leaf" and probe.seen.startswith("node-004: mlx5_0 is at leaf-02")


def test_groups_of_leaves_that_only_cores_would_join_are_two_places(tmp_path: Path) -> None:
    apart = {(leaf, spine) for leaf in range(4) for spine in range(2) if leaf // 2 != spine}
    with faulty(FatTree(8, 4, 2, cut_uplinks=apart), tmp_path / "fabric", managed=False) as fabric:
        places = read_tree(fabric.look(0)).places(fabric.tree.names())
        seen_from_there = read_tree(fabric.look(0)).hosts.keys()
    groups = {group for group, _ in places.values()}
    assert seen_from_there == {f"node-{node:03d}" for node in range(4)}, "a walk does not cross what is apart"
    assert len(groups) == 1 and len({leaf for _, leaf in places.values()}) == 2

"""NCCL's settings for InfiniBand and RoCE: derived from the kernel's files, and judged where somebody set them.

The files are written after Linux' Documentation/ABI/stable/sysfs-class-infiniband; no RoCE was at hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.trainer.health.test_health_parsers import sample
from tests.unit.trainer.test_preflight_gates import PLAIN
from trainer.contract import Verdict
from trainer.health.__main__ import nccl_probes
from trainer.health.collective import Collective
from trainer.health.fabrics import infiniband_nccl_probe
from trainer.health.infiniband.links import PortErrors, errors_probe, parse_links
from trainer.health.infiniband.node import WITHOUT_DEVICES, choice_of, infiniband_probes, memory_probe, nccl_environment
from trainer.health.infiniband.ports import ETHERNET, INFINIBAND, Port, default_interface, parse_ibstat, read_ports
from trainer.health.infiniband.settings import choose, derive, selects, settings_probe
from trainer.health.infiniband.tree import parse_topology, split_description
from trainer.health.looking import CannotLook, Output
from trainer.health.parsers.fabric import parse_nccl


def no_tool(*command: str, timeout_s: float = 0) -> Output:
    raise CannotLook(f"there is no {command[0]} in the image")


def port(
    adapter: str, layer: str = INFINIBAND, state: str = "Active", model: str = "MT4129", rate: float = 400
) -> Port:
    physical = "LinkUp" if state == "Active" else "Polling"
    return Port(adapter, 1, state, physical, rate, layer, model, 1 if layer == INFINIBAND else None)


def write_device(root: Path, name: str, files: dict[str, str], interface: str = "") -> None:
    for file, text in files.items():
        path = root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    if interface:
        (root / name / "device/net" / interface).mkdir(parents=True)


def roce(kinds: dict[int, tuple[str, str]], rate: str = "400 Gb/sec (4X NDR)", model: str = "MT4129") -> dict[str, str]:
    files = {
        "device/vendor": "0x15b3", "hca_type": model, "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": rate, "ports/1/link_layer": "Ethernet", "ports/1/sm_lid": "0x0",
    }  # fmt: skip
    for index, (kind, address) in kinds.items():
        files |= {f"ports/1/gid_attrs/types/{index}": kind, f"ports/1/gids/{index}": address}
    return files


LINK_LOCAL, FROM_IPV4 = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456", "0000:0000:0000:0000:0000:ffff:0a00:0001"
GIDS = {0: ("IB/RoCE v1", LINK_LOCAL), 1: ("RoCE v2", LINK_LOCAL), 3: ("RoCE v2", FROM_IPV4)}
NO_ADDRESS = "0000:0000:0000:0000:0000:0000:0000:0000"


def test_roce_of_the_gang_is_told_from_management_from_efa_and_from_empty_addresses(tmp_path: Path) -> None:
    sysfs, devices = tmp_path / "infiniband", tmp_path / "dev"
    devices.mkdir()
    write_device(sysfs, "mlx5_10", roce(GIDS | {4: ("RoCE v2", NO_ADDRESS)}), "eth10")
    write_device(sysfs, "mlx5_2", roce(GIDS), "eth2")
    write_device(sysfs, "mlx5_0", roce(GIDS, "25 Gb/sec (1X EDR)", "MT4117"), "management0")
    write_device(sysfs, "rdmap0s6", {"device/vendor": "0x1d0f", "ports/1/state": "4: ACTIVE"})

    ports = read_ports(no_tool, sysfs)
    choice = choice_of(no_tool, sysfs, devices)

    assert [p.name for p in ports] == ["mlx5_0:1", "mlx5_2:1", "mlx5_10:1"], "by number; EFA's are another fabric"
    assert ports[2].gids == {0: "IB/RoCE v1", 1: "RoCE v2", 3: "RoCE v2"} and ports[2].interface == "eth10"
    assert choice.left_out == {"mlx5_0:1": "it is a MT4117 beside MT4129"}
    assert derive(choice, traffic_class=106, service_level=3) == {
        "NCCL_IB_HCA": "=mlx5_2:1,mlx5_10:1", "NCCL_IB_TC": "106"
    }  # fmt: skip
    assert all(probe.ok for probe in infiniband_probes(choice, no_tool, {}))


def test_roce_that_the_container_may_not_use_is_a_plain_network_card_and_judges_nothing(tmp_path: Path) -> None:
    write_device(tmp_path / "infiniband", "mlx5_0", roce(GIDS), "eth0")
    choice = choice_of(no_tool, tmp_path / "infiniband", tmp_path / "no devices")
    assert choice.ports == () and choice.left_out == {"mlx5_0:1": WITHOUT_DEVICES} and derive(choice) == {}
    (probe,) = infiniband_probes(choice, no_tool, {})
    assert probe.verdict is Verdict.BLIND and "rdma/" in probe.cure


@pytest.mark.parametrize(
    ("ports", "has_devices", "words"),
    [
        ({}, True, "no adapter in /sys/class/infiniband"),
        ({"mlx5_0": "4: ACTIVE"}, False, f"mlx5_0:1: {WITHOUT_DEVICES}"),
        ({"mlx5_0": "1: DOWN", "mlx5_2": "1: DOWN"}, True, "mlx5_0:1 Down; mlx5_2:1 Down"),
    ],
)
def test_a_node_that_wants_rdma_and_has_no_usable_port_is_refused_with_its_places(
    ports: dict[str, str], has_devices: bool, words: str, tmp_path: Path
) -> None:
    sysfs, devices = tmp_path / "infiniband", tmp_path / "dev"
    sysfs.mkdir()
    if has_devices:
        devices.mkdir()
    for adapter, state in ports.items():
        write_device(sysfs, adapter, {**roce(GIDS), "ports/1/state": state}, f"fabric{adapter[-1]}")
    choice = choice_of(no_tool, sysfs, devices)
    (probe,) = infiniband_probes(choice, no_tool, {}, rdma=True)
    assert (probe.name, probe.verdict, probe.seen) == ("infiniband_rdma", Verdict.FAIL, words)
    assert "rdma/" in probe.cure and not [row for row in infiniband_probes(choice, no_tool, {}) if row.looked]


@pytest.mark.parametrize(
    ("limit", "capabilities", "verdict"),
    [
        (-1, None, Verdict.PASS),
        (8 << 20, "0000000000004000", Verdict.PASS),
        (8 << 20, "00000000a80425fb", Verdict.FAIL),
        (8 << 20, None, Verdict.BLIND),
    ],
)
def test_a_container_that_may_not_pin_memory_is_refused(
    limit: int, capabilities: str | None, verdict: Verdict, tmp_path: Path
) -> None:
    """The third set is what a container has without more."""
    if capabilities is not None:
        (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    probe = memory_probe(tmp_path / "status", limit)
    assert probe.verdict is verdict
    if verdict is Verdict.FAIL:
        assert probe.seen == "8 MiB, without IPC_LOCK" and "LimitMEMLOCK" in probe.cure


def test_ports_that_tell_no_state_are_not_refused_where_rdma_is_wanted() -> None:
    (probe,) = infiniband_probes(choose([replace(port("mlx5_0"), state="")]), no_tool, {}, rdma=True)
    assert probe.verdict is Verdict.BLIND


def test_a_roce_port_without_an_address_of_the_second_version_is_refused(tmp_path: Path) -> None:
    write_device(tmp_path, "mlx5_0", roce({0: ("IB/RoCE v1", LINK_LOCAL)}), "eth0")
    choice = choose(read_ports(no_tool, tmp_path))
    assert "give eth0 an IP address" in settings_probe(choice, {}).seen
    write_device(tmp_path, "mlx5_0", {f"ports/1/{k}": v for k, v in {
        "gid_attrs/types/3": "RoCE v2", "gids/3": FROM_IPV4}.items()})  # fmt: skip
    choice = choose(read_ports(no_tool, tmp_path))
    assert settings_probe(choice, {"NCCL_IB_GID_INDEX": "3"}).ok and settings_probe(choice, {}).ok
    assert "no RoCE v2 address of mlx5_0:1, which are 3" in settings_probe(choice, {"NCCL_IB_GID_INDEX": "0"}).seen


def test_a_port_that_is_down_belongs_to_the_fabric_and_one_of_another_network_does_not() -> None:
    down, storage = port("mlx5_1", state="Down"), port("mlx5_8", ETHERNET)
    odd = port("mlx5_9", "")
    choice = choose([port("mlx5_0"), down, storage, odd])
    assert [p.name for p in choice.ports] == ["mlx5_0:1", "mlx5_1:1"] and choice.usable == (port("mlx5_0"),)
    assert set(choice.left_out) == {"mlx5_8:1", "mlx5_9:1"} and "unknown" in choice.left_out["mlx5_9:1"]
    slow = port("mlx5_1", rate=200)
    assert choose([port("mlx5_0"), slow]).usable == (port("mlx5_0"), slow), "a slow one of the same model is a fault"


def test_the_card_of_the_default_route_is_management_unless_it_is_all_there_is(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    )
    assert default_interface(routes) == "eth0" and default_interface(tmp_path / "none") == ""
    first, second = (replace(port(f"mlx5_{k}", ETHERNET), interface=f"eth{k}") for k in range(2))
    assert choose([first, second], "eth0").ports == (second,)
    assert choose([first], "eth0").ports == (first,)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("", "mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("mlx5_1", "mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("=mlx5_1", "mlx5_1:1 mlx5_1:2"),
        ("=mlx5_1:2,mlx5_10", "mlx5_1:2 mlx5_10:1"),
        ("mlx5_1::7", "mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("^mlx5_10", "mlx5_1:1 mlx5_1:2"),
        ("^=mlx5_1:1", "mlx5_1:2 mlx5_10:1"),
        ("mlx4", ""),
    ],
)
def test_an_expression_of_nccl_takes_the_ports_that_nccl_would_take(expression: str, chosen: str) -> None:
    ports = [port("mlx5_1"), replace(port("mlx5_1"), number=2), port("mlx5_10")]
    assert " ".join(p.name for p in ports if selects(expression, p)) == chosen


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "leaves only sockets"),
        ({"NCCL_NET": "Socket"}, "takes sockets"),
        ({"NCCL_IB_HCA": "mlx5_0"}, "leaves out mlx5_1:1"),
        ({"NCCL_IB_HCA": "=mlx5_0:2,mlx5_1:1"}, "leaves out mlx5_0:1"),
    ],
)
def test_a_variable_that_costs_a_port_is_refused_and_named(environment: dict[str, str], words: str) -> None:
    choice = choose([port("mlx5_0"), port("mlx5_1")])
    probe = settings_probe(choice, environment)
    assert not probe.ok and words in probe.seen and next(iter(environment)) in probe.seen and probe.cure
    assert settings_probe(choice, {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5"}).ok


def test_a_person_may_say_which_adapters_are_not_of_the_fabric() -> None:
    ports, expression = [port("mlx5_0"), port("mlx5_8", state="Down")], "^mlx5_8"
    choice = choose(ports, expression=expression)
    assert choice.ports == (port("mlx5_0"),) and choice.left_out == {"mlx5_8:1": "NCCL_IB_HCA=^mlx5_8"}
    assert settings_probe(choice, {"NCCL_IB_HCA": expression}).ok


def test_service_level_and_sharp_are_set_by_choice_alone() -> None:
    choice = choose([port("mlx5_0")])
    assert derive(choice) == {"NCCL_IB_HCA": "=mlx5_0:1"}
    assert derive(choice, service_level=0, traffic_class=106, sharp=True) == {
        "NCCL_IB_HCA": "=mlx5_0:1", "NCCL_IB_SL": "0", "NCCL_COLLNET_ENABLE": "1"
    }  # fmt: skip


def test_ibstat_of_a_real_port_is_read_field_by_field() -> None:
    (real,) = parse_ibstat(sample("ibstat/gh200-ndr.txt"))
    assert real == Port("mlx5_5", 1, "Active", "LinkUp", 400.0, INFINIBAND, "MT4129", 359)
    assert (
        parse_ibstat("ibstat: can't open device\n") == () == parse_links("no link") and not parse_topology("").elements
    )


@pytest.mark.parametrize(
    ("description", "parts"),
    [
        ("node-7 mlx5_0", ("node-7", "mlx5_0")),
        ("gpu01.rack HCA-1", ("gpu01.rack", "HCA-1")),
        ("host ibp12s0", ("host", "ibp12s0")),
        ("MT4129 ConnectX7   Mellanox Technologies", ("", "")),
        ("Mellanox Technologies Aggregation Node", ("", "")),
    ],
)
def test_a_description_names_a_host_or_nobody(description: str, parts: tuple[str, str]) -> None:
    assert split_description(description) == parts


TCP = """x:1:2 [0] NCCL INFO NET/IB : No device found.
x:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>
x:1:2 [0] NCCL INFO Using network Socket
"""
"""Lines in the words of NVIDIA/nccl at 5067397: src/transport/net_ib/init.cc, net_socket.cc, src/init.cc."""


def test_nccls_log_proves_that_all_ports_carry_the_collective() -> None:
    log = parse_nccl(sample("nccl/roce.txt"))
    assert log.verbs_ports == (("mlx5_10:1", "mlx5_11:1"),) and log.link_layers == ("RoCE",) and not log.tcp
    assert infiniband_nccl_probe(log, ["mlx5_10:1", "mlx5_11:1"]).seen == "RoCE over mlx5_10:1, mlx5_11:1"
    half = infiniband_nccl_probe(log, ["mlx5_10:1", "mlx5_11:1", "mlx5_12:1"])
    assert not half.ok and half.seen == "2 of 3 ports used, not mlx5_12:1"
    sharp = parse_nccl(sample("nccl/infiniband-sharp.txt") + sample("nccl/infiniband-channels.txt"))
    assert sharp.verbs_ports == (("mlx5_2:1",),) and sharp.networks == ("IBext_v8",)
    assert infiniband_nccl_probe(sharp, ["mlx5_2:1"], gpudirect=True).ok
    hosts_memory = parse_nccl(sample("nccl/infiniband-sharp.txt") + sample("nccl/infiniband-without-gdr.txt"))
    assert "GPUDirect" in infiniband_nccl_probe(hosts_memory, ["mlx5_2:1"], gpudirect=True).seen
    assert infiniband_nccl_probe(hosts_memory, ["mlx5_2:1"]).ok


def test_a_launch_that_fell_back_to_tcp_is_refused_with_the_interface() -> None:
    probe = infiniband_nccl_probe(parse_nccl(TCP), ["mlx5_0:1"])
    assert not probe.ok and probe.cure
    assert probe.seen == ("network Socket; TCP through [0]eth0:10.0.0.5<0>; NCCL found no device of InfiniBand or RoCE")
    real = infiniband_nccl_probe(parse_nccl(sample("nccl/p4d-fallen-back-to-socket.txt")), ["mlx5_0:1"])
    assert not real.ok and "Socket" in real.seen
    # One process of the node fell back, the others did not.
    mixed = infiniband_nccl_probe(parse_nccl(sample("nccl/roce.txt") + TCP), ["mlx5_10:1", "mlx5_11:1"])
    assert not mixed.ok and "network Socket" in mixed.seen
    assert not infiniband_nccl_probe(parse_nccl(""), ["mlx5_0:1"]).ok


def test_the_preflight_judges_nccls_log_by_the_network_that_the_node_has() -> None:
    result = Collective((), 1.0, parse_nccl(TCP), None)
    fabric = choose([port("mlx5_0")])
    (probe, *_) = nccl_probes(PLAIN, result, 2, fabric)
    assert probe.name == "nccl_infiniband" and not probe.ok
    names = [probe.name for probe in nccl_probes(PLAIN, result, 2, choose([]))]
    assert "nccl_infiniband" not in names and "nccl_efa" not in names
    assert "nccl_infiniband" not in [probe.name for probe in nccl_probes(PLAIN, result, 1, fabric)]
    efa = PLAIN.model_copy(update={"efa_devices": 4})
    assert next(nccl_probes(efa, result, 2, choose([]))).name == "nccl_efa"
    dead = Collective((), None, None, "the others did not come")
    assert not list(nccl_probes(PLAIN, dead, 2, fabric)), "a collective that never began judges no network"


def test_a_model_that_is_down_as_a_whole_is_not_left_out_for_a_slower_one_that_works() -> None:
    compute = [port(f"mlx5_{number}", state="Down") for number in range(8)]
    choice = choose([*compute, port("mlx5_8", model="MT4123", rate=200)])
    assert len(choice.ports) == 9 and choice.left_out == {}, "NCCL would train over the storage network"


@pytest.mark.parametrize("expression", ["^mlx5_8", "=mlx5_0:1,mlx5_1:1"])
def test_whoever_names_ports_says_which_are_of_the_fabric(expression: str) -> None:
    choice = choose([port("mlx5_0"), port("mlx5_1"), port("mlx5_8", rate=200)], expression=expression)
    assert [chosen.name for chosen in choice.ports] == ["mlx5_0:1", "mlx5_1:1"]
    assert settings_probe(choice, {"NCCL_IB_HCA": expression}).verdict is Verdict.PASS


def test_nccl_is_told_its_ports_only_where_it_would_take_others_and_no_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    plain = choose([port("mlx5_0"), port("mlx5_1")])
    mixed = choose([port("mlx5_0"), port("mlx5_8", model="MT4123", rate=200)])
    assert nccl_environment(plain) == {} and nccl_environment(mixed) == {"NCCL_IB_HCA": "=mlx5_0:1"}
    file = tmp_path / ".nccl.conf"
    file.write_text("NCCL_DEBUG=INFO\n")
    assert nccl_environment(mixed) != {}
    file.write_text("NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5_8\n")
    assert nccl_environment(mixed) == {}
    file.unlink()
    file.mkdir()  # it cannot be read, and may name them
    assert nccl_environment(mixed) == {}


def test_ports_that_tell_no_state_or_may_be_plain_ethernet_judge_nothing() -> None:
    for ports in ([replace(port("mlx5_0"), state="")], [port("mlx5_0", layer=ETHERNET, state="Down")]):
        (probe,) = infiniband_probes(choose(ports), no_tool, {})
        assert probe.name == "infiniband_ports" and probe.verdict is Verdict.BLIND


def test_a_counter_that_is_full_counts_no_more_and_proves_nothing() -> None:
    full = PortErrors({("mlx5_0:1", "SymbolErrorCounter"): 2**16 - 1})
    nearly = PortErrors({("mlx5_0:1", "SymbolErrorCounter"): 2**16 - 2})
    assert errors_probe(full, full).verdict is Verdict.BLIND and "perfquery -R" in errors_probe(full, full).cure
    assert errors_probe(nearly, nearly).verdict is Verdict.PASS


def test_a_rate_with_its_name_is_read() -> None:
    text = "CA 'mlx5_0'\n\tCA type: MT4099\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
    (parsed,) = parse_ibstat(text + "\t\tRate: 40 (FDR10)\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand\n")
    assert parsed.rate_gbit_s == 40

"""Which adapters are near a node's GPUs: on a tree that a maker documents, written as the kernel shows trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.root import ROOT
from tests.unit.trainer.health.test_infiniband_settings import no_tool, port
from trainer.contract import Probe, Verdict
from trainer.health.infiniband.affinity import affinity_probes, read_gpus
from trainer.health.infiniband.settings import choose
from trainer.health.looking import Output

ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/samples/pcie/nd-h100-v5.yaml").read_text())
ADAPTERS = [f"mlx5_{number}" for number in range(len(ROWS))]
Judged = Callable[..., Probe]


def driver(addresses: Iterable[str] = (), count: int = len(ROWS)) -> Callable[..., Output]:
    """The driver's tool, which shows GPUs at these addresses, or the first ones of the rows, as it writes them."""
    shown_addresses = list(addresses) or [row["gpu"] for row in ROWS[:count]]
    gpus = "".join(f'<gpu id="0000{address.upper()}"></gpu>' for address in shown_addresses)

    def answer(*command: str, timeout_s: float = 0) -> Output:
        assert command == ("nvidia-smi", "-q", "-x")
        return Output(0, f"<nvidia_smi_log>{gpus}</nvidia_smi_log>", "")

    return answer


def device(root: Path, bridges: str, address: str, numa: int, kind: str, vendor: str) -> Path:
    folder = root / "devices" / bridges / address
    folder.mkdir(parents=True)
    for name, text in {"numa_node": numa, "class": kind, "vendor": vendor}.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    """What is said of the machine. `tree`: with its switches, as on its bare metal; else each device is alone below a
    root port. `numa`: whether the kernel knows it. `moved`: adapters that are at the other processor. `own`: the number
    of GPUs that are the pod's, the first ones."""

    def judge(
        tree: bool = True, numa: bool = True, moved: tuple[int, ...] = (), expression: str = "", own: int = len(ROWS)
    ) -> Probe:
        for number, row in enumerate(ROWS):
            side, other = row["numa"], 1 - row["numa"]
            root = f"pci{row['gpu'][:7]}/{row['switch']}/0000:{number:02x}:00.0"
            place = device(tmp_path, root, row["gpu"], side if numa else -1, "0x030200", "0x10de")
            link(tmp_path / "pci" / row["gpu"], place)
            at = other if number in moved else side
            bridges = root if tree and number not in moved else f"pci{row['adapter'][:7]}/{row['adapter'][:8]}ff.0"
            place = device(tmp_path, bridges, row["adapter"], at if numa else -1, "0x020700", "0x15b3")
            link(tmp_path / "infiniband" / ADAPTERS[number] / "device", place)
            link(tmp_path / "pci" / row["adapter"], place)
        choice = choose([port(name) for name in ADAPTERS], expression=expression)
        (probe,) = affinity_probes(choice, driver(count=own), tmp_path / "infiniband", tmp_path / "pci")
        return probe

    return judge


def test_each_gpu_shares_a_switch_with_an_adapter(judged: Judged, tmp_path: Path) -> None:
    probe = judged()
    assert probe.ok and probe.seen.startswith("8 of 8 GPUs share a switch with an adapter")
    assert [gpu.name for gpu in read_gpus(tmp_path / "pci")] == sorted(row["gpu"] for row in ROWS)


def test_a_gpu_without_a_switch_of_its_own_is_near_by_its_numa_node(judged: Judged) -> None:
    probe = judged(tree=False)
    assert probe.ok and probe.seen.startswith("0 of 8 GPUs share a switch with an adapter, 0 reach one across")


def test_a_gpu_without_a_near_adapter_among_enough_is_refused_with_place_and_cure(judged: Judged) -> None:
    probe = judged(moved=(4, 5, 6, 7))
    assert probe.verdict is Verdict.FAIL and probe.cure
    assert "GPU 0009:00:00.0 (NUMA node 1): mlx5_0; " in probe.seen and "0001:00:00.0" not in probe.seen


def test_an_adapter_that_nccl_is_kept_from_is_named_where_its_gpu_has_no_other(judged: Judged) -> None:
    probe = judged(expression="mlx5_0,mlx5_1,mlx5_2,mlx5_3")
    assert probe.verdict is Verdict.FAIL and "NCCL_IB_HCA" in probe.cure
    assert "GPU 000c:00:00.0 (NUMA node 1)" in probe.seen and "mlx5_7 at the same processor is not used" in probe.seen


def test_fewer_adapters_than_processors_are_no_fault_and_are_told(judged: Judged, tmp_path: Path) -> None:
    judged()
    few = choose([port(name) for name in ADAPTERS[:2]])
    (probe,) = affinity_probes(few, driver(), tmp_path / "infiniband", tmp_path / "pci")
    assert probe.ok and probe.seen == "2 of 8 GPUs share a switch with an adapter, 4 reach one across processors"


def test_a_tree_that_a_hypervisor_hides_judges_nothing(judged: Judged, tmp_path: Path) -> None:
    probe = judged(tree=False, numa=False)
    assert probe.verdict is Verdict.BLIND and "NCCL_TOPO_FILE" in probe.cure
    assert list(affinity_probes(choose([]), driver(), tmp_path / "infiniband", tmp_path / "pci")) == []
    assert list(affinity_probes(choose([port("mlx5_0")]), driver(), tmp_path / "infiniband", tmp_path / "none")) == []


def test_only_the_pods_own_gpus_are_judged(judged: Judged) -> None:
    probe = judged(expression="mlx5_0,mlx5_1,mlx5_2,mlx5_3", own=4)
    assert probe.ok and probe.seen.startswith("4 of 4 GPUs share a switch with an adapter")


def test_without_the_drivers_tool_nobody_knows_which_gpus_are_the_pods(judged: Judged, tmp_path: Path) -> None:
    judged(moved=(4, 5, 6, 7))
    choice = choose([port(name) for name in ADAPTERS])
    (probe,) = affinity_probes(choice, no_tool, tmp_path / "infiniband", tmp_path / "pci")
    assert probe.verdict is Verdict.BLIND and "no nvidia-smi" in probe.seen and "utility" in probe.cure


@pytest.fixture
def workstation(tmp_path: Path) -> Judged:
    """What is said of GPUs at one root port each, by their processors, and of the ports of cards: the bus address of
    each port. All cards are at processor 0."""

    def judge(gpus: tuple[int, ...], ports: tuple[str, ...]) -> Probe:
        names = [f"0000:{number + 1:02x}:00.0" for number in range(len(gpus))]
        for name, side in zip(names, gpus, strict=True):
            place = device(
                tmp_path, f"pci0000:0{side}/{name.replace(':00.0', ':01.0')}", name, side, "0x030200", "0x10de"
            )
            link(tmp_path / "pci" / name, place)
        adapters = [f"mlx5_{number}" for number in range(len(ports))]
        for adapter, address in zip(adapters, ports, strict=True):
            place = device(tmp_path, f"pci0000:30/0000:30:{address[5:7]}.0", address, 0, "0x020700", "0x15b3")
            link(tmp_path / "infiniband" / adapter / "device", place)
        choice = choose([port(name) for name in adapters])
        (probe,) = affinity_probes(choice, driver(names), tmp_path / "infiniband", tmp_path / "pci")
        return probe

    return judge


def test_two_ports_of_one_card_are_not_near_two_gpus(workstation: Judged) -> None:
    probe = workstation((0, 1), ("0000:31:00.0", "0000:31:00.1"))
    assert probe.ok and probe.seen.endswith("1 reach one across processors")


def test_two_cards_could_be_near_two_gpus(workstation: Judged) -> None:
    probe = workstation((0, 1), ("0000:31:00.0", "0000:32:00.0"))
    assert probe.verdict is Verdict.FAIL and "GPU 0000:02:00.0 (NUMA node 1)" in probe.seen


def test_one_gpu_and_one_card_leave_nothing_to_choose(workstation: Judged) -> None:
    assert workstation((1,), ("0000:31:00.0",)).ok

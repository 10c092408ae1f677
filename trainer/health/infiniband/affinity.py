"""The nearness of a node's GPUs to its adapters, by the kernel's PCIe tree (Linux' Documentation/ABI/testing/sysfs-bus-
pci): below a common switch, in one NUMA node, or across the processors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from trainer.contract import Probe
from trainer.health.gpus import TOOL_CURE, bus_addresses
from trainer.health.infiniband.findings import finding, several
from trainer.health.infiniband.ports import SYSFS
from trainer.health.infiniband.settings import PortChoice
from trainer.health.looking import CannotLook, Look, blind

PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _GPU_CLASSES = "0x10de", ("0x0300", "0x0302")
"""Vendor and classes (VGA and 3D controller) of NVIDIA's GPUs."""
_HOST_BRIDGE_AND_ROOT_PORT = 2
"""Devices whose paths share both are below one switch: a root port has one link, which only a switch divides."""
_NAME = "infiniband_affinity"
_TARGET = "each GPU has a used adapter at its own processor, where there are as many cards as GPUs"
_CURE = "name its adapter in NCCL_IB_HCA, or mend it: nvidia-smi topo -m shows the pairs"


class Nearness(IntEnum):
    """The way between two devices of a node, the best first."""

    SWITCH = 0
    NUMA_NODE = 1
    ACROSS = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class PciDevice:
    name: str
    """Address of a GPU on the bus, or an adapter's name."""
    bridges: tuple[str, ...]
    """From the host bridge down."""
    numa_node: int
    """-1: the kernel does not know it."""
    slot: str
    """Address on the bus without the function."""

    @property
    def card(self) -> tuple[str, ...]:
        """Return what the ports of one card share: the link to it, or its slot where the bus itself is the root's."""
        return self.bridges if len(self.bridges) >= _HOST_BRIDGE_AND_ROOT_PORT else (*self.bridges, self.slot)

    def nearness(self, device: PciDevice) -> Nearness:
        """Return how near the other device is."""
        shared = _HOST_BRIDGE_AND_ROOT_PORT
        if len(self.bridges) >= shared and self.bridges[:shared] == device.bridges[:shared]:
            return Nearness.SWITCH
        if self.numa_node < 0 or device.numa_node < 0:
            return Nearness.UNKNOWN
        return Nearness.NUMA_NODE if self.numa_node == device.numa_node else Nearness.ACROSS


def read_gpus(pci: Path = PCI) -> tuple[PciDevice, ...]:
    """Return NVIDIA's GPUs on the bus."""
    entries = sorted(pci.iterdir()) if pci.is_dir() else []
    return tuple(
        _device(entry.name, entry)
        for entry in entries
        if _text(entry / "vendor") == _NVIDIA and _text(entry / "class").startswith(_GPU_CLASSES)
    )


def _device(name: str, entry: Path) -> PciDevice:
    *path, address = entry.resolve().parts
    start = next((index for index, part in enumerate(path) if part.startswith("pci")), len(path))
    numa_node = int(_text(entry / "numa_node") or -1)
    return PciDevice(name, tuple(path[start:]), numa_node, address.rpartition(".")[0])


def affinity_probes(choice: PortChoice, look: Look, sysfs: Path = SYSFS, pci: Path = PCI) -> Iterator[Probe]:
    """Judge the adapters that NCCL uses by their nearness to the pod's GPUs; nothing on a node without one of both.

    The kernel shows every pod all GPUs of the node; the driver's tool shows the pod's own.
    """
    gpus = read_gpus(pci)
    names = dict.fromkeys(port.adapter for port in choice.usable)
    adapters = [_device(name, sysfs / name / "device") for name in names]
    unused_names = dict.fromkeys(
        name.partition(":")[0] for name, reason in choice.left_out.items() if "_HCA=" in reason
    )
    unused_adapters = [_device(name, sysfs / name / "device") for name in unused_names if name not in names]
    if not gpus or not adapters:
        return
    try:
        addresses = bus_addresses(look)
    except (CannotLook, ValueError) as error:
        yield blind(_NAME, f"which GPUs are this pod's is unknown: {error}", _TARGET, TOOL_CURE)
        return
    if own_gpus := [gpu for gpu in gpus if gpu.name in addresses]:
        yield _judge(own_gpus, adapters, unused_adapters)


def _judge(gpus: Sequence[PciDevice], adapters: Sequence[PciDevice], unused_adapters: Sequence[PciDevice]) -> Probe:
    ways = {gpu: _nearest(gpu, adapters) for gpu in gpus}
    unknown = [gpu.name for gpu, way in ways.items() if way is Nearness.UNKNOWN]
    if unknown:
        places = f"the kernel does not say at which processor {several(unknown)} and the adapters are"
        return blind(_NAME, places, _TARGET, "a virtual machine's maker has a file for NCCL_TOPO_FILE")
    far = [gpu for gpu, way in ways.items() if way is Nearness.ACROSS]
    cards = {adapter.card for adapter in adapters}
    could_all_be_near = len(gpus) <= len(cards) and len(cards) > 1  # a single card leaves nothing to choose
    bad = [
        f"GPU {gpu.name} (NUMA node {gpu.numa_node}): {_words(gpu, adapters, unused_adapters)}"
        for gpu in far
        if could_all_be_near or _nearest(gpu, unused_adapters) < Nearness.ACROSS
    ]
    below_switch = sum(way is Nearness.SWITCH for way in ways.values())
    fine = f"{below_switch} of {len(gpus)} GPUs share a switch with an adapter, {len(far)} reach one across processors"
    return finding(_NAME, bad, fine, _TARGET, _CURE)


def _nearest(gpu: PciDevice, adapters: Iterable[PciDevice]) -> Nearness:
    return min((gpu.nearness(adapter) for adapter in adapters), default=Nearness.UNKNOWN)


def _words(gpu: PciDevice, adapters: Sequence[PciDevice], unused_adapters: Iterable[PciDevice]) -> str:
    near_names = [adapter.name for adapter in unused_adapters if gpu.nearness(adapter) < Nearness.ACROSS]
    far_words = f"{several(adapter.name for adapter in adapters)} are at another processor"
    return f"{', '.join(near_names)} at the same processor is not used" if near_names else far_words


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""

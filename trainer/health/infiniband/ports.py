"""A node's RDMA ports, by the kernel's files and `ibstat`. EFA devices are not among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.health.infiniband.tree import split_description
from trainer.health.looking import CannotLook, Look, text_of
from trainer.health.parsers.fabric import EFA_VENDOR

SYSFS = Path("/sys/class/infiniband")
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
"""Link layers; a port of the second is RoCE."""
ROCE_V2 = "RoCE v2"


@dataclass(frozen=True)
class Port:
    adapter: str
    number: int
    state: str
    """`Active`, `Down`; before a subnet manager has configured it `Init` or `Initializing`, then `Armed`."""
    physical_state: str
    """`LinkUp`, `Polling` (nothing answers at the cable's other end), `Disabled`, …."""
    rate_gbit_s: float
    layer: str
    model: str = ""
    sm_lid: int | None = None
    """The subnet manager's address; 0: none has configured the port. None: unknown."""
    interface: str = ""
    gids: Mapping[int, str] = field(default_factory=dict)
    """RoCE's addresses: index -> `IB/RoCE v1` or `RoCE v2`."""

    @property
    def name(self) -> str:
        """Return the name in NCCL's words: `mlx5_0:1`."""
        return f"{self.adapter}:{self.number}"

    @property
    def active(self) -> bool:
        return self.state == "Active"

    @property
    def waits_for_manager(self) -> bool:
        is_configured = self.active and self.sm_lid != 0
        return self.layer == INFINIBAND and self.state != "Down" and not is_configured


def parse_ibstat(text: str) -> tuple[Port, ...]:
    """Parse `ibstat` (infiniband-diags); a port without a state is left out."""
    ports: list[Port] = []
    for block in re.split(r"^CA '", text, flags=re.MULTILINE)[1:]:
        adapter, _, body = block.partition("'")
        head, *parts = re.split(r"^\s*Port (\d+):\s*$", body, flags=re.MULTILINE)
        model = _fields(head).get("CA type", "")
        for number, part in zip(parts[::2], parts[1::2], strict=True):
            fields = _fields(part)
            if state := fields.get("State"):
                # libibumad says IB where an old kernel names no link layer.
                layer = fields.get("Link layer", "").replace("IB", INFINIBAND)
                rate, physical = float(fields.get("Rate", "0").partition(" ")[0]), fields.get("Physical state", "")
                sm_lid = int(fields["SM lid"]) if "SM lid" in fields else None
                ports.append(Port(adapter, int(number), state, physical, rate, layer, model, sm_lid))
    return tuple(ports)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.strip().partition(": ") for line in text.splitlines())
    return {key: value.strip() for key, separator, value in pairs if separator}


def read_ports(look: Look, sysfs: Path = SYSFS) -> tuple[Port, ...]:
    """Return the node's ports by the kernel's files, with their state by `ibstat` where the image has it."""
    ports = sorted(_ports_of_sysfs(sysfs), key=lambda port: (_natural(port.adapter), port.number))
    try:
        reports = {port.name: port for port in parse_ibstat(text_of(look("ibstat"), "ibstat"))} if ports else {}
    except (CannotLook, ValueError):  # the kernel's files say the same
        reports = {}
    return tuple(_with_report(port, reports[port.name]) if port.name in reports else port for port in ports)


def _with_report(port: Port, report: Port) -> Port:
    # Old kernels have no file of the link layer.
    layer = port.layer or report.layer
    return replace(report, layer=layer, model=port.model, interface=port.interface, gids=port.gids)


def _ports_of_sysfs(sysfs: Path) -> Iterator[Port]:
    """Yield the ports by Linux' Documentation/ABI/stable/sysfs-class-infiniband."""
    for device in sorted(sysfs.iterdir()) if sysfs.is_dir() else ():
        if _word(device / "device" / "vendor") == EFA_VENDOR:
            continue
        interfaces = sorted(entry.name for entry in (device / "device" / "net").glob("*"))
        for folder in sorted(device.glob("ports/*")):
            sm_lid = _word(folder / "sm_lid")
            yield Port(
                adapter=device.name,
                number=int(folder.name),
                state=_word(folder / "state").rpartition(": ")[2].title(),
                physical_state=_word(folder / "phys_state").rpartition(": ")[2],
                rate_gbit_s=float(_word(folder / "rate").partition(" ")[0] or 0),
                layer=_word(folder / "link_layer"),
                model=_word(device / "hca_type"),
                sm_lid=int(sm_lid, 16) if sm_lid else None,
                interface=interfaces[0] if interfaces else "",
                gids=dict(_gids(folder)),
            )


def _gids(port: Path) -> Iterator[tuple[int, str]]:
    for file in sorted((port / "gid_attrs" / "types").glob("*"), key=lambda file: int(file.name)):
        # An index that is not in use has no type, or the address zero.
        if (kind := _word(file)) and _word(port / "gids" / file.name).strip("0:"):
            yield int(file.name), kind


def host_of(sysfs: Path = SYSFS) -> str:
    """Return this host's name on the fabric, as rdma-ndd wrote it into its adapters; empty if none has one."""
    texts = (_word(device / "node_desc") for device in (sorted(sysfs.iterdir()) if sysfs.is_dir() else ()))
    return next((host for host, _ in map(split_description, texts) if host), "")


def default_interface(routes: Path = Path("/proc/net/route")) -> str:
    """Return the interface of the default route; empty if unknown."""
    for line in _word(routes).splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            return fields[0]
    return ""


def _word(file: Path) -> str:
    """Return a file's text; empty if it is missing or refuses, as an unused index of a table does."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _natural(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))

"""Parsers of `fi_info`'s EFA devices and of NCCL's log, which shows what NCCL uses: EFA, InfiniBand, RoCE or TCP."""

from __future__ import annotations

import re
from dataclasses import dataclass

EFA_VENDOR = "0x1d0f"
"""Amazon's PCI vendor number."""

_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)(?:, fabric is (\S+))?(?: \(found (\d+) nics\))?")
_PLUGIN = re.compile(r"NET/OFI (?:Initializing|Using) aws-ofi-nccl (\S+)")
_NCCL = re.compile(r"NCCL version (\d[\w.]*?)(?:\+cuda([\d.]+))?\s*$")
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$")
_VERBS = re.compile(r"NCCL INFO NET/IB : Using((?: \[\d+\]\S+)+)")
_VERBS_PORT = re.compile(r"\[\d+\]([^\s:/]+:\d+)[^\s/]*/(\w+)")
_TCP = re.compile(r"NCCL INFO NET/Socket : Using((?: \[\d+\]\S+)+)")
_NO_VERBS = "NET/IB : No device found"
_CHANNEL = re.compile(r"\[(?:send|receive)\] via NET/([^/]+)/(\d+)(\(\d+\))?(/GDRDMA)?")


@dataclass(frozen=True)
class NcclLog:
    nccl: str | None
    plugin: str | None
    """Version of aws-ofi-nccl."""
    providers: tuple[str, ...]
    """Each provider once, in the order of the log."""
    fabrics: tuple[str, ...]
    nics: tuple[int, ...]
    """Each number of found devices once, ascending: one number when all processes agree."""
    networks: tuple[str, ...]
    """Networks that NCCL uses: `Libfabric`, `AWS Libfabric`, `Socket`, `IB`."""
    channels: dict[str, int]
    """Network of a channel between nodes (`Libfabric`, `Socket`) -> number of its ends."""
    gdr_channels: int
    """Ends that move data between NIC and GPU memory directly."""
    verbs_ports: tuple[tuple[str, ...], ...] = ()
    """InfiniBand's and RoCE's ports that a process uses, such as `mlx5_0:1`: each list once, sorted; one list when all
    processes agree."""
    link_layers: tuple[str, ...] = ()
    """`IB` or `RoCE`, each once."""
    tcp: tuple[str, ...] = ()
    """Interfaces of `NET/Socket`, each once with its address."""
    without_verbs: bool = False
    """A process has found no device of InfiniBand or RoCE."""


def parse_nccl(text: str) -> NcclLog:
    """Parse the log of one or more processes with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET."""
    providers = [match.groups() for match in map(_PROVIDER.search, text.splitlines()) if match]
    # NVIDIA/nccl, src/transport/net_ib/init.cc at 5067397: [number]device:port[:rail:plane]/layer.
    verbs = [_VERBS_PORT.findall(match.group(1)) for match in map(_VERBS.search, text.splitlines()) if match]
    channels: dict[str, int] = {}
    direct = 0
    for line in text.splitlines():
        if match := _CHANNEL.search(line):
            channels[match.group(1)] = channels.get(match.group(1), 0) + 1
            direct += match.group(4) is not None
    return NcclLog(
        nccl=_first_match(_NCCL, text),
        plugin=_first_match(_PLUGIN, text),
        providers=tuple(dict.fromkeys(provider for provider, _, _ in providers)),
        fabrics=tuple(dict.fromkeys(fabric for _, fabric, _ in providers if fabric)),
        nics=tuple(sorted({int(number) for _, _, number in providers if number})),
        networks=tuple(dict.fromkeys(m.group(1) for m in map(_NETWORK.search, text.splitlines()) if m)),
        channels=channels,
        gdr_channels=direct,
        verbs_ports=tuple(sorted({tuple(sorted(port for port, _ in row)) for row in verbs})),
        link_layers=tuple(dict.fromkeys(layer for row in verbs for _, layer in row)),
        tcp=tuple(dict.fromkeys(m.group(1).strip() for m in map(_TCP.search, text.splitlines()) if m)),
        without_verbs=_NO_VERBS in text,
    )


def parse_fi_info(text: str) -> tuple[str, ...]:
    """Return the EFA devices of `fi_info -p efa -t FI_EP_RDM`, each once; newer versions list them per fabric."""
    provider, devices = "", dict[str, None]()
    for line in text.splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "provider":
            provider = value.strip()
        elif key == "domain" and provider == "efa":
            devices[re.sub(r"-(rdm|dgrm)$", "", value.strip())] = None
    return tuple(devices)


def _first_match(pattern: re.Pattern[str], text: str) -> str | None:
    return next((match.group(1) for match in map(pattern.search, text.splitlines()) if match), None)

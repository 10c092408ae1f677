"""Parser of the kernel log: Xid errors of GPUs, SXid errors of NVSwitches, and lost GPUs.

Each Xid's resolution is NVIDIA's; the infrastructure's catalogue has them, with the source. SXid lines state whether
they are fatal (Fabric Manager User Guide, "SXid Errors").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Resolution(StrEnum):
    """NVIDIA's immediate action."""

    RESTART_APP = "the application's error, or contained in it"
    IGNORE = "informational"
    RESET_GPU = "the GPU must be reset"
    RESTART_MACHINE = "the machine must be restarted"
    NVLINK = "an NVLink is at fault"
    MEMORY = "memory that cannot be corrected"
    SUPPORT = "hardware that support must look at"
    UNKNOWN = "not in the catalogue"


FATAL = frozenset(
    {Resolution.RESET_GPU, Resolution.RESTART_MACHINE, Resolution.NVLINK, Resolution.MEMORY, Resolution.SUPPORT}
)
"""A node with one of these is replaced: nobody resets or repairs it on EC2."""

NVLINK5 = range(144, 151)
"""Xids whose line says `Fatal` or `Nonfatal`."""
RECOVERY_CHANGED = 154
"""Xid whose line names the recovery that the GPU now needs."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),\s*(.*)")
_GONE = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)")


@dataclass(frozen=True)
class Event:
    kind: str
    """`Xid`, `SXid`, or `lost` for a GPU that fell off the bus without an Xid."""
    device: str
    """PCI address."""
    code: int
    message: str
    resolution: Resolution

    @property
    def fatal(self) -> bool:
        return self.resolution in FATAL

    def __str__(self) -> str:
        return f"{self.kind} {self.code} on {self.device} ({self.resolution.value})"


def parse(text: str, xids: Mapping[str, Iterable[int]]) -> tuple[Event, ...]:
    """Return all events of a kernel log (`dmesg`, `journalctl -k`), in its order, with repetitions. `xids`: name of a
    `Resolution` in small letters -> Xids."""
    resolutions = {code: Resolution[name.upper()] for name, codes in xids.items() for code in codes}
    events: list[Event] = []
    gpu = ""
    for line in text.splitlines():
        if match := _SXID.search(line):
            device, code, message = match.groups()
            fatal = re.match(r"Fatal", message) is not None
            events.append(Event("SXid", device, int(code), message, Resolution.NVLINK if fatal else Resolution.IGNORE))
        elif match := _XID.search(line):
            device, code, message = match.groups()
            events.append(Event("Xid", device, int(code), message, resolution(int(code), message, resolutions)))
        elif match := _GONE.search(line):
            gpu = match.group(1)
        elif gpu and "fallen off the bus" in line:
            # Some drivers report it over several lines and without an Xid (NVIDIA/NVSentinel#155).
            events.append(Event("lost", gpu, 79, "fallen off the bus", Resolution.RESTART_MACHINE))
            gpu = ""
    return tuple(events)


def resolution(code: int, message: str, resolutions: Mapping[int, Resolution]) -> Resolution:
    """Return NVIDIA's immediate action for an Xid with this text."""
    if code in NVLINK5:
        return Resolution.NVLINK if re.search(r"\bFatal\b", message) else Resolution.IGNORE
    if code == RECOVERY_CHANGED:
        needs = re.search(r"to 0x[0-9a-fA-F]+ \(([^)]*)\)", message)
        return Resolution.IGNORE if needs is not None and needs.group(1) == "None" else Resolution.RESET_GPU
    return resolutions.get(code, Resolution.UNKNOWN)

"""Parser of the kernel log: Xid errors of GPUs, SXid errors of NVSwitches, and lost GPUs.

Each Xid's resolution is from NVIDIA's catalogue for Ampere and newer,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, read on 2026-11-21 in leptonai/gpud's copy of
2025-10-29. SXid lines state whether they are fatal (Fabric Manager User Guide, "SXid Errors").
"""

from __future__ import annotations

import re
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

_CODES: dict[Resolution, tuple[int, ...]] = {
    Resolution.RESTART_APP: (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85,
                             86, 88, 89, 94, 96, 97, 98, 99, *range(100, 106), *range(126, 136), 139),
    # 63, 92, 157, 160 and 161: nvidia-smi reports what is pending or has failed.
    Resolution.IGNORE: (14, 37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160,
                        161, 162, 163),
    Resolution.RESET_GPU: (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    # 162 to 172 have no resolution in the catalogue yet; these follow their descriptions.
    Resolution.RESTART_MACHINE: (79, 151, 167),
    Resolution.NVLINK: (74,),
    Resolution.MEMORY: (48, 171, 172),
    Resolution.SUPPORT: (54, 142, 168, 169),
}  # fmt: skip
RESOLUTIONS: dict[int, Resolution] = {code: how for how, codes in _CODES.items() for code in codes}
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


def parse(text: str) -> tuple[Event, ...]:
    """Return all events of a kernel log (`dmesg`, `journalctl -k`), in its order, with repetitions."""
    found: list[Event] = []
    lost = ""
    for line in text.splitlines():
        if match := _SXID.search(line):
            device, code, message = match.groups()
            fatal = re.match(r"Fatal", message) is not None
            found.append(Event("SXid", device, int(code), message, Resolution.NVLINK if fatal else Resolution.IGNORE))
        elif match := _XID.search(line):
            device, code, message = match.groups()
            found.append(Event("Xid", device, int(code), message, resolution(int(code), message)))
        elif match := _GONE.search(line):
            lost = match.group(1)
        elif lost and "fallen off the bus" in line:
            # Some drivers report it over several lines and without an Xid (NVIDIA/NVSentinel#155).
            found.append(Event("lost", lost, 79, "fallen off the bus", Resolution.RESTART_MACHINE))
            lost = ""
    return tuple(found)


def resolution(code: int, message: str) -> Resolution:
    """Return NVIDIA's immediate action for an Xid with this text."""
    if code in NVLINK5:
        return Resolution.NVLINK if re.search(r"\bFatal\b", message) else Resolution.IGNORE
    if code == RECOVERY_CHANGED:
        needs = re.search(r"to 0x[0-9a-fA-F]+ \(([^)]*)\)", message)
        return Resolution.IGNORE if needs is not None and needs.group(1) == "None" else Resolution.RESET_GPU
    return RESOLUTIONS.get(code, Resolution.UNKNOWN)

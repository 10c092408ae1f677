"""Find a site's processes by their command line, network and environment: a PID may be reused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SUPERVISOR = "infra.rehearsal.site.supervisor"
FOLDER_VARIABLE = "BIVOUAC_SITE_FOLDER"
"""Holds the site's folder, in the environment of every process that entered the site."""


def boot() -> str:
    """Return the boot ID; process numbers of another boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def supervisors(folder: Path) -> tuple[int, ...]:
    """Return a site's outer process and its PID 1, even if their starter died before it recorded them."""
    arguments = [b"-m", SUPERVISOR.encode(), os.fsencode(folder)]
    pids = []
    for pid in _pids():
        argv = _read(pid, "cmdline").split(b"\0")
        if any(argv[offset : offset + 3] == arguments for offset in range(len(argv) - 2)):
            pids.append(pid)
    return tuple(pids)


def processes_inside(folder: Path, inner_pid: int | None) -> tuple[int, ...]:
    """Return the processes that entered a site from outside, by its network or its folder; never our ancestors."""
    marker, ancestors = f"{FOLDER_VARIABLE}=".encode() + os.fsencode(folder), _ancestry()
    network = None if inner_pid is None else _network(inner_pid)
    if network == _network(os.getpid()):
        network = None
    return tuple(
        pid
        for pid in _pids()
        if pid not in ancestors
        and ((network is not None and _network(pid) == network) or marker in _read(pid, "environ").split(b"\0"))
    )


def end(pids: tuple[int, ...]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _read(pid: int, file_name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file_name}").read_bytes()
    except OSError:
        return b""


def _network(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _ancestry() -> set[int]:
    pid, ancestors = os.getpid(), set[int]()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return ancestors

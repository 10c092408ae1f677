"""The processes below the supervisor: what the job started, and what it left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from typing import Container, NamedTuple

_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of <sys/prctl.h>."""
_LESS = 10
"""A tenth of the job's share of a processor that both want. Linux keeps it by thread."""
_STUBBORN_S, _PAUSE_S = 20.0, 0.01
"""A killed process that has not ended after so long waits for its disk or its device."""
_PR_SET_PDEATHSIG = 1


class Process(NamedTuple):
    parent: int
    state: str
    """Z: it has ended, and nobody has asked how."""
    seconds: float
    """Its processor time."""


def adopt() -> None:
    """Become the parent of what the job leaves behind: a daemon that forks twice and opens a session of its own stays
    below the supervisor. In a container the supervisor is process 1, and is that anyway."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def give_way() -> None:
    """Let the job run before this thread and those that it starts from here on."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LESS)


def processes() -> dict[int, Process]:
    """Return all processes, by their ids. Raises `OSError` where one cannot be seen: it may live."""
    tick, by_pid = os.sysconf("SC_CLK_TCK"), {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                file = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has just ended, or is another user's
                continue
            try:
                fields = os.read(file, 4096).rpartition(b")")[2].split(None, 13)
            except ProcessLookupError:
                continue
            finally:
                os.close(file)
            state = fields[0].decode()
            by_pid[int(name)] = Process(int(fields[1]), state, (int(fields[11]) + int(fields[12])) / tick)
    return by_pid


def descendants_of(root: int, by_pid: dict[int, Process]) -> set[int]:
    """Return the descendants of a process, without itself."""
    descendants: set[int] = set()
    while (
        new_pids := {pid for pid, process in by_pid.items() if process.parent == root or process.parent in descendants}
        - descendants
    ):
        descendants |= new_pids
    return descendants


def bury(by_pid: dict[int, Process], launcher: int | None) -> None:
    """Take the ends of adopted children, which would fill the table of processes. The launcher's end is not theirs."""
    for pid, process in by_pid.items():
        if process.parent == os.getpid() and process.state == "Z" and pid != launcher:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_all(launcher: int | None, spared_pids: Container[int] = ()) -> list[int]:
    """Kill all processes below this one but `spared_pids`, also those that they start meanwhile. Return those that do
    not end. Raises `OSError` where they cannot be seen in that time."""
    deadline = time.monotonic() + _STUBBORN_S
    while True:
        try:
            by_pid = processes()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
            continue
        descendants = descendants_of(os.getpid(), by_pid)
        left = sorted(pid for pid in descendants if by_pid[pid].state != "Z" and pid not in spared_pids)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        bury(by_pid, launcher)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_PAUSE_S)


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that forked it ends; an earlier end is missed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

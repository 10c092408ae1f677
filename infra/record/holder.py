"""The holder of a lease, identified precisely enough to prove that a holder on this machine is gone."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

from infra.record.process_start import start_ticks as start_ticks
from trainer.contract.frozen import Frozen


def _user() -> str:
    """Return the user's name, or the number if the machine has no name for it, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


class Holder(Frozen):
    user: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int

    @classmethod
    def this_process(cls) -> Holder:
        pid = os.getpid()
        return cls(
            user=_user(),
            host=socket.gethostname(),
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            start_ticks=start_ticks(pid) or 0,
        )

    def provably_gone(self) -> bool:
        """Return True only if this is the holder's machine and PID namespace and its process does not exist."""
        try:
            same_machine = self.boot_id == _boot_id() and self.pid_namespace == _pid_namespace() and self.boot_id != ""
            return same_machine and start_ticks(self.pid) != self.start_ticks
        except OSError:  # what cannot be seen may live
            return False

    def __str__(self) -> str:
        return f"{self.user}@{self.host} (process {self.pid})"


UNKNOWN = Holder(
    user="somebody", host="a lease that cannot be read", boot_id="", pid_namespace="", pid=0, start_ticks=0
)


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""

"""The leash: a process that ends a driver's engine when the driver's lease no longer covers it.

A driver that is killed, stopped (SIGSTOP, a closed lid) or cut off from S3 does not renew its lease; yet its engine
would go on changing the account beside the next driver's. `command.py` starts one leash for each engine and writes to
its standard input, line by line, the moment at which the lease ends, in seconds of CLOCK_BOOTTIME. When that moment
passes, or the input closes without `done`, the leash ends every process with the engine's mark in its environment:
first gently, so that Pulumi finishes what is under way and saves its state, then, after `BOUND_S`, by force. It goes on
until the driver lets go: one that was stopped just before it starts its engine does so when it wakes.

So no engine lives longer than its lease plus `BOUND_S`. Run as a script by a bare interpreter: imports the standard
library only.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

MARK = "BIVOUAC_ENGINE"
"""Environment variable that marks an engine and its children."""
BOUND_S = 20.0
"""Time from the first gentle signal to force."""
_PLUGINS_S = 2.0
"""Time for plugins to end after their engine."""
_LOOK_S = 0.1
_ENDED = (FileNotFoundError, ProcessLookupError)
"""How /proc says that a process has ended meanwhile."""


def now() -> float:
    """Return seconds on a clock that runs while the machine sleeps and is the same for all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def marked_processes(mark: str | None = None) -> dict[int, str]:
    """Return the living processes with a mark (this one, or any): pid -> mark. Raises `OSError` where one cannot be
    seen: it may live."""
    marks, error = _look(mark)
    if error is not None:
        raise error
    return marks


def _look(mark: str | None) -> tuple[dict[int, str], OSError | None]:
    """Return the living processes that can be seen, and an error where one cannot be."""
    marks, unseen = dict[int, str](), None
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        return marks, error
    for pid in pids:
        try:
            value = mark_of(pid)
            if value is not None and (mark is None or value == mark) and not _zombie(pid):
                marks[pid] = value
        except _ENDED:
            continue
        except OSError as error:
            unseen = error
    return marks, unseen


def mark_of(pid: int) -> str | None:
    """Return the mark of a process, None without one or when it may not be read."""
    with suppress(*_ENDED, PermissionError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == MARK.encode():
                return value.decode(errors="replace")
    return None


def end(mark: str, bound_s: float = BOUND_S) -> None:
    """End all processes with this mark: the engine by an interrupt, then its plugins, all by force after the bound."""
    bound, plugins_end, is_asked = now() + bound_s, None, False
    while True:
        living, unseen = _look(mark)
        if not living:
            if unseen is None:
                return
            time.sleep(_LOOK_S)
            continue
        try:
            roots = _roots(living)
            engines = [pid for pid in roots if _is_engine(pid)]
        except OSError:  # each may be the engine
            roots = engines = list(living)
        if not is_asked:
            is_asked = True
            for pid in roots:
                _send(pid, signal.SIGINT)
            continue
        if not engines and plugins_end is None:
            plugins_end = now() + _PLUGINS_S
        if now() > bound or (plugins_end is not None and now() > plugins_end):
            for pid in living:
                _send(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _roots(living: dict[int, str]) -> list[int]:
    """Return those that no other marked process started."""
    return [pid for pid in living if _parent(pid) not in living]


def _is_engine(pid: int) -> bool:
    """Return whether it is `pulumi` itself; a plugin is called `pulumi-...`, or is an interpreter."""
    with suppress(*_ENDED), open(f"/proc/{pid}/comm") as file:
        return file.read().strip() == "pulumi"
    return False


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _zombie(pid: int) -> bool:
    fields = _stat(pid)
    return not fields or fields[0] in ("Z", "X")


def _stat(pid: int) -> list[str]:
    with suppress(*_ENDED), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main(mark: str) -> int:
    """Hold the leash until `done` comes or the engine has to be ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    deadline, tail, is_over, is_held = now() + BOUND_S, b"", False, True
    while is_held:
        ready, _, _ = select.select([0], [], [], _LOOK_S if is_over else max(0.0, deadline - now()))
        if ready:
            data = os.read(0, 4096)
            *lines, tail = (tail + data).split(b"\n")
            is_held = bool(data) and b"done" not in lines
            if not is_over and not is_held and data:
                return 0
            deadline = next((float(line) for line in reversed(lines) if line != b"done"), deadline)
        is_over = is_over or not is_held or now() >= deadline
        if is_over:
            end(mark)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

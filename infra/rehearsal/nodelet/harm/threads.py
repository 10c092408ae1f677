"""Stops threads of a process. A signal stops whole processes only, so the threads are traced.

Run as `python -I -S threads.py PID SECONDS`: all threads but the first stop, which waits for them for ever then, as in
a deadlock. Run as `python -I -S threads.py PID SECONDS NAME HELD_S`, the threads that the kernel knows by this name
stop for HELD_S again and again, as where what they read comes slowly. Between two such times they run until they
sleep: a thread that is stopped at work may hold a lock that all others need, and the process would stand still.
Standard library only. They go on when this ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

_SEIZE, _INTERRUPT, _CONTINUE, _ALL_KINDS = 0x4206, 0x4207, 7, 0x40000000  # ptrace(2), waitpid(2)
_LOOK_S = 0.01
libc = ctypes.CDLL(None, use_errno=True)


def trace(request: int, thread: int) -> None:
    if libc.ptrace(request, thread, None, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace of thread {thread}: {os.strerror(code)}")


def threads_of(pid: int, name: str) -> list[int]:
    """Return all threads but the first, or those of a name. Raises `OSError` where there is none of it."""
    tasks = {int(path.name): path for path in Path(f"/proc/{pid}/task").iterdir()}
    if not name:
        return sorted(tasks.keys() - {pid})
    threads = [number for number, path in sorted(tasks.items()) if (path / "comm").read_text().strip() == name]
    if not threads:
        raise OSError(f"process {pid} has no thread of the name {name}")
    return threads


def stop(thread: int) -> None:
    trace(_INTERRUPT, thread)
    os.waitpid(thread, _ALL_KINDS)


def is_busy(pid: int, thread: int) -> bool:
    """Return whether it neither sleeps nor has ended: one that was killed stays until its tracer ends."""
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] not in ("S", "Z", "X")


def run_until_asleep(pid: int, threads: list[int]) -> None:
    for thread in threads:
        trace(_CONTINUE, thread)
    for thread in threads:
        time.sleep(_LOOK_S)
        while is_busy(pid, thread):
            time.sleep(_LOOK_S)
        stop(thread)


def main(pid: int, seconds: float, name: str, held_s: float) -> None:
    threads = threads_of(pid, name)
    for thread in threads:
        trace(_SEIZE, thread)
        stop(thread)
    print("stopped", flush=True)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            # A thread that is killed meanwhile is reaped, or its process could not end.
            os.waitpid(-1, os.WNOHANG | _ALL_KINDS)
            if held_s:
                time.sleep(held_s)
                run_until_asleep(pid, threads)
        except (ChildProcessError, FileNotFoundError, ProcessLookupError):
            return
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    name, held_s = sys.argv[3:] or ("", "0")
    main(int(sys.argv[1]), float(sys.argv[2]), name, float(held_s))

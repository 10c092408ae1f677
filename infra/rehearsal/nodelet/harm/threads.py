"""Stops all threads of a process but its first, which then waits for them for ever, as in a deadlock. A signal stops
whole processes only, so they are traced.

Run as `python -I -S threads.py PID SECONDS`. Standard library only. They go on when this ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

_SEIZE, _INTERRUPT, _ALL_KINDS = 0x4206, 0x4207, 0x40000000  # ptrace(2), waitpid(2)
libc = ctypes.CDLL(None, use_errno=True)


def trace(request: int, thread: int) -> None:
    if libc.ptrace(request, thread, None, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace of thread {thread}: {os.strerror(code)}")


def main(pid: int, seconds: float) -> None:
    for thread in sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()):
        if thread != pid:
            trace(_SEIZE, thread)
            trace(_INTERRUPT, thread)
            os.waitpid(thread, _ALL_KINDS)
    print("stopped", flush=True)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            # A thread that is killed meanwhile is reaped, or its process could not end.
            os.waitpid(-1, os.WNOHANG | _ALL_KINDS)
        except ChildProcessError:
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))

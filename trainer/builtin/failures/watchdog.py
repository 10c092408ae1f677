"""What torch's NCCL watchdog said in a rank's log before it aborted the process."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 256 * 1024
_OWN = re.compile(r"CUDA error|ncclUnhandledCudaError|watchdog got stuck for|Xid|uncorrectable ECC", re.IGNORECASE)
"""The watchdog also aborts a rank whose own GPU or driver failed: that is no lost peer."""
_OF_OTHERS = re.compile(
    r"Watchdog caught collective operation timeout|Received a dump signal due to a collective timeout"
    r"|failure detected by watchdog at work|ncclRemoteError|ncclSystemError"
)
_ABORTS = re.compile(r"watchdog|terminate called|taking the entire process down", re.IGNORECASE)


def waited_in_vain(log: str) -> str:
    """Return the watchdog's line if it ended the rank because an exchange with others did not end; else empty."""
    lines = [line for line in log.splitlines() if _OWN.search(line) or _OF_OTHERS.search(line)]
    if any(_OWN.search(line) for line in lines):
        return ""
    return next((line.strip() for line in lines if _OF_OTHERS.search(line)), "")


def own_failure(log: str) -> str:
    """Return the line by which a rank's own GPU or driver failed; empty when none is known."""
    lines = log.splitlines()
    own = [line.strip() for line in lines if _OWN.search(line)]
    return next((line for line in own if _ABORTS.search(line)), own[0] if own else "")


def tail(logs: Path, rank: int) -> str:
    """Return the end of a rank's newest log; empty when there is none."""
    try:
        found = [*logs.glob(f"rank-{rank}.log"), *logs.glob(f"rank-{rank}-*.log")]
        newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return ""
        with newest.open("rb") as file:
            file.seek(max(0, newest.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

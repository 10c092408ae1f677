"""How a training pod ends: the one table of exit codes, reasons, and what they mean for a restart in place. Standard
library and Python 3.8 only, as `trainer.contract.tree`."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_VARIABLE = "BIVOUAC_TERMINATION_LOG"
"""Names another file than a pod's."""
TERMINATION_LIMIT_BYTES = 4096
"""The kubelet keeps no more of a termination message."""


class ExitCode(IntEnum):
    """Exit codes of the supervisor and of the built-in trainer's agent, after sysexits; a death by signal keeps its
    signal."""

    DONE = 0
    USER = 64
    DATA = 65
    INTERNAL = 70
    SICK = 71
    """This node computes wrongly or slowly, by the watch: it is to be replaced."""
    STORAGE = 74
    INTERRUPTED = 75
    """Interrupted, with a committed checkpoint."""
    NUMERIC = 76


REASONS: dict[int, str] = {
    ExitCode.DONE: "done",
    ExitCode.USER: "user",
    ExitCode.DATA: "data",
    ExitCode.STORAGE: "storage",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.NUMERIC: "numeric",
}
"""Reason of an end by a code of its own, unless one of those below is known."""
PEER_LOST = "peer-lost"
"""Another rank's end caused it: the steward does not look for the cause here."""
NOTHING_SOUND = "nothing-sound"
"""The shared tier holds checkpoints, and not one of them can be used: the steward then brings back a copy from S3, if
there is one."""
ROLLED_BACK = "rolled-back"
"""The watch goes back to an earlier checkpoint; no node is at fault."""
OF_OTHERS = frozenset({PEER_LOST, "interrupted", "fenced", ROLLED_BACK})
"""Reasons of ends that follow from the end of another rank or of the job, or from no rank."""
MEMORY, OPEN_FILES = "memory", "open-files"
OF_LIMITS: dict[int, str] = {errno.ENOMEM: MEMORY, errno.EMFILE: OPEN_FILES, errno.ENFILE: OPEN_FILES}
"""Number of an error -> reason of the end: the kernel has refused memory or another open file, so that neither a disk
nor a file is at fault."""
RESTARTABLE = ("signal", "internal", PEER_LOST, "stopped", MEMORY, OPEN_FILES)
"""Reasons after which a restart in place may go on. Not here: what a retry repeats (config, data, numeric), what a disk
or the watch has caused, and what the next attempt alone can mend (a fence, a roll-back, nothing sound)."""
HARDWARE_SIGNALS = (signal.SIGBUS, signal.SIGILL)
"""A page that the memory or the disk lost, and an instruction that the processor does not know."""


def fitting(texts: Iterable[str]) -> str:
    """Return the first text that a termination message has room for, else the last one."""
    text = ""
    for text in texts:
        if len(text.encode(errors="replace")) <= TERMINATION_LIMIT_BYTES:
            break
    return text


def write_termination(message: str) -> None:
    """Write the file that the kubelet reads after the container's end; whoever writes a longer one than it keeps has
    cut it before. The exit code matters more than the message."""
    try:
        path = Path(os.environ.get(TERMINATION_LOG_VARIABLE, TERMINATION_LOG))
        path.write_bytes(message.encode(errors="replace")[:TERMINATION_LIMIT_BYTES])
    except OSError as error:
        print(f"the termination message could not be written: {error}", file=sys.stderr)

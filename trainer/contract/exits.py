"""How a training pod ends: the one table of exit codes, of reasons with the errors that have them, and of what they
mean for a restart in place. Standard library and Python 3.8 only, as `trainer.contract.tree`."""

from __future__ import annotations

import errno
import os
import re
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
MEMORY, OPEN_FILES, PROCESSES = "memory", "open-files", "processes"
"""A limit refused it."""
GPU = "gpu"
"""This rank's own GPU or its driver failed: it may be broken."""
LIMIT_NUMBERS = {
    errno.ENOMEM: MEMORY,
    errno.EMFILE: OPEN_FILES,
    errno.ENFILE: OPEN_FILES,
    errno.EAGAIN: PROCESSES,
}
"""Number of an error -> reason of the end: the kernel has refused memory, another open file, or another process, so
that neither a disk nor a file is at fault. EAGAIN is a fork's while it names no file: a lock's names one."""
LIMITS = frozenset(LIMIT_NUMBERS.values())
GPU_MEMORY = r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
_HOST_MEMORY = (
    r"(?:cannot|can't|unable to) allocate memory(?! in static TLS)|out of (?:shared )?memory|not enough memory"
    r"|MemoryError|\bbad_alloc\b|error while creating shared memory segment"
)
"""/dev/shm is memory too: what NCCL and torch's workers share lies there. A library's block of thread-local storage has
a fixed size, whatever memory there is."""
TEXTS = {
    reason: re.compile(pattern, re.IGNORECASE)
    for reason, pattern in (
        (MEMORY, f"{GPU_MEMORY}|{_HOST_MEMORY}"),
        (OPEN_FILES, r"too many open files|received \d+ items of ancdata"),
        (PROCESSES, r"can't start new thread|thread creation failed|pthread_create failed|fork: retry"
                    r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable(?!:)"),
        (GPU, r"cuda (?:driver )?error|cuda failure|ncclUnhandledCudaError|cudnn|cublas|nvml|\bxid\b|\becc\b"
              r"|uncorrectable"),
    )
}  # fmt: skip
"""The first one that is found counts: an allocation that CUDA refuses is also an error of CUDA. A descriptor that the
receiver has no room for is missing from the message that brings it ("ancdata")."""
RESTARTABLE = ("signal", "internal", PEER_LOST, "stopped", MEMORY, OPEN_FILES, PROCESSES)
"""Reasons after which a restart in place may go on. Not here: what a retry repeats (config, data, numeric), what a
disk, a GPU or the watch has caused, and what the next attempt alone can mend (a fence, a roll-back, nothing sound)."""
HARDWARE_SIGNALS = (signal.SIGBUS, signal.SIGILL)
"""A page that the memory or the disk lost, and an instruction that the processor does not know."""


def cause_in(text: str) -> str:
    """Return the reason that a text names; empty where it names none."""
    return next((reason for reason, pattern in TEXTS.items() if pattern.search(text)), "")


def limit_of(error: BaseException) -> str:
    """Return the reason of an error that follows from a limit, else an empty text: by its number where it has one, and
    by its text where a library raises only `RuntimeError`. A cause that it was raised from counts as well."""
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, OSError) and error.errno is not None:
        reason = LIMIT_NUMBERS.get(error.errno, "")
        return "" if reason == PROCESSES and error.filename is not None else reason
    reason = "" if isinstance(error, ValueError) else cause_in(str(error))  # a `ValueError` quotes what it refuses
    if reason in LIMITS:
        return reason
    cause = error.__cause__
    return "" if cause is None or cause is error else limit_of(cause)


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

"""The state of a node's ranks when the first of them has failed, before the agent ends the others."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from trainer.builtin.failures.recorder import FOLDER
from trainer.contract.frozen import Frozen

_NAME = "first-end.json"
_OTHERS_S = 2.0
"""Time in which ranks that wait for a lost one end by themselves, with their own words and dumps."""
_LOOK_S = 0.05
FROZEN = ("T", "t")
"""States in proc(5) of a process that a signal or a debugger has stopped."""


class EndedProcess(Protocol):
    @property
    def exitcode(self) -> int | None: ...

    @property
    def pid(self) -> int | None: ...


class FirstEnd(Frozen, extra="ignore"):
    at: float
    """Seconds of this machine's CLOCK_MONOTONIC."""
    codes: dict[int, int]
    """Rank -> exit code, negative for a signal, of those that had ended by themselves."""
    states: dict[int, str]
    """Rank -> state of its process (proc(5)) of the others: T for one stopped by a signal."""


def forget(run: Path) -> None:
    """Remove what ranks that ran here before have left."""
    (run / _NAME).unlink(missing_ok=True)
    shutil.rmtree(run / FOLDER, ignore_errors=True)
    (run / FOLDER).mkdir(parents=True, exist_ok=True)


def note(run: Path, first_rank: int, processes: Sequence[EndedProcess]) -> None:
    """Note the ranks' states, once, if one has failed. The agent then ends the others: a frozen one
    would then be found killed, and one that waits would leave neither words nor a dump."""
    if (run / _NAME).exists() or not any(process.exitcode for process in processes):
        return
    noticed_at = time.monotonic()
    while time.monotonic() < noticed_at + _OTHERS_S and any(_may_end(process) for process in processes):
        time.sleep(_LOOK_S)
    codes, states = dict[int, int](), dict[int, str]()
    for rank, process in enumerate(processes, first_rank):
        if process.exitcode is not None:
            codes[rank] = process.exitcode
        elif process.pid is not None:
            states[rank] = state_of(process.pid)
    for process in processes:
        # A signal that may be handled does not reach a frozen process, and its end would be waited for.
        if process.exitcode is None and process.pid is not None and state_of(process.pid) in FROZEN:
            os.kill(process.pid, signal.SIGKILL)
    temporary = run / f"{_NAME}.partial"
    temporary.write_text(FirstEnd(at=noticed_at, codes=codes, states=states).model_dump_json())
    temporary.rename(run / _NAME)


def read(run: Path) -> FirstEnd | None:
    """Return what was noted; None if no rank has failed, or the agent ended all between two looks."""
    try:
        return FirstEnd.model_validate_json((run / _NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def state_of(pid: int) -> str:
    """Return the state of a process as in proc(5), such as R, S, D, T, Z; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _may_end(process: EndedProcess) -> bool:
    return process.exitcode is None and process.pid is not None and state_of(process.pid) not in FROZEN

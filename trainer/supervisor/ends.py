"""What an end means: the contract's exit code, and a sentence for the one who reads it."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path
from typing import Iterable, NamedTuple

DONE, USER, DATA, INTERNAL, STORAGE, INTERRUPTED, NUMERIC = 0, 64, 65, 70, 74, 75, 76
"""`trainer.contract.ExitCode`."""
REASONS = {
    DONE: "done", USER: "user", DATA: "data", NUMERIC: "numeric", STORAGE: "storage", INTERRUPTED: "interrupted",
}  # fmt: skip
PEER_LOST = "peer-lost"
"""Reason of an end that another node caused: the steward does not look for it here."""
NOTHING_SOUND = "nothing-sound"
"""`trainer.contract.NOTHING_SOUND`: the steward then brings back a copy from S3, if there is one."""
_OWN = (USER, DATA, STORAGE, INTERRUPTED, NUMERIC)
"""Codes by which a job says itself why it ends."""
_MIB = 2**20
_ERROR = re.compile(r"^(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b")
_NO_ROOM = re.compile("No space left on device|Disk quota exceeded")


class End(NamedTuple):
    code: int
    detail: str = ""
    reason: str = ""
    """In place of the code's own."""


class LastWords:
    """The line of a job's output that says best why it failed."""

    def __init__(self) -> None:
        self._last = self._error = self.no_room = ""

    def heard(self, line: str) -> None:
        if not line.strip(" -\n"):  # mpirun frames its words
            return
        self._last = line.strip()
        if _ERROR.match(line):
            self._error = self._last
        if _NO_ROOM.search(line):
            self.no_room = self._last

    def __str__(self) -> str:
        said = self._error or self._last
        return f"; it said last: {said[:300]}" if said else ""


def failed(code: int, words: LastWords, places: Iterable[Path], elsewhere: bool = False) -> End:
    """Return the end of a job whose launcher, or whose first failed rank, ended with `code`; `elsewhere`: that rank is
    another node's."""
    how = f"died of {signal_name(-code)}" if code < 0 else f"exited with {code}"
    if elsewhere:
        return End(code if code in _OWN else INTERNAL, f"the job {how} on another node{words}", PEER_LOST)
    if code in _OWN:
        return End(code, f"the job {how}{words}")
    if full := next(filter(None, map(room_in, places)), ""):
        return End(STORAGE, f"the job {how} where no room is left: {full}{words}")
    if words.no_room:
        return End(STORAGE, f"the job {how} for want of room; it said: {words.no_room[:300]}")
    return End(INTERNAL, f"the job {how}{words}")


def of_error(error: OSError, place: Path) -> str:
    """Return what stopped the supervisor itself, with the room that is left if it was that."""
    told = f"{error}: {error.filename}" if error.filename and error.filename not in str(error) else str(error)
    return f"{told}; {_room(place)}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else told


def room_in(place: Path) -> str:
    """Return the room of a full file system in words; empty while it has a MiB and an inode."""
    try:
        seen = os.statvfs(str(_there(place)))
    except OSError:
        return ""
    full = seen.f_bavail * seen.f_frsize < _MIB or (seen.f_files and not seen.f_favail)
    return _room(place) if full else ""


def _room(place: Path) -> str:
    try:
        seen = os.statvfs(str(_there(place)))
    except OSError as error:
        return f"{place}: {error}"
    free, size = (blocks * seen.f_frsize / _MIB for blocks in (seen.f_bavail, seen.f_blocks))
    return f"{place} has {free:.1f} of {size:.1f} MiB free, and {seen.f_favail} inodes"


def _there(place: Path) -> Path:
    """Return the folder, or the one above it that exists."""
    return next(path for path in (place, *place.parents) if path.exists())


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

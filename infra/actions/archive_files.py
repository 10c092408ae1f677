"""The archiver's files: sources that must be plain files, and a work folder that no killed run leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_WORK = "archive-"


def sha256_of(path: Path) -> str | None:
    """Digest of a plain file, None for anything else and when it cannot be read."""
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def has_size(path: Path, size: int) -> bool:
    """Whether a plain file of this size lies there."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def plain_bytes(path: Path) -> bytes:
    with open_plain(path) as file:
        return file.read()


def open_plain(path: Path) -> BufferedReader:
    """Open without following a link and without waiting for a pipe; `OSError` for what is no plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a plain file")
    return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def workspace(local: Path) -> Iterator[Path]:
    """A folder of this run alone; those of runs that were killed are removed, told by a lock that nobody holds."""
    for left in local.glob(f"{_WORK}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=local) as work, _locked(Path(work)):
        yield Path(work)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)

"""Access to plain files only: no link is followed and no pipe is waited for."""

from __future__ import annotations

import hashlib
import os
import stat
from io import BufferedReader
from pathlib import Path


def sha256_of(path: Path) -> str | None:
    """Return the digest of a plain file; None for anything else and if it cannot be read."""
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def has_size(path: Path, size: int) -> bool:
    """Return True if `path` is a plain file of this size."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def plain_bytes(path: Path) -> bytes:
    with open_plain(path) as file:
        return file.read()


def open_plain(path: Path) -> BufferedReader:
    """Open a file without following a link or waiting for a pipe; raise `OSError` if it is not a plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a plain file")
    return os.fdopen(descriptor, "rb")

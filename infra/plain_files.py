"""Access to plain files only: no link is followed and no pipe is waited for."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from trainer.contract.exits import limit_of
from trainer.contract.sealed import patient

Answer = TypeVar("Answer")


def sha256_of(path: Path) -> str | None:
    """Return the digest of a plain file; None for anything else and if it cannot be read. What may pass is waited for.
    Raises a limit's `OSError`, which says nothing of the file."""

    def digest() -> str:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return _unless_limited(digest)


def has_size(path: Path, size: int) -> bool:
    """Return True if `path` is a plain file of this size. Waits and raises as `sha256_of`."""
    status = _unless_limited(path.lstat)
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_size == size


def plain_bytes(path: Path) -> bytes:
    """Return a plain file's content. What may pass is waited for."""

    def read() -> bytes:
        with open_plain(path) as file:
            return file.read()

    return patient(read)


def _unless_limited(read: Callable[[], Answer]) -> Answer | None:
    try:
        return patient(read)
    except OSError as error:
        if limit_of(error):
            raise
        return None


def open_plain(path: Path) -> BufferedReader:
    """Open a file without following a link or waiting for a pipe; raise `OSError` if it is not a plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a plain file")
    return os.fdopen(descriptor, "rb")

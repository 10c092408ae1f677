"""The archiver's work folder, removed even after a killed run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_WORK = "archive-"


@contextlib.contextmanager
def workspace(local: Path) -> Iterator[Path]:
    """Create a folder for this run; remove those of killed runs, whose locks nobody holds."""
    for left in local.glob(f"{_WORK}*"):
        with contextlib.suppress(OSError), _lock(left):
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=local) as work, _lock(Path(work)):
        yield Path(work)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)

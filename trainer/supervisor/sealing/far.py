"""The shared tier for nodes that write to disks of their own: small notes, and files that come whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path
from typing import Tuple

from trainer.supervisor import seal
from trainer.supervisor.sealing.copying import copy

Wanted = Tuple[int, str]
"""Size and SHA-256 of a file."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class SharedFolder:
    """A campaign's folder on a file system that all nodes mount. Names are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, content: bytes) -> None:
        """Write a note, in place of an older one."""
        path = self.root / name
        seal.make(path.parent)
        seal.publish(path, content)

    def get(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            return sorted(name for name in os.listdir(self.root / folder) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def digest(self, name: str) -> Wanted | None:
        """Return size and SHA-256 of a file there, None if it cannot be read."""
        try:
            return seal.digest_of(self.root / name)
        except OSError:
            return None

    def send(self, source: Path, name: str, wanted: Wanted) -> None:
        """Copy a file of this node there and read it back. Raises `ValueError` for other bytes than wanted."""
        target = self.root / name
        seal.make(target.parent)
        with _fresh(target) as fresh:
            copy(source, fresh)
            seen = seal.digest_of(fresh)
            if seen != wanted:
                raise ValueError(f"{source.name} changed after it was written: {_words(seen)}, was {_words(wanted)}")

    def bring(self, name: str, target: Path, wanted: Wanted) -> str:
        """Copy a file to this node; return why it may not be used, empty for a sound one. Raises `OSError` where this
        node has no room."""
        seal.make(target.parent)
        try:
            with _fresh(target) as fresh:
                seen = copy(self.root / name, fresh)
                if seen != wanted:
                    raise ValueError(f"{name}: {_words(seen)}, wanted {_words(wanted)}")
        except FileNotFoundError:
            return f"{name} is missing"
        except ValueError as error:
            return str(error)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            return f"{name}: {error.strerror}"
        return ""


@contextlib.contextmanager
def _fresh(target: Path):  # type: ignore[no-untyped-def]
    """Yield a path beside `target`, which takes its place, durably, unless an error is raised."""
    fresh = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield fresh
        os.replace(fresh, target)
        seal.sync(target.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()


def _words(seen: Wanted) -> str:
    return f"{seen[0]} bytes, SHA-256 {seen[1]}"

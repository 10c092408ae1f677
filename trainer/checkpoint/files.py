"""Files that survive a power loss: streamed digest, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 4 * 2**20


class DigestingFile:
    """A binary file for writing that knows the SHA-256 and the size of what went through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        self.size_bytes += len(memoryview(content).cast("B"))
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def durable(path: Path) -> Iterator[DigestingFile]:
    """Write `path` under a temporary name; it appears, on disk, only when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            yield DigestingFile(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def copy_durably(source: Path, target: Path, accept: Callable[[str], None]) -> None:
    """Copy a file; `accept` gets the digest of what was read and raises to refuse it before it appears."""
    with source.open("rb") as reading, durable(target) as writing:
        while chunk := reading.read(_CHUNK_BYTES):
            writing.write(chunk)
        accept(writing.sha256())


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

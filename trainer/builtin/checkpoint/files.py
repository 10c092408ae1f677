"""Files that survive a power loss: streamed digest, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from trainer.builtin.checkpoint.direct import DirectFile
from trainer.supervisor.seal import sync as sync_folder

PARTIAL = ".partial"
"""Suffix of temporary names, which begin with a dot."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_CHUNK_BYTES = 4 * 2**20
_PIECE_BYTES = 4 * 2**20


class Sink(Protocol):
    def write(self, content: bytes, /) -> int: ...

    def flush(self) -> None: ...


class DigestingFile:
    """A binary file for writing that computes the SHA-256 and the size of its content."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.error: OSError | None = None
        """The disk's error; torch's writer turns it into a `RuntimeError` without cause and errno."""

    def write(self, content: bytes) -> int:
        try:
            # A busy main thread keeps the interpreter lock for milliseconds at a time: a piece is worth that wait.
            for piece in _pieces(memoryview(content).cast("B")):
                self._hash.update(piece)
                self._file.write(piece)  # type: ignore[arg-type]
                self.size_bytes += len(piece)
        except OSError as error:
            self.error = error
            raise
        return len(memoryview(content).cast("B"))

    def flush(self) -> None:
        self._file.flush()

    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def durable(path: Path, appear: Callable[[Path, Path], None] | None = None) -> Iterator[DigestingFile]:
    """Write `path` under a temporary name; it appears, on disk, only when the block ends without an error.

    `appear` defaults to `os.replace`; `os.link` raises `FileExistsError` instead of replacing a file. The temporary
    name is random: pods of two attempts may have the same process id.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with contextlib.closing(DirectFile(temporary)) as file:
            writing = DigestingFile(file)
            try:
                yield writing
            except Exception as error:
                if writing.error is not None and writing.error is not error:
                    raise writing.error from error
                raise
            file.flush()
            os.fsync(file.fileno())
        (appear or os.replace)(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _pieces(content: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


def copy_durably(source: Path, target: Path, accept: Callable[[str], None]) -> None:
    """Copy a file and replace even a folder; `accept` gets the digest and may raise before the copy appears."""
    remove(target)
    with open_regular(source) as reading, durable(target) as writing:
        while chunk := reading.read(_CHUNK_BYTES):
            writing.write(chunk)
        accept(writing.sha256())


def remove(target: Path) -> None:
    """Remove a folder that has the place of a file."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)


def link_durably(source: Path, target: Path) -> None:
    """Give a file a second name durably and replace what had it. Raises `OSError` across file systems."""
    make_folder(target.parent)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        os.link(source, temporary, follow_symlinks=False)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a regular file. Raises `OSError` for anything else, such as a pipe or a link."""
    with open_regular(path) as file:
        return sha256_of(file)


def digest_on_disk(path: Path) -> str:
    """Like `digest_of`, but of the device's content instead of the pages just written."""
    with open_regular(path) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return sha256_of(file)


def sha256_of(file: BufferedReader) -> str:
    """Return the SHA-256 of an open file from its position on; a thread reads the next piece meanwhile."""
    digest, piece, following = hashlib.sha256(), bytearray(_PIECE_BYTES), bytearray(_PIECE_BYTES)
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-ahead") as ahead:
        coming = ahead.submit(file.readinto, piece)
        while count := coming.result():
            coming = ahead.submit(file.readinto, following)
            digest.update(memoryview(piece)[:count])
            piece, following = following, piece
    return digest.hexdigest()


def open_regular(path: Path) -> BufferedReader:
    """Open a plain file for reading; never follow a link or wait for a pipe's other end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link, not a file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each durable in its own parent."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    sync_folder(path.parent)

"""Fetching a shard from another node in several streams, resumable.

A fetch that was cut, by the end of its attempt or of the serving node, resumes in the holes of its file. One stream is
slower than a node's network (AWS gives a single flow 5 to 10 Gbit/s).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from trainer.builtin.checkpoint.files import NO_ROOM, PARTIAL, make_folder, sync_folder
from trainer.contract import Shard
from trainer.errors import StorageError

STREAMS = 4
PIECE_BYTES = 64 * 2**20
"""Size of one request, and the most that each stream loses by a cut."""
_READ_BYTES = 2**20

Piece = Callable[[int, int, Callable[[bytes, int], object]], None]
"""Passes the bytes [start, end) to a writer with their positions, in order. Raises `OSError` or `StorageError`."""


def fetch_into(target: Path, shard: Shard, ask: Piece, resumable: bool = True) -> int:
    """Fetch `target` by `ask`; it appears, on disk, only with the shard's digest. Return the requested bytes.

    Unless `resumable`, nothing stays after an error. Raises `ask`'s errors, `OSError` of the disk, and `StorageError`
    when another shard came.
    """
    with _partial(target, shard) as (path, descriptor):
        try:
            requested_bytes = sum(end - start for start, end in _lacking(descriptor, shard.size_bytes))
            actual_digest = _fill(descriptor, shard.size_bytes, ask)
            if actual_digest != shard.sha256 and requested_bytes < shard.size_bytes:
                os.ftruncate(descriptor, 0)  # the part from an earlier fetch may be wrong
                requested_bytes, actual_digest = shard.size_bytes, _fill(descriptor, shard.size_bytes, ask)
            if actual_digest != shard.sha256:
                os.ftruncate(descriptor, 0)
                raise StorageError("another shard came", f"{shard.file}: {actual_digest}, wanted {shard.sha256}")
            os.fsync(descriptor)
            os.replace(path, target)
        except BaseException as error:
            full = isinstance(error, OSError) and error.errno in NO_ROOM
            if full or not (resumable and any(_written_ranges(descriptor, shard.size_bytes))):
                path.unlink(missing_ok=True)
            raise
    sync_folder(target.parent)
    return requested_bytes


@contextlib.contextmanager
def _partial(target: Path, shard: Shard) -> Iterator[tuple[Path, int]]:
    """Yield the locked file of an earlier fetch of the same bytes, or a new file if a process still writes to it."""
    make_folder(target.parent)
    path = target.with_name(f".{target.name}.{shard.sha256[:16]}{PARTIAL}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_own = os.fstat(descriptor).st_nlink > 0
    except BlockingIOError:
        is_own = False
    if not is_own:
        os.close(descriptor)
        path = target.with_name(f".{target.name}.{secrets.token_hex(8)}{PARTIAL}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)


def _fill(descriptor: int, size: int, ask: Piece) -> str:
    """Request the file's missing pieces in several streams. Return its digest, computed while later pieces arrive."""
    lacking = dict(_lacking(descriptor, size))
    os.ftruncate(descriptor, size)
    digest = hashlib.sha256()

    def write(content: bytes, offset: int) -> None:
        remainder = memoryview(content)
        while remainder:
            count = os.pwrite(descriptor, remainder, offset)
            remainder, offset = remainder[count:], offset + count

    with ThreadPoolExecutor(STREAMS, thread_name_prefix="checkpoint-fetch") as streams:
        coming: dict[int, Future[None]] = {
            start: streams.submit(ask, start, end, write) for start, end in lacking.items()
        }
        try:
            for start, end in _pieces(size):
                if start in coming:
                    coming[start].result()
                for offset in range(start, end, _READ_BYTES):
                    digest.update(os.pread(descriptor, min(_READ_BYTES, end - offset), offset))
        except BaseException:
            streams.shutdown(wait=False, cancel_futures=True)
            raise
    return digest.hexdigest()


def _pieces(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES)]


def _lacking(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Return the pieces with unwritten bytes; none if the file system knows no holes: the digest then decides."""
    if os.fstat(descriptor).st_size != size:
        return _pieces(size)
    ranges = list(_written_ranges(descriptor, size))
    return [
        (start, end)
        for start, end in _pieces(size)
        if not any(begin <= start and end <= stop for begin, stop in ranges)
    ]


def _written_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    offset = 0
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        offset = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, offset

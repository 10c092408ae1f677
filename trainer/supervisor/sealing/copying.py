"""Copies of files that share no bytes with what the job may write again, and digests, both in bounded memory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Tuple, TypeVar

_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")
SizeAndDigest = Tuple[int, str]
"""Size in bytes, and SHA-256."""
Watch = Callable[[os.stat_result], None]
_CHUNK = 2 * 2**20
"""Bytes read at a time: each file takes two such chunks of memory."""
_CLONE = 0x40049409
"""FICLONE of <linux/fs.h>: both files have the same blocks until one of them is written."""


def side_by_side(work: Callable[[_Thing], _Made], things: Iterable[_Thing]) -> Iterator[_Made]:
    """Yield what `work` makes of each thing, in their order; some are worked on at once, since one processor copies or
    digests less than a good disk reads."""
    with ThreadPoolExecutor(4) as workers:
        yield from workers.map(work, things)


def digest_of(path: Path, durable: bool = False) -> SizeAndDigest:
    """Return size and SHA-256 of a regular file; links are not followed, and a pipe raises `OSError`. `durable`: what
    its writer has left in this node's memory is on the disk."""
    with open(os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
        if durable:
            os.fsync(file.fileno())
        return _digest(file.fileno())


def copy(source: Path, target: Path, watch: Watch = lambda status: None) -> SizeAndDigest:
    """Copy a regular file durably to a path where none is, readable for all; return size and SHA-256 of the copy.
    `watch` is called with the source's status before and after.

    The copy shares blocks where the file system can clone. Elsewhere both files are read and written past the page
    cache: `copy_file_range` would go through it there, and take twice the processor time.
    """
    with _Files(source, target) as (reading, writing):
        watch(os.fstat(reading))
        size_and_digest = _digest(writing) if _clone(reading, writing) else _digest(reading, writing)
        os.fsync(writing)
        os.posix_fadvise(writing, 0, 0, os.POSIX_FADV_DONTNEED)
        watch(os.fstat(reading))
    return size_and_digest


class _Files:
    """Both files of a copy, open; the target is removed if it is not finished."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target

    def __enter__(self) -> tuple[int, int]:
        self._reading = os.open(str(self._source), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            self._writing = os.open(str(self._target), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(self._writing, 0o644)  # whatever the umask is: others archive it
        except BaseException:
            os.close(self._reading)
            raise
        return self._reading, self._writing

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        os.close(self._reading)
        os.close(self._writing)
        if kind is not None:
            self._target.unlink()


def _clone(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _CLONE, reading)
    except OSError:
        return False
    return True


def _digest(reading: int, writing: int | None = None) -> SizeAndDigest:
    """Return size and SHA-256 of a file, and copy it on the way. The next chunk is read while one is digested. What was
    read is dropped from the page cache, and the copy is written past it: dirty pages would hold up the job's writes."""
    digest, size = hashlib.sha256(), 0
    buffer_bytes = -(-min(_CHUNK, os.fstat(reading).st_size + 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    now, next_buffer = mmap.mmap(-1, buffer_bytes), mmap.mmap(-1, buffer_bytes)  # pages, as direct writing wants them
    with ThreadPoolExecutor(1) as ahead:
        count = os.preadv(reading, [now], 0)
        while count:
            coming = ahead.submit(os.preadv, reading, [next_buffer], size + count)
            with memoryview(now)[:count] as chunk:
                digest.update(chunk)
                if writing is not None:
                    _write(writing, chunk, size)
            os.posix_fadvise(reading, size, count, os.POSIX_FADV_DONTNEED)
            size += count
            now, next_buffer = next_buffer, now
            count = coming.result()
    return size, digest.hexdigest()


def _write(file: int, chunk: memoryview, offset: int) -> None:
    """Write a chunk past the page cache, or through it where its length or the file system wants that."""
    _set_direct(file, not (len(chunk) % mmap.PAGESIZE or offset % mmap.PAGESIZE))
    written_bytes = 0
    while written_bytes < len(chunk):
        try:
            written_bytes += os.pwrite(file, chunk[written_bytes:], offset + written_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL or not _set_direct(file, False):
                raise


def _set_direct(file: int, direct: bool) -> bool:
    """Return whether direct writing was switched on or off."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    if direct == bool(flags & os.O_DIRECT):
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags ^ os.O_DIRECT)
    except OSError:  # this file system has no such writes
        return False
    return True

"""Copies of files that share no bytes with what the job may write again, and digests, both in bounded memory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Tuple, TypeVar

_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")
SizeAndDigest = Tuple[int, str]
"""Size in bytes, and SHA-256."""
Watch = Callable[[os.stat_result], None]
_CHUNK, _FLUSH = 2 * 2**20, 64 * 2**20
"""Bytes read at a time (each file takes two such chunks of memory), and bytes that may wait for the disk."""
_CLONE = 0x40049409
"""FICLONE of <linux/fs.h>: both files have the same blocks until one of them is written."""
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""Errors that another way to copy would meet too."""


def side_by_side(work: Callable[[_Thing], _Made], things: Iterable[_Thing]) -> Iterator[_Made]:
    """Yield what `work` makes of each thing, in their order; some are worked on at once, since one processor copies or
    digests less than a good disk reads."""
    with ThreadPoolExecutor(4) as workers:
        yield from workers.map(work, things)


def digest_of(path: Path, durable: bool = False) -> SizeAndDigest:
    """Return size and SHA-256 of a regular file; links are not followed. The next chunk is read while one is digested,
    past the page cache where it can be. `durable`: what its writer has left in this node's memory is on the disk."""
    with open(os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
        if durable:
            os.fsync(file.fileno())
        return _digest(file.readinto, file.fileno(), os.fstat(file.fileno()).st_size)


def copy(source: Path, target: Path, watch: Watch = lambda status: None) -> SizeAndDigest:
    """Copy a regular file durably to a path where none is, readable for all; return size and SHA-256 of the copy, which
    is digested as it is written. `watch` is called with the source's status before and after."""
    with _Files(source, target) as (reading, writing):
        watch(os.fstat(reading))
        copier = _Copier(reading, writing)
        made = _digest(copier.readinto, reading, os.fstat(reading).st_size)
        os.fsync(writing)
        os.posix_fadvise(writing, 0, 0, os.POSIX_FADV_DONTNEED)
        watch(os.fstat(reading))
    return made


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


class _Copier:
    """One file after another piece: by reference where the file system can, else in the kernel, else by hand."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._offset = self._flushed = 0
        self._in_kernel = hasattr(os, "copy_file_range")
        try:
            fcntl.ioctl(writing, _CLONE, reading)
            self._cloned = True
        except OSError:
            self._cloned = False

    def readinto(self, chunk: bytearray) -> int:
        """Copy as many bytes as the chunk takes, and read them from the copy; return how many, 0 at the end."""
        count = self._piece(memoryview(chunk))
        self._offset += count
        if self._offset - self._flushed >= _FLUSH and not self._cloned:
            os.fdatasync(self._writing)  # else the job would wait for the memory that the copy has filled
            os.posix_fadvise(self._writing, 0, self._offset, os.POSIX_FADV_DONTNEED)
            self._flushed = self._offset
        return count

    def _piece(self, view: memoryview) -> int:
        if self._cloned:
            return os.preadv(self._writing, [view], self._offset)
        if self._in_kernel:
            try:
                count = os.copy_file_range(self._reading, self._writing, len(view), self._offset, self._offset)
                if count:
                    return os.preadv(self._writing, [view[:count]], self._offset)
            except OSError as error:
                if error.errno in _LOST:
                    raise
            self._in_kernel = False
        count, done = os.preadv(self._reading, [view], self._offset), 0
        while done < count:
            done += os.pwrite(self._writing, view[done:count], self._offset + done)
        return count


def _digest(read: Callable[[bytearray], int | None], file: int, size_now: int) -> SizeAndDigest:
    """Return size and SHA-256 of what `read` yields; `file` is dropped from the page cache on the way."""
    digest, size, most = hashlib.sha256(), 0, min(_CHUNK, size_now + 1)
    now, then = bytearray(most), bytearray(most)
    with ThreadPoolExecutor(1) as ahead:
        count = read(now) or 0
        while count:
            coming = ahead.submit(read, then)
            digest.update(memoryview(now)[:count])
            os.posix_fadvise(file, size, count, os.POSIX_FADV_DONTNEED)
            size += count
            now, then = then, now
            count = coming.result() or 0
    return size, digest.hexdigest()

"""Copy folders of `/mounts` to the node's own disk before the ranks start.

A copy has the size and the time of its source, so a later attempt on the node copies only what has changed. It appears
under its name once it is durable: what was broken off never looks whole.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Mapping

THREADS, TRIES = 16, 4
"""Mountpoint and Lustre answer each reader at a part of their speed only."""
_PIECE_BYTES, _TELL_S = 8 << 20, 10.0
_PARTIAL = ".bivouac-partial"
"""End of the name of a file that is being copied."""
_LEADS_NOWHERE = (errno.ENOENT, errno.ELOOP)
StagedFiles = Mapping[str, "tuple[int, int]"]
"""Path below a folder -> size and time in nanoseconds."""


class Unstaged(Exception):
    """The folder cannot be copied, and another attempt would meet the same."""


class SourceChanges(Exception):
    """Somebody writes to the folder: each copy of it was of another state."""


class StagingStopped(Exception):
    """The pod is to end."""


def stage(
    name: str, source: Path, target: Path, limit_bytes: int, emit: Callable[..., None], is_stopping: Callable[[], bool]
) -> None:
    """Bring `target` to the content of `source`, and say how far that is.

    Raises `Unstaged` for a folder that is empty, larger than the spec says or than the disk, or not copied as it is;
    `SourceChanges` for one that changes in each of `TRIES`; `StagingStopped`; `OSError` where source or disk fail.
    """
    start_s = time.monotonic()
    for _ in range(TRIES):
        try:
            files = _copy_changes(name, source, target, limit_bytes, emit, is_stopping)
            is_whole = listing(source) == files == listing(target)
        except FileNotFoundError:
            if not source.is_dir():
                raise
            is_whole = False  # a file went between the look and the copy
        if is_whole:
            seconds = round(time.monotonic() - start_s, 1)
            emit("staged", mount=name, files=len(files), bytes=_size(files), seconds=seconds)
            return
    raise SourceChanges(f"{name} changed while it was copied, {TRIES} times: does somebody still write to it?")


def _copy_changes(
    name: str, source: Path, target: Path, limit_bytes: int, emit: Callable[..., None], is_stopping: Callable[[], bool]
) -> StagedFiles:
    """Copy what `target` lacks and remove what it has beyond; return the files of `source` as they were before."""
    files = listing(source)
    size = _size(files)
    if not files:
        raise Unstaged(f"{name} has no file to stage: is its prefix or path right?")
    if size > limit_bytes:
        raise Unstaged(f"{name} has {size} bytes, and its size_gib says {limit_bytes}: raise it, or stage less")
    target.mkdir(parents=True, exist_ok=True)
    copies = listing(target)
    for extra in set(copies) - set(files):
        (target / extra).unlink()
    missing = [file for file in files if copies.get(file) != files[file]]
    copy_bytes, room = sum(files[file][0] for file in missing), shutil.disk_usage(target).free
    if copy_bytes > room:
        raise Unstaged(f"{name} needs {copy_bytes} bytes more on the node's disk, which has {room}")
    emit("staging", mount=name, files=len(missing), bytes=copy_bytes, kept_files=len(files) - len(missing))
    copied_bytes, told_at = 0, time.monotonic()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="staging") as pool:
        for file_size in pool.map(lambda file: _copy(source / file, target / file, is_stopping), missing):
            copied_bytes += file_size
            if time.monotonic() - told_at >= _TELL_S:
                told_at = time.monotonic()
                emit("staged_part", mount=name, bytes=copied_bytes, of=copy_bytes)
    return files


def _size(files: StagedFiles) -> int:
    return sum(size for size, _ in files.values())


def listing(folder: Path) -> StagedFiles:
    """Return the files below a folder; those that links lead to count as files. Raises `Unstaged` for a pipe, or a link
    to a folder or to nothing; `OSError` for what cannot be read."""

    def refuse(error: OSError) -> Any:
        raise error

    files = {}
    for root, folders, names in os.walk(folder, onerror=refuse):
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(root, name)))]:
            path = Path(root, name)
            try:
                status = path.stat()
            except OSError as error:
                if error.errno not in _LEADS_NOWHERE or not path.is_symlink():
                    raise
                raise Unstaged(f"{path} is a link to {os.readlink(path)}, and nothing is there") from error
            if not stat.S_ISREG(status.st_mode):
                raise Unstaged(f"{path} is neither a file nor a link to one")
            files[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return files


def _copy(source: Path, target: Path, is_stopping: Callable[[], bool]) -> int:
    """Copy a file durably, with its time; return its size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + _PARTIAL)
    with source.open("rb") as reader, partial.open("wb") as writer:
        time_ns = os.fstat(reader.fileno()).st_mtime_ns
        while piece := reader.read(_PIECE_BYTES):
            if is_stopping():
                raise StagingStopped
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
        size = writer.tell()
    os.utime(partial, ns=(time_ns, time_ns))
    if target.is_dir():  # once a folder of the source
        shutil.rmtree(target)
    os.replace(partial, target)
    return size

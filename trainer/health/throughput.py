"""How fast a tier takes and gives: a file written and read past the page cache."""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import Probe
from trainer.health.looking import blind

_CHUNK = 8 * 2**20
"""Bytes of one call; a multiple of every disk's block, so that O_DIRECT takes it."""


@dataclass(frozen=True)
class Throughput:
    """10^6 bytes/s."""

    write_mb_s: float
    read_mb_s: float
    direct: bool
    """Past the page cache; False where the file system does not allow it: then the write includes its fsync, and the
    cache was told to drop the file before the read."""


def throughput_probes(name: str, folder: Path, mib: int, floor_mb_s: float) -> Iterator[Probe]:
    """Nothing when nothing is to be measured."""
    if not mib:
        return
    wanted = f">= {floor_mb_s:.0f} MB/s" if floor_mb_s else "reported only: the profile has no figure"
    try:
        seen = measure(folder, mib)
    except OSError as error:
        yield blind(name, error.strerror or repr(error), wanted)
        return
    past = "past the page cache" if seen.direct else "through the page cache, synced"
    yield Probe(
        name=name,
        ok=min(seen.write_mb_s, seen.read_mb_s) >= floor_mb_s,
        seen=f"write {seen.write_mb_s:.0f}, read {seen.read_mb_s:.0f} MB/s, {mib} MiB {past}",
        wanted=wanted,
    )


def measure(folder: Path, mib: int) -> Throughput:
    """Write, sync, read and remove a file of `mib` MiB (rounded up to whole chunks). Raises OSError."""
    chunks = max(1, -(-mib * 2**20 // _CHUNK))
    path = folder / f".bivouac-throughput-{uuid.uuid4().hex}"
    with mmap.mmap(-1, _CHUNK) as buffer:  # anonymous memory begins at a page, as O_DIRECT wants it
        buffer.write(os.urandom(2**20) * (_CHUNK // 2**20))
        try:
            try:
                return _measured(path, buffer, chunks, os.O_DIRECT)
            except OSError:
                return _measured(path, buffer, chunks, 0)
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _measured(path: Path, buffer: mmap.mmap, chunks: int, flag: int) -> Throughput:
    size = chunks * _CHUNK
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flag, 0o600)
    try:
        began = time.monotonic()
        for _ in range(chunks):
            _whole(os.write(file, buffer))
        os.fsync(file)
        written = time.monotonic() - began
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    file = os.open(path, os.O_RDONLY | flag)
    try:
        began = time.monotonic()
        for _ in range(chunks):
            _whole(os.readv(file, [buffer]))
        read = time.monotonic() - began
    finally:
        os.close(file)
    return Throughput(size / max(written, 1e-9) / 1e6, size / max(read, 1e-9) / 1e6, bool(flag))


def _whole(count: int) -> None:
    if count != _CHUNK:
        raise OSError(None, f"{count} of {_CHUNK} bytes in one call")

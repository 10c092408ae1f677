"""A tier's throughput: several files at once, written and read past the page cache."""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import Probe
from trainer.health.looking import blind

_CHUNK = 8 * 2**20
"""Bytes of one call; O_DIRECT needs a multiple of every disk's block."""
_STREAMS = 16
"""Files at once, one thread each. One stream measures the latency of a call; a tier reaches its throughput with many,
as when the ranks of a node write their shards."""
_LONGEST_S = 60.0
"""Bound of the writes and of the reads; no further chunk starts after it."""


@dataclass(frozen=True)
class Throughput:
    """10^6 bytes/s."""

    write_mb_s: float
    read_mb_s: float
    mib: int
    """Data written and read back."""
    direct: bool
    """Past the page cache. False if the file system does not allow that: then the write includes its fsync, and the
    cache is told to drop the file before the read."""


def throughput_probes(name: str, folder: Path, mib: int, floor_mb_s: float) -> Iterator[Probe]:
    """Probe a tier's throughput; yield nothing if `mib` is 0."""
    if not mib:
        return
    wanted = f">= {floor_mb_s:.0f} MB/s" if floor_mb_s else "no figure in the profile: compared with the gang's nodes"
    try:
        seen = measure(folder, mib)
    except OSError as error:
        yield blind(name, error.strerror or repr(error), wanted)
        return
    slower = min(seen.write_mb_s, seen.read_mb_s)
    past = "past the page cache" if seen.direct else "through the page cache, synced"
    yield Probe(
        name=name,
        ok=slower >= floor_mb_s,
        seen=f"write {seen.write_mb_s:.0f}, read {seen.read_mb_s:.0f} MB/s, {seen.mib} MiB {past}",
        wanted=wanted,
        figure=None if floor_mb_s else round(slower, 1),
    )


def measure(folder: Path, mib: int) -> Throughput:
    """Write, sync, read and remove files of `mib` MiB in total, rounded up to whole chunks. Raises `OSError`."""
    chunks = max(1, -(-mib * 2**20 // _CHUNK))
    streams = min(_STREAMS, chunks)
    shares = [chunks // streams + (number < chunks % streams) for number in range(streams)]
    paths = [folder / f".bivouac-throughput-{uuid.uuid4().hex}" for _ in shares]
    with mmap.mmap(-1, _CHUNK) as content, ThreadPoolExecutor(streams) as pool:  # pages, as O_DIRECT wants them
        content.write(os.urandom(2**20) * (_CHUNK // 2**20))
        try:
            try:
                return _measured(pool, paths, shares, content, os.O_DIRECT)
            except OSError:
                return _measured(pool, paths, shares, content, 0)
        finally:
            for path in paths:
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _measured(
    pool: ThreadPoolExecutor, paths: list[Path], shares: list[int], content: mmap.mmap, flag: int
) -> Throughput:
    def write(path: Path, chunks: int, until: float) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flag, 0o600)
        try:
            done = _repeated(lambda: os.write(file, content), chunks, until)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
        return done

    def read(path: Path, chunks: int, until: float) -> int:
        file = os.open(path, os.O_RDONLY | flag)
        try:
            with mmap.mmap(-1, _CHUNK) as into:
                return _repeated(lambda: os.readv(file, [into]), chunks, until)
        finally:
            os.close(file)

    written, write_mb_s = _timed(pool, write, paths, shares)
    _, read_mb_s = _timed(pool, read, paths, written)
    return Throughput(write_mb_s, read_mb_s, sum(written) * _CHUNK // 2**20, bool(flag))


def _timed(
    pool: ThreadPoolExecutor, work: Callable[[Path, int, float], int], paths: list[Path], shares: list[int]
) -> tuple[list[int], float]:
    """Return each stream's finished chunks and the total 10^6 bytes/s. Raises the first `OSError` after all ended."""
    began = time.monotonic()
    futures = [pool.submit(work, path, share, began + _LONGEST_S) for path, share in zip(paths, shares, strict=True)]
    failed = next((error for error in [one.exception() for one in futures] if error is not None), None)
    if failed is not None:
        raise failed
    done = [one.result() for one in futures]
    return done, sum(done) * _CHUNK / max(time.monotonic() - began, 1e-9) / 1e6


def _repeated(call: Callable[[], int], chunks: int, until: float) -> int:
    for number in range(chunks):
        if number and time.monotonic() > until:
            return number
        if (count := call()) != _CHUNK:
            raise OSError(None, f"{count} of {_CHUNK} bytes in one call")
    return chunks

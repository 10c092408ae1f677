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
    target = f">= {floor_mb_s:.0f} MB/s" if floor_mb_s else "no figure in the profile: compared with the gang's nodes"
    try:
        throughput = measure(folder, mib)
    except OSError as error:
        yield blind(name, error.strerror or repr(error), target)
        return
    slower = min(throughput.write_mb_s, throughput.read_mb_s)
    mode = "past the page cache" if throughput.direct else "through the page cache, synced"
    yield Probe(
        name=name,
        ok=slower >= floor_mb_s,
        seen=f"write {throughput.write_mb_s:.0f}, read {throughput.read_mb_s:.0f} MB/s, {throughput.mib} MiB {mode}",
        wanted=target,
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
                return _write_and_read(pool, paths, shares, content, os.O_DIRECT)
            except OSError:
                return _write_and_read(pool, paths, shares, content, 0)
        finally:
            for path in paths:
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _write_and_read(
    pool: ThreadPoolExecutor, paths: list[Path], shares: list[int], content: mmap.mmap, flag: int
) -> Throughput:
    def write(path: Path, chunks: int, deadline: float) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flag, 0o600)
        try:
            count = _repeat(lambda: os.write(file, content), chunks, deadline)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
        return count

    def read(path: Path, chunks: int, deadline: float) -> int:
        file = os.open(path, os.O_RDONLY | flag)
        try:
            with mmap.mmap(-1, _CHUNK) as into:
                return _repeat(lambda: os.readv(file, [into]), chunks, deadline)
        finally:
            os.close(file)

    chunk_counts, write_mb_s = _run_streams(pool, write, paths, shares)
    _, read_mb_s = _run_streams(pool, read, paths, chunk_counts)
    return Throughput(write_mb_s, read_mb_s, sum(chunk_counts) * _CHUNK // 2**20, bool(flag))


def _run_streams(
    pool: ThreadPoolExecutor, work: Callable[[Path, int, float], int], paths: list[Path], shares: list[int]
) -> tuple[list[int], float]:
    """Return each stream's finished chunks and the total 10^6 bytes/s. Raises the first `OSError` after all ended."""
    start = time.monotonic()
    futures = [pool.submit(work, path, share, start + _LONGEST_S) for path, share in zip(paths, shares, strict=True)]
    failure = next((error for error in [future.exception() for future in futures] if error is not None), None)
    if failure is not None:
        raise failure
    counts = [future.result() for future in futures]
    return counts, sum(counts) * _CHUNK / max(time.monotonic() - start, 1e-9) / 1e6


def _repeat(call: Callable[[], int], chunks: int, deadline: float) -> int:
    for number in range(chunks):
        if number and time.monotonic() > deadline:
            return number
        if (count := call()) != _CHUNK:
            raise OSError(None, f"{count} of {_CHUNK} bytes in one call")
    return chunks

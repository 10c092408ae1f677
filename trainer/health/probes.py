"""Probes of one node, each against its profile."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainer.buckets.prefix import Prefix
from trainer.buckets.sources import BucketSource
from trainer.contract import (
    DATA_IN_S3,
    DATA_MANIFEST_NAME,
    DATA_MOUNT,
    LOCAL_CHECKPOINTS,
    SHARED_CHECKPOINTS,
    SHARED_TIER_IN_S3,
    Expectation,
    Probe,
)
from trainer.health.clocks import clock_probes
from trainer.health.fabrics import efa_probes, kernel_module
from trainer.health.gpus import gpu_probes, version_probe
from trainer.health.looking import CannotLook, Look, Output, blind

_GIB = 2**30
_IMPORT_S = 240.0
"""The first import on a node reads gigabytes of libraries from its disk."""
_PATIENCE_S = 30.0
_CURE = "see the trainer's role and its pod identity, the bucket's policy and key, and the subnet's gateway endpoint"


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
                with contextlib.suppress(OSError):
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


def node_probes(expectation: Expectation, local: Path, shared: Path, look: Look) -> Iterator[Probe]:
    """Yield all probes that a node can make alone, in the order in which a person would.

    Only the profile's requirements are checked: a CPU profile needs no GPU tool.
    """
    yield from import_probes(expectation.imports, look)
    yield _at_least("cpus", float(len(os.sched_getaffinity(0))), float(expectation.cpus), "{:.0f}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    yield _at_least("memory_gib", memory, expectation.memory_gib, "{:.1f}")
    accelerators = _accelerators() if expectation.accelerators else 0
    yield _at_least("accelerators", float(accelerators), float(expectation.accelerators), "{:.0f}")
    if expectation.gpus is not None:
        yield from gpu_probes(expectation.gpus, expectation.limits, look, expectation.versions.get("driver"))
    yield from efa_probes(expectation.efa_devices, look)
    if expectation.efa_devices and (module := expectation.versions.get("efa")) is not None:
        yield version_probe("efa", kernel_module(look), module)
    places = {LOCAL_CHECKPOINTS: local, SHARED_CHECKPOINTS: shared}
    for mount in expectation.mounts:
        yield readable(Path(mount)) if mount == DATA_MOUNT else writable(places.get(mount, Path(mount)))
    yield _free("local_disk_gib", local, expectation.local_disk_gib)
    mib = expectation.throughput_mib
    yield from throughput_probes("local_throughput", local, mib, expectation.local_mb_s)
    if SHARED_CHECKPOINTS in expectation.mounts:
        yield _free("shared_disk_gib", shared, expectation.shared_disk_gib)
        yield from throughput_probes("shared_throughput", shared, mib, expectation.shared_mb_s)
    yield from bucket_probes(expectation)
    yield from clock_probes(expectation.clock_skew_s, expectation.time_source, look)


def import_probes(modules: Sequence[str], look: Look) -> Iterator[Probe]:
    """Import each module in a process of its own, as a rank does: what it loads must be in the image and fit."""
    for name in modules:
        script = f"import {name}; print({name}.__version__)"
        try:
            output = look(sys.executable, "-c", script, timeout_s=_IMPORT_S)
        except CannotLook as error:  # it hangs, which a rank would too
            output = Output(1, "", str(error))
        words = (output.text if output.code == 0 else output.errors).strip().splitlines() or ["no output"]
        cure = f"image.base must hold a {name} that works: see images/trainer.Dockerfile"
        yield Probe(name=f"import {name}", ok=output.code == 0, seen=words[-1][:300], wanted="imported",
                    cure="" if output.code == 0 else cure)  # fmt: skip


def readable(mount: Path) -> Probe:
    """Read the data set's manifest; the mount is read-only."""
    try:
        (mount / DATA_MANIFEST_NAME).read_bytes()
        finding = "readable"
    except OSError as error:
        finding = error.strerror or repr(error)
    return Probe(name=f"mount {mount}", ok=finding == "readable", seen=finding, wanted="readable")


def writable(mount: Path) -> Probe:
    """Write, sync, read back and remove a small file."""
    path = mount / f".bivouac-probe-{uuid.uuid4().hex}"
    content = uuid.uuid4().bytes
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        finding = "writable" if path.read_bytes() == content else "reads back other bytes"
    except OSError as error:
        finding = error.strerror or repr(error)
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return Probe(name=f"mount {mount}", ok=finding == "writable", seen=finding, wanted="writable")


def _free(name: str, path: Path, wanted_gib: float) -> Probe:
    try:
        return _at_least(name, shutil.disk_usage(path).free / _GIB, wanted_gib, "{:.1f}")
    except OSError as error:
        return Probe(name=name, ok=False, seen=error.strerror or repr(error), wanted=f">= {wanted_gib:.1f}")


def _accelerators() -> int:
    try:
        import torch
    except (ImportError, OSError):
        return 0
    return torch.cuda.device_count()


def _at_least(name: str, value: float, floor: float, form: str) -> Probe:
    return Probe(name=name, ok=value >= floor, seen=form.format(value), wanted=f">= {form.format(floor)}")


def bucket_probes(expectation: Expectation) -> Iterator[Probe]:
    """Write, read back and remove a small object on the tier; read the data's manifest."""
    tier, data = expectation.shared_tier, expectation.data_source
    if tier:
        yield _probe(SHARED_TIER_IN_S3, tier, lambda: _written_and_read(Prefix(tier, patience_s=_PATIENCE_S)))
    if data:
        yield _probe(DATA_IN_S3, data, lambda: _manifest_read(BucketSource(data)))


def _written_and_read(prefix: Prefix) -> str:
    name, content = f"probe/{uuid.uuid4().hex}", uuid.uuid4().bytes
    try:
        prefix.put(name, content)
        answer = prefix.get(name)
    finally:
        prefix.forget(name)
    if answer is None or answer[0] != content:
        raise OSError("reads back other bytes")
    return "written and read"


def _manifest_read(source: BucketSource) -> str:
    return f"{len(b''.join(source.read(DATA_MANIFEST_NAME)))} bytes of {DATA_MANIFEST_NAME}"


def _probe(name: str, place: str, look: Callable[[], str]) -> Probe:
    try:
        return Probe(name=name, ok=True, seen=f"{place}: {look()}", wanted="works")
    except OSError as error:
        return Probe(name=name, ok=False, seen=f"{place}: {error}"[:400], wanted="works", cure=_CURE)

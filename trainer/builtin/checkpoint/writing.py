"""One rank's files of a save: written with their digest, or linked to equal files of the last save; and the background
thread that does such slow work in order."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from trainer.builtin.checkpoint.deepspeed_engine import Snapshot
from trainer.builtin.checkpoint.files import DigestingFile, digest_on_disk, durable, link_durably
from trainer.builtin.checkpoint.frozen_weights import READ_BACK_EVERY
from trainer.contract import Manifest, Shard
from trainer.errors import Diverged

_SAMPLE_BYTES = 4096
_NICENESS = 10
"""Niceness of a background thread: the step's threads come first on a shared core."""


@dataclass
class Writing:
    """One file of a save; a full disk may require a second `write`."""

    snapshot: Snapshot
    name: str
    rank: int
    written: DigestingFile | None = None

    def write(self) -> None:
        with durable(self.snapshot.path) as file:
            serialize(self.snapshot.state, file)
        self.written = file

    def shard(self) -> Shard:
        assert self.written is not None
        size, digest = self.written.size_bytes, self.written.sha256()
        return Shard(file=self.name, size_bytes=size, sha256=digest, rank=self.rank)


def serialize(state: Any, file: DigestingFile) -> None:
    """Write a state as `torch.save` does, without the zip format's CRC-32.

    The manifest's SHA-256 covers every byte, `torch.load` reads no CRC-32, and computing it takes a quarter of the
    writer's processor time.
    """
    options = get_crc32_options()
    set_crc32_options(False)
    try:
        torch.save(state, cast(IO[bytes], file))
    finally:
        set_crc32_options(options)


class Unchanged:
    """Fingerprint, path and digest of the last save's files, by shard name."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Path, str]] = {}
        self._links: Counter[str] = Counter()
        self._frozen: dict[str, tuple[Path, Shard, tuple[int, ...]]] = {}
        """Newest file of frozen weights by its name without a folder, with what tells that it is still that file."""

    def adopt(self, manifest: Manifest, folder: Path) -> None:
        """Remember the frozen weights that this process has loaded from a step, verified, in `folder`."""
        for shard in manifest.shards:
            if shard.is_frozen and (folder / shard.file).is_file():
                self._remember_frozen(folder / shard.file, shard)

    def link(self, snapshot: Snapshot, name: str, rank: int) -> Shard | None:
        """Link the file of the last save if this state serialises to the same bytes; else return None.

        Another fingerprint (the common case) decides at once. An equal one is followed by the whole digest and a read
        of the linked file, so that a damaged file is not linked. Frozen weights are not serialised again, and read each
        `READ_BACK_EVERY` saves: tiers read what they take, and a restore what it loads.
        """
        if snapshot.is_frozen:
            return self._link_frozen(snapshot, name, rank)
        fingerprint, (prior, source, digest) = (fingerprint_of(snapshot.state), self._last.get(name, ("", Path(), "")))
        if fingerprint != prior:
            return None
        dry = DigestingFile(_Nowhere())
        serialize(snapshot.state, dry)
        try:
            if dry.sha256() != digest or digest_on_disk(source) != digest:
                return None
            link_durably(source, snapshot.path)
        except OSError:
            return None
        return Shard(file=name, size_bytes=dry.size_bytes, sha256=digest, rank=rank)

    def _link_frozen(self, snapshot: Snapshot, name: str, rank: int) -> Shard | None:
        source, shard, identity = self._frozen.get(snapshot.path.name, (Path(), None, ()))
        try:
            if shard is None or _identity(source) != identity:
                return None
            self._links[source.name] += 1
            if self._links[source.name] % READ_BACK_EVERY == 0 and digest_on_disk(source) != shard.sha256:
                return None
            link_durably(source, snapshot.path)
        except OSError:
            return None
        return shard.model_copy(update={"file": name, "rank": rank})

    def _remember_frozen(self, path: Path, shard: Shard) -> None:
        self._frozen[path.name] = (path, shard, _identity(path))

    def remember(self, snapshot: Snapshot, shard: Shard) -> None:
        if snapshot.is_frozen:
            self._remember_frozen(snapshot.path, shard)
            return
        self._last[shard.file] = (fingerprint_of(snapshot.state), snapshot.path, shard.sha256)


def _identity(path: Path) -> tuple[int, ...]:
    """Return what a write or a replacement of the file changes, and another link to it does not."""
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Nowhere:
    name = ""

    def write(self, content: bytes, /) -> int:
        return len(content)

    def flush(self) -> None:
        pass


def fingerprint_of(state: Any) -> str:
    """Return a digest of both ends of each tensor; states with equal fingerprints may still differ."""
    digest = hashlib.sha256()

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            flat = value.detach().reshape(-1).view(torch.uint8) if value.dim() else value.detach().reshape(1)
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            for part in (flat[:_SAMPLE_BYTES], flat[-_SAMPLE_BYTES:]):
                digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                digest.update(repr(key).encode())
                walk(item)
        elif type(value) in (list, tuple):
            for item in value:
                walk(item)
        else:
            digest.update(pickle.dumps(value))

    walk(state)
    return digest.hexdigest()


def merge(by_rank: tuple[tuple[Shard, ...], ...]) -> tuple[Shard, ...]:
    """Return every file once. Raises `Diverged` if nodes wrote a common file (the model states) differently."""
    shard_by_file: dict[str, Shard] = {}
    for shard in (shard for shards in by_rank for shard in shards):
        twin = shard_by_file.setdefault(shard.file, shard)
        if twin.sha256 != shard.sha256:
            raise Diverged(
                "ranks that must hold equal state wrote different bytes",
                f"{shard.file}: rank {twin.rank} {twin.sha256[:12]}, rank {shard.rank} {shard.sha256[:12]}",
                "suspect the hardware of one of them; restart from the last committed checkpoint",
            )
    return tuple(shard_by_file.values())


def random_state_of(rank: int) -> str:
    """Return the name of the file with a rank's random state."""
    return f"rng_rank_{rank:05d}.pt"


def rng_state(watch: str = "") -> dict[str, Any]:
    """Return the random state, and beside it the watch's."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state(), **({"watch": watch} if watch else {})}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class Worker:
    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._open += 1
        self._jobs.put(job)

    def busy(self) -> bool:
        with self._lock:
            return self._open > 0

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # Linux has a niceness per thread; threads that this one starts inherit it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            job = self._jobs.get()
            try:
                if self.error is None:
                    job()
            except BaseException as error:
                self.error = error
            finally:
                with self._lock:
                    self._open -= 1

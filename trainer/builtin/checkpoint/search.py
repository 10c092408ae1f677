"""The search for sound copies of the shards that a rank needs, on the tiers and on other nodes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainer.builtin.checkpoint.bucket import BucketTier
from trainer.builtin.checkpoint.deepspeed_engine import forbidden
from trainer.builtin.checkpoint.files import open_regular, remove, sha256_of
from trainer.builtin.checkpoint.neighbour import Neighbours
from trainer.builtin.checkpoint.room import with_room
from trainer.builtin.checkpoint.tiers import AnyTiers, SharedTier, Tier
from trainer.builtin.gang import Gang
from trainer.contract import Manifest, Shard
from trainer.errors import StorageError, lasting, limit_error
from trainer.events import emit

NOTHING_NEEDED: Any = object()
_READERS = 8
"""Files that a rank reads at once."""
PAUSES_S = (1.0, 5.0, 15.0)
"""Pauses between tries to read from the shared tier: an evicted Lustre client is back within seconds."""


@dataclass(frozen=True)
class FoundShard:
    """A shard of this rank and the tier that holds a sound copy."""

    shard: Shard
    tier: Tier
    identity: tuple[int, ...] = ()
    """Identity of the verified file; it differs after a change or for another file in its place."""


@dataclass(frozen=True)
class Search:
    """A rank's search on its node's tier, then on the other nodes, then on the shared tier."""

    gang: Gang
    tiers: AnyTiers
    neighbours: Neighbours
    attempt: int

    def shards(self, manifest: Manifest) -> list[FoundShard | None]:
        """Return one result for each shard that this rank needs; all are read in parallel, each once."""
        own_shards = [shard for shard in needed_shards(manifest, self.gang.rank) if not shard.common]
        common = [shard for shard in needed_shards(manifest, self.gang.rank) if shard.common]
        first_shards, later_shards = ([*own_shards, *common], []) if self.gang.first_on_node else (own_shards, common)
        title = f"verify or fetch the shards of step {manifest.step}"
        results = self.gang.together(title, lambda: self._find_all(first_shards, manifest))
        # The node's first rank has fetched the common shards before the others look for them.
        return [*results, *self.gang.together(title, lambda: self._find_all(later_shards, manifest))]

    @property
    def part(self) -> tuple[int, int]:
        """This rank's part of a reshaping, and their number: all ranks, or without a shared folder those of a node."""
        gang = self.gang
        of_all = isinstance(self.tiers.shared, Tier)
        return (gang.rank, gang.world_size) if of_all else (gang.local_rank, gang.local_size)

    def all_shards(self, manifest: Manifest) -> list[FoundShard | None]:
        """Return this rank's part of all ranks' shards."""
        part, parts = self.part
        own_shards = list(manifest.shards)[part::parts]
        title = f"verify all shards of step {manifest.step}"
        return self.gang.together(title, lambda: self._find_all(own_shards, manifest)) or [NOTHING_NEEDED]

    def _find_all(self, shards: list[Shard], manifest: Manifest) -> list[FoundShard | None]:
        if not shards:
            return []
        with ThreadPoolExecutor(min(_READERS, len(shards)), thread_name_prefix="checkpoint-read") as readers:
            return list(readers.map(lambda shard: self._find(shard, manifest), shards))

    def _find(self, shard: Shard, manifest: Manifest) -> FoundShard | None:
        local, shared = self.tiers.local, self.tiers.shared
        shard_place = self._look(local, shard, manifest) or self._fetch(shard, manifest)
        if shard_place is not None:
            return shard_place
        if isinstance(shared, BucketTier):
            shard_place = self._download(shared, shard, manifest)
        else:
            shard_place = self._look(shared, shard, manifest, PAUSES_S)
        return shard_place or self._take_twin(shard, manifest)

    def _take_twin(self, shard: Shard, manifest: Manifest) -> FoundShard | None:
        """Copy frozen weights to this node's tier from another step on the shared tier: they are the same in all."""
        shared, target = self.tiers.shared, self.tiers.local.folder(manifest.step) / shard.file
        for step, twin in shared.twins(shard, manifest.step) if shard.is_frozen else ():
            try:
                remove(target)
                self._fetch_by(partial(shared.fetch, step, twin, target), shard, manifest)
            except (OSError, StorageError) as error:
                emit_refusal(shared, step, self.gang.rank, twin.file, str(error)[:300], shard.sha256)
                continue
            reason, identity = look(target, shard)
            if not reason:
                emit("frozen_of_another_step", step=manifest.step, from_step=step, file=shard.file)
                return FoundShard(shard, self.tiers.local, identity)
        return None

    def _look(self, tier: Tier, shard: Shard, manifest: Manifest, pauses_s: Sequence[float] = ()) -> FoundShard | None:
        reason, identity = look(tier.folder(manifest.step) / shard.file, shard, pauses_s)
        if not reason:
            return FoundShard(shard, tier, identity)
        emit_refusal(tier, manifest.step, self.gang.rank, shard.file, reason, shard.sha256)
        return None

    def _download(self, tier: BucketTier, shard: Shard, manifest: Manifest) -> FoundShard | None:
        """Fetch a shard from S3 to this node's tier."""
        target = self.tiers.local.folder(manifest.step) / shard.file
        try:
            remove(target)
            fetched_bytes = self._fetch_by(partial(tier.fetch, manifest.step, shard, target), shard, manifest)
        except (OSError, StorageError) as error:
            reason = "missing" if isinstance(error, FileNotFoundError) else str(error)[:300]
            emit_refusal(tier, manifest.step, self.gang.rank, shard.file, reason, shard.sha256)
            return None
        reason, identity = look(target, shard)
        if reason:
            emit_refusal(tier, manifest.step, self.gang.rank, shard.file, reason, shard.sha256)
            return None
        emit("downloaded_shard", step=manifest.step, file=shard.file, bytes=fetched_bytes)
        return FoundShard(shard, self.tiers.local, identity)

    def _fetch(self, shard: Shard, manifest: Manifest) -> FoundShard | None:
        """Fetch a shard from another node to this one's tier and replace the refused copy there."""
        local = self.tiers.local
        target = local.folder(manifest.step) / shard.file
        for server in self.neighbours.holding(manifest, shard):
            try:
                remove(target)
                fetched_bytes = self._fetch_by(partial(server.fetch, manifest.step, shard, target), shard, manifest)
            except (OSError, StorageError) as error:
                emit("neighbour_without_shard", step=manifest.step, node_asked=server.node, why=str(error)[:200])
                continue
            reason, identity = look(target, shard)
            if not reason:
                emit("fetched_shard", step=manifest.step, from_node=server.node, file=shard.file, bytes=fetched_bytes)
                return FoundShard(shard, local, identity)
        return None

    def _fetch_by(self, call: Callable[[], int], shard: Shard, manifest: Manifest) -> int:
        """Fetch a shard by `call`, making room. Return the fetched bytes, fewer than its size after a resume."""
        fetched_bytes = 0

        def fetch() -> None:
            nonlocal fetched_bytes
            fetched_bytes = call()

        try:
            with_room(self.tiers.local, shard.size_bytes, self._reclaim(manifest), fetch)
        except OSError as error:
            if (refused := limit_error(error, shard.file)) is not None:
                raise refused from error
            raise
        return fetched_bytes

    def _reclaim(self, manifest: Manifest) -> Callable[[], list[int]]:
        return lambda: self.tiers.local.reclaim({manifest.step}, self.attempt, manifest.step)


def needed_shards(manifest: Manifest, rank: int) -> tuple[Shard, ...]:
    """Return a rank's shards: its own and the model states, which all ranks share."""
    return tuple(shard for shard in manifest.shards if shard.rank == rank or shard.common)


def unsound_shards(manifest: Manifest, folder: Path) -> list[tuple[Shard, str]]:
    """Return the shards in a step folder that are not sound, with the reasons or the digests seen."""
    checks = ((shard, look(folder / shard.file, shard)[0]) for shard in manifest.shards)
    return [(shard, reason) for shard, reason in checks if reason]


def look(path: Path, shard: Shard, pauses_s: Sequence[float] = ()) -> tuple[str, tuple[int, ...]]:
    """Return why a copy of a shard is refused (empty when it is sound), and the identity of the file.

    Wait after errors that may pass: a refusal would give the step up for an older one. Raises a limit's error: it says
    nothing of the copy.
    """
    for pause_s in (*pauses_s, None):
        try:
            return _read(path, shard)
        except (FileNotFoundError, NotADirectoryError):
            return "missing", ()
        except OSError as error:
            if pause_s is None and (refused := limit_error(error, path)) is not None:
                raise refused from error
            if pause_s is None or lasting(error) or error.errno == errno.EINVAL:
                return f"unreadable: {error.strerror}", ()
            time.sleep(pause_s)
    raise AssertionError("the last try answers")


def _read(path: Path, shard: Shard) -> tuple[str, tuple[int, ...]]:
    with open_regular(path) as file:
        identity = identity_of(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the kernel reads further ahead
        digest = sha256_of(file)
        if digest != shard.sha256:
            return digest if (size := path.stat().st_size) == shard.size_bytes else f"{digest}, {size} bytes", ()
        file.seek(0)
        return forbidden(file), identity


def identity_of(file: BufferedReader) -> tuple[int, ...]:
    """Return the identity of a file and its content; every change of the file updates the ctime."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def emit_refusal(tier: SharedTier, step: int, rank: int, file: str, detail: str, expected_digest: str) -> None:
    event = "missing_shard" if detail == "missing" else "refused_shard"
    emit(event, step=step, tier=tier.name, rank=rank, file=file, seen=detail, wanted=expected_digest)

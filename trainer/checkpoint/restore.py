"""The newest step that every rank can restore: verified before anything is deserialised, agreed by all.

A shard is taken from the first tier whose copy has the manifest's digest; a step that some rank cannot complete is
refused by all, and the next older one is tried. Every refusal is an event.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainer.checkpoint.commit import Begun
from trainer.checkpoint.deepspeed_engine import HostCopyEngine, forbidden
from trainer.checkpoint.fence import check_fence
from trainer.checkpoint.files import copy_durably, link_durably, open_regular, remove
from trainer.checkpoint.neighbour import Neighbours
from trainer.checkpoint.room import with_room
from trainer.checkpoint.tiers import RESHAPING, Tier, Tiers
from trainer.checkpoint.universal import convert_apart, load_universal
from trainer.checkpoint.writing import set_rng_state
from trainer.contract import COMMITTED_NAME, Manifest, Shard, attempt_folder, parse_manifest
from trainer.errors import ConfigError, Fenced, PeerLost, StorageError
from trainer.events import emit
from trainer.gang import Gang

_NOTHING_NEEDED: Any = object()
_READERS = 8
"""Files that a rank reads at a time."""


@dataclass(frozen=True)
class Found:
    """A shard of this rank and the tier that holds a sound copy."""

    shard: Shard
    tier: Tier
    identity: tuple[int, ...] = ()
    """Of the file whose bytes were compared: a later change of it, or another file in its place, would show."""


def restore(
    engine: Any, gang: Gang, tiers: Tiers, zero_stage: int, attempt: int, neighbours: Neighbours | None = None
) -> Begun:
    """Load the newest sound step into the engine, and tidy up what ended attempts left half done.

    Raises `StorageError` when the shared tier holds checkpoints but none is sound, `ConfigError` when all are of
    another world size or ZeRO stage.
    """
    candidates = _candidates(gang, tiers)
    search = Search(gang, tiers, neighbours or Neighbours(0), attempt)
    chosen = _choose(candidates, search, (gang.world_size, zero_stage))
    known = {(manifest.step, manifest.attempt) for manifest in candidates}
    if gang.first_on_node:
        _clean(tiers.local, known, attempt)
    if gang.first:
        _clean(tiers.shared, known, attempt)
    gang.barrier()
    if chosen is None:
        return Begun()
    manifest, found = chosen
    if manifest.world_size != gang.world_size:
        _reshape(engine, manifest, found, search)
        # Of the old ranks' shards this gang brings none on: the next save is its own.
        return Begun(manifest, on_shared=True)
    _stage(found, manifest, gang, tiers, attempt)
    _load(engine, manifest, gang, tiers, found)
    return Begun(manifest, gang.all_agree(_lies_on(tiers.shared, manifest, gang.rank)))


def needed(manifest: Manifest, rank: int) -> tuple[Shard, ...]:
    """What a rank loads: its own shards and the model states, which all ranks share."""
    return tuple(shard for shard in manifest.shards if shard.rank == rank or _common(shard))


def verified(manifest: Manifest, folder: Path) -> list[tuple[Shard, str]]:
    """Shards below a step folder that are not sound, with what was seen instead of their digest."""
    seen = ((shard, _look(folder / shard.file, shard)[0]) for shard in manifest.shards)
    return [(shard, why) for shard, why in seen if why]


def _candidates(gang: Gang, tiers: Tiers) -> list[Manifest]:
    """Everything that any rank saw on any tier, the same list on all ranks; newest step, then newest attempt first."""
    mine: set[bytes] = set()
    for tier in tiers:
        for claim in tier.claims():
            if claim.manifest is not None:
                mine.add(claim.manifest.serialize())
            else:
                _refused(tier, claim.step, gang.rank, COMMITTED_NAME, claim.why, "a manifest with its seal")
    union = sorted(set().union(*gang.gather(sorted(mine))))
    manifests = [parse_manifest(content) for content in union]
    return sorted(manifests, key=lambda manifest: (manifest.step, manifest.attempt), reverse=True)


def _choose(candidates: list[Manifest], search: Search, shape: tuple[int, int]) -> tuple[Manifest, list[Found]] | None:
    gang, tiers, attempt = search.gang, search.tiers, search.attempt
    fitting = []
    for manifest in candidates:
        # Another number of ranks is no obstacle where DeepSpeed's universal format can reshape the shards.
        elastic = manifest.world_size != shape[0] and manifest.zero_stage > 0
        if manifest.zero_stage != shape[1] or not (elastic or manifest.world_size == shape[0]):
            why = f"of {manifest.world_size} ranks with ZeRO stage {manifest.zero_stage}"
        elif manifest.attempt > attempt:
            raise Fenced("a newer attempt has committed", f"attempt {manifest.attempt}, this is {attempt}")
        else:
            fitting.append(manifest)
            found = search.everything(manifest) if elastic else search.shards(manifest)
            sound = [item for item in found if item is not None]
            if gang.all_agree(len(sound) == len(found) > 0):
                return manifest, sound
            why = "not complete on every rank"
        if gang.first:
            emit("refused_step", step=manifest.step, of_attempt=manifest.attempt, why=why)
    if candidates and not fitting:
        shapes = sorted({(manifest.world_size, manifest.zero_stage) for manifest in candidates})
        raise ConfigError(
            "the checkpoints are of another ZeRO stage, or of another world size without ZeRO",
            f"(ranks, stage): {shapes}, this attempt has {shape}",
            "use the ZeRO stage of before; with stage 0 also as many ranks",
        )
    if gang.sums([float(any(True for _ in tiers.shared.claims()))])[0]:
        raise StorageError(
            "the shared tier holds checkpoints but none of them is sound",
            ", ".join(f"step {manifest.step}" for manifest in fitting) or "damaged manifests",
            "restore a sound copy from the archive, or remove the folder to start from the beginning",
        )
    return None


def _clean(tier: Tier, known: set[tuple[int, int]], attempt: int) -> None:
    if removed := tier.clean(known, attempt):
        emit("cleaned", tier=tier.name, leftovers=removed[:20], count=len(removed))


@dataclass(frozen=True)
class Search:
    """Where a rank looks for sound copies of shards: its node's tier, then the other nodes', then the shared one."""

    gang: Gang
    tiers: Tiers
    neighbours: Neighbours
    attempt: int

    def shards(self, manifest: Manifest) -> list[Found | None]:
        """One answer for each shard that this rank needs; they are read in parallel, each once."""
        mine = [shard for shard in needed(manifest, self.gang.rank) if not _common(shard)]
        common = [shard for shard in needed(manifest, self.gang.rank) if _common(shard)]
        first = [*mine, *common] if self.gang.first_on_node else mine
        found = self._each(first, manifest)
        # The node's first rank has brought what all its ranks share, where a neighbour had it.
        self.gang.barrier()
        return found if self.gang.first_on_node else [*found, *self._each(common, manifest)]

    def everything(self, manifest: Manifest) -> list[Found | None]:
        """All shards of all ranks, for the first rank, which reshapes them; the others need none as they are."""
        return self._each(list(manifest.shards), manifest) if self.gang.first else [_NOTHING_NEEDED]

    def _each(self, shards: list[Shard], manifest: Manifest) -> list[Found | None]:
        if not shards:
            return []
        with ThreadPoolExecutor(min(_READERS, len(shards)), thread_name_prefix="checkpoint-read") as readers:
            return list(readers.map(lambda shard: self._find(shard, manifest), shards))

    def _find(self, shard: Shard, manifest: Manifest) -> Found | None:
        for tier in self.tiers:
            why, identity = _look(tier.folder(manifest.step) / shard.file, shard)
            if not why:
                return Found(shard, tier, identity)
            _refused(tier, manifest.step, self.gang.rank, shard.file, why, shard.sha256)
            if tier is self.tiers.local and self._fetch(shard, manifest):
                return Found(shard, tier)
        return None

    def _fetch(self, shard: Shard, manifest: Manifest) -> bool:
        """Bring a shard from another node to this one's tier; what stands there and was refused is replaced."""
        local = self.tiers.local
        target = local.folder(manifest.step) / shard.file
        for door in self.neighbours.holding(manifest, shard):
            try:
                remove(target)
                with_room(
                    local, shard.size_bytes, self._reclaim(manifest), partial(door.fetch, manifest.step, shard, target)
                )
            except (OSError, StorageError) as error:
                emit("neighbour_without_shard", step=manifest.step, node_asked=door.node, why=str(error)[:200])
                continue
            if not _look(target, shard)[0]:
                emit("fetched_shard", step=manifest.step, from_node=door.node, file=shard.file, bytes=shard.size_bytes)
                return True
        return False

    def _reclaim(self, manifest: Manifest) -> Callable[[], list[int]]:
        return lambda: self.tiers.local.reclaim({manifest.step}, self.attempt, manifest.step)


def _refused(tier: Tier, step: int, rank: int, file: str, seen: str, wanted: str) -> None:
    event = "missing_shard" if seen == "missing" else "refused_shard"
    emit(event, step=step, tier=tier.name, rank=rank, file=file, seen=seen, wanted=wanted)


def _stage(found: list[Found], manifest: Manifest, gang: Gang, tiers: Tiers, attempt: int) -> None:
    """Bring what the local tier lacks from the shared one, so that the load is local and the node whole again."""

    def reclaim() -> list[int]:
        return tiers.local.reclaim({manifest.step}, attempt, manifest.step)

    for item in found:
        mine = item.shard.rank == gang.rank or gang.first_on_node
        if item.tier is not tiers.local and mine:
            source, target = (tier.folder(manifest.step) / item.shard.file for tier in (item.tier, tiers.local))
            copy = partial(copy_durably, source, target, partial(_insist, item.shard, item.tier.name))
            with_room(tiers.local, item.shard.size_bytes, reclaim, copy)
    gang.barrier()
    if gang.first_on_node:
        size = len(manifest.serialize())
        with_room(tiers.local, size, reclaim, lambda: tiers.local.publish(manifest, attempt))


def _reshape(engine: Any, manifest: Manifest, found: list[Found], search: Search) -> None:
    """Saved on other many ranks: the first rank converts verified copies, all load what came out, and it goes."""
    gang, shared = search.gang, search.tiers.shared
    work = shared.root / f"{RESHAPING}{manifest.step:08d}-{search.attempt:04d}"
    source, target = work / attempt_folder(manifest.attempt), work / "universal"
    error: StorageError | OSError | None = None
    if gang.first:
        shutil.rmtree(work, ignore_errors=True)
        started = time.monotonic()
        try:
            for item in found:
                file = item.tier.folder(manifest.step) / item.shard.file
                copy_durably(file, work / item.shard.file, partial(_insist, item.shard, item.tier.name))
            convert_apart(source, target)
            _keep_on_shared(manifest, work, shared, search.attempt)
        except (StorageError, OSError) as failure:  # told to the others: they would wait for this rank
            error = failure
        ranks, seconds = (manifest.world_size, gang.world_size), round(time.monotonic() - started, 2)
        emit("reshaped", step=manifest.step, from_ranks=ranks[0], to_ranks=ranks[1], seconds=seconds)
    if not gang.all_agree(error is None):
        raise error or PeerLost("the first rank could not reshape the checkpoint")
    engine.checkpoint_engine = HostCopyEngine(lambda path, file: None)
    load_universal(engine, target)
    gang.barrier()
    if gang.first:
        shutil.rmtree(work, ignore_errors=True)


def _keep_on_shared(manifest: Manifest, work: Path, shared: Tier, attempt: int) -> None:
    """Where the nodes alone held the step: a gang of other ranks could never bring it on, nor the archive find it."""
    there = any(claim.manifest == manifest for claim in shared.claims() if claim.step == manifest.step)
    folder = shared.folder(manifest.step)
    if there and all(
        (folder / s.file).is_file() and (folder / s.file).stat().st_size == s.size_bytes for s in manifest.shards
    ):
        return
    check_fence(shared.root, attempt)
    for shard in manifest.shards:
        link_durably(work / shard.file, folder / shard.file)
    shared.settle(manifest.step)
    shared.publish(manifest, attempt)


def _load(engine: Any, manifest: Manifest, gang: Gang, tiers: Tiers, found: list[Found]) -> None:
    root = tiers.local.folder(manifest.step)
    wanted = {root / shard.file: shard for shard in manifest.shards}
    compared = {root / each.shard.file: each.identity for each in found if each.tier is tiers.local}

    def verify(path: Path, file: BufferedReader) -> None:
        if path not in wanted:
            raise StorageError("a file that the manifest does not name was about to be loaded", path)
        if _identity(file) == compared.get(path):
            return  # all of it was read and compared while the gang chose this step
        _insist(wanted[path], tiers.local.name, hashlib.file_digest(file, "sha256").hexdigest())

    engine.checkpoint_engine = HostCopyEngine(verify, mapped=True)
    path, _ = engine.load_checkpoint(str(root), tag=attempt_folder(manifest.attempt))
    if path is None:
        raise StorageError("DeepSpeed found no state in a verified checkpoint", root)
    if manifest.rng_included:
        rng = root / attempt_folder(manifest.attempt) / f"rng_rank_{gang.rank:05d}.pt"
        set_rng_state(engine.checkpoint_engine.load(str(rng)))


def _lies_on(tier: Tier, manifest: Manifest, rank: int) -> bool:
    """Whether a tier holds this checkpoint by manifest and sizes; it was read back when it was brought there."""
    there = any(claim.manifest == manifest for claim in tier.claims() if claim.step == manifest.step)
    folder = tier.folder(manifest.step)
    try:
        return there and all((folder / s.file).lstat().st_size == s.size_bytes for s in needed(manifest, rank))
    except OSError:
        return False


def _look(path: Path, shard: Shard) -> tuple[str, tuple[int, ...]]:
    """Why a copy of a shard is refused (empty when it is sound), and the identity of the file that was read."""
    try:
        with open_regular(path) as file:
            identity = _identity(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the kernel reads further ahead
            seen = hashlib.file_digest(file, "sha256").hexdigest()
            if seen != shard.sha256:
                return seen if (size := path.stat().st_size) == shard.size_bytes else f"{seen}, {size} bytes", ()
            file.seek(0)
            return forbidden(file), identity
    except (FileNotFoundError, NotADirectoryError):
        return "missing", ()
    except OSError as error:
        return f"unreadable: {error.strerror}", ()


def _identity(file: BufferedReader) -> tuple[int, ...]:
    """Of a file and of its content: the kernel sets the last one anew with whatever is done to it."""
    seen = os.fstat(file.fileno())
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _insist(shard: Shard, tier: str, seen: str) -> None:
    if seen != shard.sha256:
        raise StorageError("a shard changed after it was verified", f"{tier} {shard.file}: {seen}")


def _common(shard: Shard) -> bool:
    return shard.file.rpartition("/")[2].startswith("mp_rank_")

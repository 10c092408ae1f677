"""The restore of the newest step that every rank can load, verified before anything is deserialised.

A shard comes from the first tier whose copy has the manifest's digest. If any rank lacks a shard, all ranks refuse the
step and try the next older one. Every refusal is an event.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainer.builtin.checkpoint.commit import Begun
from trainer.builtin.checkpoint.convert.universal import convert, load_universal
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine, load_safely
from trainer.builtin.checkpoint.fence import check_fence
from trainer.builtin.checkpoint.files import copy_durably, open_regular, sha256_of
from trainer.builtin.checkpoint.neighbour import Neighbours
from trainer.builtin.checkpoint.room import with_room
from trainer.builtin.checkpoint.search import (
    NOTHING_NEEDED,
    PAUSES_S,
    FoundShard,
    Search,
    emit_refusal,
    identity_of,
    look,
    needed_shards,
)
from trainer.builtin.checkpoint.tiers import RESHAPING, AnyTiers, Claim, SharedTier, Tier
from trainer.builtin.checkpoint.writing import random_state_of, set_rng_state
from trainer.builtin.gang import Gang
from trainer.contract import COMMITTED_NAME, Layout, Manifest, Shard, attempt_folder, parse_manifest
from trainer.errors import ConfigError, Fenced, NothingSound, StorageError
from trainer.events import emit
from trainer.place import generation


@dataclass(frozen=True)
class Start:
    """The checkpoint that an attempt goes on from, and this rank's sound shards of it."""

    manifest: Manifest
    shards: list[FoundShard]
    search: Search
    layout: Layout

    @property
    def reshapes(self) -> bool:
        """The step is of another layout: it comes in the universal format, which has no frozen weights."""
        return self.manifest.layout.shards != self.layout.shards


def choose_start(
    gang: Gang,
    tiers: AnyTiers,
    zero_stage: int,
    attempt: int,
    neighbours: Neighbours | None = None,
    is_banned: Callable[[Manifest], bool] = lambda _: False,
    layout: Layout | None = None,
) -> Start | None:
    """Return the newest sound step, None where nothing was saved, and remove unfinished files of ended attempts. No
    engine is needed yet: it can be built without weights. `is_banned`: what the watch does not trust, equal on all
    ranks. `layout`: None where all ranks compute different data.

    Raises `StorageError` when the shared tier holds checkpoints but none is sound, `ConfigError` when all have another
    ZeRO stage, or without ZeRO another layout.
    """
    layout = layout or Layout(gang.world_size)
    candidates = _candidates(gang, tiers)
    search = Search(gang, tiers, neighbours or Neighbours(0), attempt)
    trusted_manifests = [manifest for manifest in candidates if not is_banned(manifest)]
    choice = _choose(trusted_manifests, search, layout, zero_stage)
    known_commits = {(manifest.step, manifest.attempt) for manifest in candidates}

    def tidy() -> None:
        if gang.first_on_node:
            _clean(tiers.local, known_commits, attempt)
        if gang.first:
            _clean(tiers.shared, known_commits, attempt)

    gang.together("remove what ended attempts left", tidy)
    return None if choice is None else Start(*choice, search, layout)


def load_start(engine: Any, start: Start | None) -> Begun:
    """Load the chosen step into the engine: every weight, and the optimizer's whole state."""
    if start is None:
        return Begun()
    manifest, shards, search, layout = start.manifest, start.shards, start.search, start.layout
    gang, tiers = search.gang, search.tiers
    if start.reshapes:
        watch = _reshape(engine, manifest, shards, search, layout)
        # This gang cannot replicate the old ranks' shards, and `_reshape` has put them on the shared tier.
        return Begun(manifest, on_shared=True, watch=watch)
    extra_state = _load(engine, manifest, gang, tiers, _stage(shards, manifest, gang, tiers, search.attempt))
    on_shared = gang.together(
        "look at the shared tier", lambda: tiers.shared.holds(manifest, needed_shards(manifest, gang.rank))
    )
    return Begun(manifest, gang.all_agree(on_shared), extra_state.get("watch", ""))


def _candidates(gang: Gang, tiers: AnyTiers) -> list[Manifest]:
    """Return the manifests that any rank saw on any tier, equal on all ranks; newest step and attempt first.

    The ranks gather seals. A manifest names every shard of every rank, so it travels once, if some rank lacks it.
    """

    def collect() -> dict[str, Manifest]:
        own_manifests: dict[str, Manifest] = {}
        for tier in tiers:
            for claim in _claims(tier, PAUSES_S if tier is tiers.shared else ()):
                if claim.manifest is not None:
                    own_manifests[claim.manifest.seal] = claim.manifest
                else:
                    emit_refusal(tier, claim.step, gang.rank, COMMITTED_NAME, claim.why, "a manifest with its seal")
        return own_manifests

    own_manifests = gang.together("look for checkpoints", collect)
    seals_by_rank = [frozenset(seals) for seals in gang.gather(sorted(own_manifests))]
    for seal in sorted(frozenset().union(*seals_by_rank).difference(frozenset.intersection(*seals_by_rank))):
        holder = next(rank for rank, seals in enumerate(seals_by_rank) if seal in seals)
        content = gang.of_holder(own_manifests[seal].serialize() if gang.rank == holder else None, holder)
        own_manifests.setdefault(seal, parse_manifest(content))
    manifests = [own_manifests[seal] for seal in sorted(own_manifests)]
    return sorted(manifests, key=lambda manifest: (manifest.step, manifest.attempt, manifest.generation), reverse=True)


def _claims(tier: SharedTier, pauses_s: Sequence[float]) -> list[Claim]:
    """Return a tier's claims; try again while some cannot be read for a reason that may pass."""
    for pause_s in pauses_s:
        claims = list(tier.claims())
        if not any(claim.passing for claim in claims):
            return claims
        time.sleep(pause_s)
    return list(tier.claims())


def _choose(
    candidates: list[Manifest], search: Search, layout: Layout, zero_stage: int
) -> tuple[Manifest, list[FoundShard]] | None:
    gang, tiers, attempt = search.gang, search.tiers, search.attempt
    fitting = []
    for manifest in candidates:
        # DeepSpeed's universal format can reshape the shards to another layout, except without ZeRO.
        has_layout = manifest.layout.shards == layout.shards
        elastic = not has_layout and manifest.zero_stage > 0
        if manifest.zero_stage != zero_stage or not (elastic or has_layout):
            reason = f"of {manifest.world_size} ranks with ZeRO stage {manifest.zero_stage}"
        elif manifest.attempt > attempt:
            raise Fenced("a newer attempt has committed", f"attempt {manifest.attempt}, this is {attempt}")
        else:
            fitting.append(manifest)
            shards = (search.all_shards if elastic else search.shards)(manifest)
            sound = [item for item in shards if item is not None]
            if gang.all_agree(len(sound) == len(shards) > 0):
                return manifest, sound
            reason = "not complete on every rank"
        if gang.first:
            emit("refused_step", step=manifest.step, of_attempt=manifest.attempt, why=reason)
    if candidates and not fitting:
        shapes = sorted({(manifest.world_size, manifest.zero_stage) for manifest in candidates})
        raise ConfigError(
            "the checkpoints have another ZeRO stage, or another world size without ZeRO",
            f"(ranks, stage): {shapes}, this attempt has {(layout.world_size, zero_stage)}",
            "use the earlier ZeRO stage; with stage 0 also the earlier number of ranks",
        )
    claims = gang.together("look at the shared tier", lambda: list(tiers.shared.claims()))
    if gang.sums([float(bool(claims))])[0]:
        unread = [f"step {claim.step}: {claim.why}" for claim in claims if claim.manifest is None]
        raise NothingSound(
            "the shared tier holds checkpoints but none of them is sound",
            ", ".join([*(f"step {manifest.step}" for manifest in fitting), *unread[:5]]) or "damaged manifests",
            "restore a sound copy from the archive, or remove the folder to start from the beginning",
        )
    return None


def _clean(tier: SharedTier, known_commits: set[tuple[int, int]], attempt: int) -> None:
    if removals := tier.clean(known_commits, attempt):
        emit("cleaned", tier=tier.name, leftovers=removals[:20], count=len(removals))


def _stage(shards: list[FoundShard], manifest: Manifest, gang: Gang, tiers: AnyTiers, attempt: int) -> list[FoundShard]:
    """Copy missing shards from the shared to the local tier, so that the load is local and the node complete again.

    All copies are verified before the load: DeepSpeed's load ends in a collective with the timeout of a step, in which
    ranks without copies would wait for those that still read theirs.
    """

    def reclaim() -> list[int]:
        return tiers.local.reclaim({manifest.step}, attempt, manifest.step)

    def copy_missing() -> None:
        for item in shards:
            is_due = item.shard.rank == gang.rank or gang.first_on_node
            if item.tier is not tiers.local and is_due:
                source, target = (tier.folder(manifest.step) / item.shard.file for tier in (item.tier, tiers.local))
                copy = partial(copy_durably, source, target, partial(_insist, item.shard, item.tier.name))
                with_room(tiers.local, item.shard.size_bytes, reclaim, copy)

    def compare() -> list[FoundShard]:
        if gang.first_on_node:
            size = len(manifest.serialize())
            with_room(tiers.local, size, reclaim, lambda: tiers.local.publish(manifest, attempt))
        return [item if item.tier is tiers.local else _check_copy(item.shard, manifest, tiers.local) for item in shards]

    gang.together(f"copy step {manifest.step} to the nodes", copy_missing)
    return gang.together(f"verify the copies of step {manifest.step}", compare)


def _check_copy(shard: Shard, manifest: Manifest, tier: Tier) -> FoundShard:
    """Verify a shard's copy on a tier and return it. Raises `StorageError` when it differs."""
    reason, identity = look(tier.folder(manifest.step) / shard.file, shard)
    if reason:
        raise StorageError("a shard changed after it was verified", f"{tier.name} {shard.file}: {reason}")
    return FoundShard(shard, tier, identity)


def _reshape(engine: Any, manifest: Manifest, shards: list[FoundShard], search: Search, layout: Layout) -> str:
    """Load a step of another layout: all ranks copy verified shards and convert them, each a part, and load them.
    Without a shared folder the ranks of each node do so for their node. Return the state of the watch, which was equal
    on all ranks."""
    gang, shared = search.gang, search.tiers.shared
    place = shared if isinstance(shared, Tier) else search.tiers.local
    # Ranks that were killed in it leave their parts behind: each generation has a folder of its own.
    work = place.root / f"{RESHAPING}{manifest.step:08d}-{generation()}-{search.attempt:04d}"
    source, target = work / attempt_folder(manifest.attempt), work / "universal"
    part, parts = search.part
    start_s = time.monotonic()

    def copy_shards() -> str:
        watch = ""
        for item in shards:
            if item is not NOTHING_NEEDED:
                file, copy_path = item.tier.folder(manifest.step) / item.shard.file, work / item.shard.file
                copy_durably(file, copy_path, partial(_insist, item.shard, item.tier.name))
                if copy_path.name == random_state_of(0):
                    with open_regular(copy_path) as state:
                        watch = str(load_safely(state).get("watch", ""))
        return watch

    def reshape() -> None:
        convert(source, target, part, parts)
        if gang.first:
            _keep_on_shared(manifest, work, shared, search.attempt)

    own_watch = gang.together(f"copy step {manifest.step} to reshape it", copy_shards)
    watch = next(filter(None, gang.gather(own_watch)), "")
    gang.together(f"reshape step {manifest.step}", reshape)
    if gang.first:
        ranks, seconds = (manifest.world_size, gang.world_size), round(time.monotonic() - start_s, 2)
        fields: dict[str, object] = {"from_ranks": ranks[0], "to_ranks": ranks[1], "parts": parts, "seconds": seconds}
        fields |= {"from_layout": manifest.layout.parts(), "to_layout": layout.parts()}
        emit("reshaped", step=manifest.step, **fields)
    engine.checkpoint_engine = HostCopyEngine(lambda path, file: None)
    with gang.patient():
        load_universal(engine, target)
        gang.barrier()
    if part == 0:
        shutil.rmtree(work, ignore_errors=True)
    return watch


def _keep_on_shared(manifest: Manifest, work: Path, shared: SharedTier, attempt: int) -> None:
    """Publish the step on the shared tier if only the nodes hold it: this gang cannot replicate it later."""
    if shared.holds(manifest, manifest.shards):
        return
    check_fence(shared.marks, attempt)
    for shard in manifest.shards:
        shared.adopt(manifest.step, shard, work / shard.file)
    shared.settle(manifest.step)
    shared.publish(manifest, attempt)


def _load(engine: Any, manifest: Manifest, gang: Gang, tiers: AnyTiers, shards: list[FoundShard]) -> dict[str, Any]:
    """Load the state and return what lies beside the random one."""
    root = tiers.local.folder(manifest.step)
    shard_by_path = {root / shard.file: shard for shard in manifest.shards}
    identities = {root / shard_place.shard.file: shard_place.identity for shard_place in shards}

    def verify(path: Path, file: BufferedReader) -> None:
        if path not in shard_by_path:
            raise StorageError("a file that the manifest does not name was about to be loaded", path)
        if identity_of(file) == identities.get(path):
            return  # it was verified while the gang chose this step
        _insist(shard_by_path[path], tiers.local.name, sha256_of(file))

    engine.checkpoint_engine = HostCopyEngine(verify, use_mmap=True)
    path, _ = engine.load_checkpoint(str(root), tag=attempt_folder(manifest.attempt))
    if path is None:
        raise StorageError("DeepSpeed found no state in a verified checkpoint", root)
    if not manifest.rng_included:
        return {}
    state: dict[str, Any] = engine.checkpoint_engine.load(
        str(root / attempt_folder(manifest.attempt) / random_state_of(gang.rank))
    )
    set_rng_state(state)
    return state


def _insist(shard: Shard, tier: str, actual_digest: str) -> None:
    if actual_digest != shard.sha256:
        raise StorageError("a shard changed after it was verified", f"{tier} {shard.file}: {actual_digest}")

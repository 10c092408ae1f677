"""The restore of the newest step that every rank can load, verified before anything is deserialised.

A shard comes from the first tier whose copy has the manifest's digest. If any rank lacks a shard, all ranks refuse the
step and try the next older one. Every refusal is an event.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
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
    identity_of,
    look,
    needed,
    refused,
)
from trainer.builtin.checkpoint.tiers import RESHAPING, AnyTiers, Claim, SharedTier, Tier
from trainer.builtin.checkpoint.writing import random_state_of, set_rng_state
from trainer.builtin.gang import Gang
from trainer.contract import COMMITTED_NAME, Layout, Manifest, Shard, attempt_folder, parse_manifest
from trainer.errors import ConfigError, Fenced, NothingSound, StorageError
from trainer.events import emit
from trainer.place import generation


def restore(
    engine: Any,
    gang: Gang,
    tiers: AnyTiers,
    zero_stage: int,
    attempt: int,
    neighbours: Neighbours | None = None,
    banned: Callable[[Manifest], bool] = lambda _: False,
    layout: Layout | None = None,
) -> Begun:
    """Load the newest sound step into the engine, and remove unfinished files of ended attempts. `banned`: what the
    watch does not trust, equal on all ranks. `layout`: None where all ranks compute different data.

    Raises `StorageError` when the shared tier holds checkpoints but none is sound, `ConfigError` when all have another
    ZeRO stage, or without ZeRO another layout.
    """
    layout = layout or Layout(gang.world_size)
    candidates = _candidates(gang, tiers)
    search = Search(gang, tiers, neighbours or Neighbours(0), attempt)
    trusted = [manifest for manifest in candidates if not banned(manifest)]
    chosen = _choose(trusted, search, layout, zero_stage)
    known = {(manifest.step, manifest.attempt) for manifest in candidates}

    def tidy() -> None:
        if gang.first_on_node:
            _clean(tiers.local, known, attempt)
        if gang.first:
            _clean(tiers.shared, known, attempt)

    gang.together("remove what ended attempts left", tidy)
    if chosen is None:
        return Begun()
    manifest, found = chosen
    if manifest.layout.shards != layout.shards:
        watch = _reshape(engine, manifest, found, search, layout)
        # This gang cannot replicate the old ranks' shards, and `_reshape` has put them on the shared tier.
        return Begun(manifest, on_shared=True, watch=watch)
    beside = _load(engine, manifest, gang, tiers, _stage(found, manifest, gang, tiers, attempt))
    on_shared = gang.together(
        "look at the shared tier", lambda: tiers.shared.holds(manifest, needed(manifest, gang.rank))
    )
    return Begun(manifest, gang.all_agree(on_shared), beside.get("watch", ""))


def _candidates(gang: Gang, tiers: AnyTiers) -> list[Manifest]:
    """Return the manifests that any rank saw on any tier, equal on all ranks; newest step and attempt first.

    The ranks gather seals. A manifest names every shard of every rank, so it travels once, if some rank lacks it.
    """

    def seen() -> dict[str, Manifest]:
        mine: dict[str, Manifest] = {}
        for tier in tiers:
            for claim in _claims(tier, PAUSES_S if tier is tiers.shared else ()):
                if claim.manifest is not None:
                    mine[claim.manifest.seal] = claim.manifest
                else:
                    refused(tier, claim.step, gang.rank, COMMITTED_NAME, claim.why, "a manifest with its seal")
        return mine

    mine = gang.together("look for checkpoints", seen)
    told = [frozenset(seals) for seals in gang.gather(sorted(mine))]
    for seal in sorted(frozenset().union(*told).difference(frozenset.intersection(*told))):
        holder = next(rank for rank, seals in enumerate(told) if seal in seals)
        content = gang.of_holder(mine[seal].serialize() if gang.rank == holder else None, holder)
        mine.setdefault(seal, parse_manifest(content))
    found = [mine[seal] for seal in sorted(mine)]
    return sorted(found, key=lambda manifest: (manifest.step, manifest.attempt, manifest.generation), reverse=True)


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
        same = manifest.layout.shards == layout.shards
        elastic = not same and manifest.zero_stage > 0
        if manifest.zero_stage != zero_stage or not (elastic or same):
            why = f"of {manifest.world_size} ranks with ZeRO stage {manifest.zero_stage}"
        elif manifest.attempt > attempt:
            raise Fenced("a newer attempt has committed", f"attempt {manifest.attempt}, this is {attempt}")
        else:
            fitting.append(manifest)
            found = (search.everything if elastic else search.shards)(manifest)
            sound = [item for item in found if item is not None]
            if gang.all_agree(len(sound) == len(found) > 0):
                return manifest, sound
            why = "not complete on every rank"
        if gang.first:
            emit("refused_step", step=manifest.step, of_attempt=manifest.attempt, why=why)
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


def _clean(tier: SharedTier, known: set[tuple[int, int]], attempt: int) -> None:
    if removed := tier.clean(known, attempt):
        emit("cleaned", tier=tier.name, leftovers=removed[:20], count=len(removed))


def _stage(found: list[FoundShard], manifest: Manifest, gang: Gang, tiers: AnyTiers, attempt: int) -> list[FoundShard]:
    """Copy missing shards from the shared to the local tier, so that the load is local and the node complete again.

    All copies are verified before the load: DeepSpeed's load ends in a collective with the timeout of a step, in which
    ranks without copies would wait for those that still read theirs.
    """

    def reclaim() -> list[int]:
        return tiers.local.reclaim({manifest.step}, attempt, manifest.step)

    def bring() -> None:
        for item in found:
            mine = item.shard.rank == gang.rank or gang.first_on_node
            if item.tier is not tiers.local and mine:
                source, target = (tier.folder(manifest.step) / item.shard.file for tier in (item.tier, tiers.local))
                copy = partial(copy_durably, source, target, partial(_insist, item.shard, item.tier.name))
                with_room(tiers.local, item.shard.size_bytes, reclaim, copy)

    def compare() -> list[FoundShard]:
        if gang.first_on_node:
            size = len(manifest.serialize())
            with_room(tiers.local, size, reclaim, lambda: tiers.local.publish(manifest, attempt))
        return [item if item.tier is tiers.local else _compared(item.shard, manifest, tiers.local) for item in found]

    gang.together(f"copy step {manifest.step} to the nodes", bring)
    return gang.together(f"verify the copies of step {manifest.step}", compare)


def _compared(shard: Shard, manifest: Manifest, tier: Tier) -> FoundShard:
    """Verify a shard's copy on a tier and return it. Raises `StorageError` when it differs."""
    why, identity = look(tier.folder(manifest.step) / shard.file, shard)
    if why:
        raise StorageError("a shard changed after it was verified", f"{tier.name} {shard.file}: {why}")
    return FoundShard(shard, tier, identity)


def _reshape(engine: Any, manifest: Manifest, found: list[FoundShard], search: Search, layout: Layout) -> str:
    """Load a step of another layout: all ranks copy verified shards and convert them, each a part, and load them.
    Without a shared folder the ranks of each node do so for their node. Return the state of the watch, which was equal
    on all ranks."""
    gang, shared = search.gang, search.tiers.shared
    place = shared if isinstance(shared, Tier) else search.tiers.local
    # Ranks that were killed in it leave their parts behind: each generation has a folder of its own.
    work = place.root / f"{RESHAPING}{manifest.step:08d}-{generation()}-{search.attempt:04d}"
    source, target = work / attempt_folder(manifest.attempt), work / "universal"
    part, parts = search.part
    started = time.monotonic()

    def bring() -> str:
        watch = ""
        for item in found:
            if item is not NOTHING_NEEDED:
                file, copied = item.tier.folder(manifest.step) / item.shard.file, work / item.shard.file
                copy_durably(file, copied, partial(_insist, item.shard, item.tier.name))
                if copied.name == random_state_of(0):
                    with open_regular(copied) as state:
                        watch = str(load_safely(state).get("watch", ""))
        return watch

    def reshape() -> None:
        convert(source, target, part, parts)
        if gang.first:
            _keep_on_shared(manifest, work, shared, search.attempt)

    brought = gang.together(f"copy step {manifest.step} to reshape it", bring)
    watch = next(filter(None, gang.gather(brought)), "")
    gang.together(f"reshape step {manifest.step}", reshape)
    if gang.first:
        ranks, seconds = (manifest.world_size, gang.world_size), round(time.monotonic() - started, 2)
        told: dict[str, object] = {"from_ranks": ranks[0], "to_ranks": ranks[1], "parts": parts, "seconds": seconds}
        told |= {"from_layout": manifest.layout.parts(), "to_layout": layout.parts()}
        emit("reshaped", step=manifest.step, **told)
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


def _load(engine: Any, manifest: Manifest, gang: Gang, tiers: AnyTiers, found: list[FoundShard]) -> dict[str, Any]:
    """Load the state and return what lies beside the random one."""
    root = tiers.local.folder(manifest.step)
    wanted = {root / shard.file: shard for shard in manifest.shards}
    compared = {root / each.shard.file: each.identity for each in found}

    def verify(path: Path, file: BufferedReader) -> None:
        if path not in wanted:
            raise StorageError("a file that the manifest does not name was about to be loaded", path)
        if identity_of(file) == compared.get(path):
            return  # it was verified while the gang chose this step
        _insist(wanted[path], tiers.local.name, sha256_of(file))

    engine.checkpoint_engine = HostCopyEngine(verify, mapped=True)
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


def _insist(shard: Shard, tier: str, seen: str) -> None:
    if seen != shard.sha256:
        raise StorageError("a shard changed after it was verified", f"{tier} {shard.file}: {seen}")

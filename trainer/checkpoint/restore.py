"""The newest step that every rank can restore: verified before anything is deserialised, agreed by all.

A shard is taken from the first tier whose copy has the manifest's digest; a step that some rank cannot complete is
refused by all, and the next older one is tried. Every refusal is an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.checkpoint.commit import set_rng_state
from trainer.checkpoint.deepspeed_engine import HostCopyEngine, load_safely
from trainer.checkpoint.files import copy_durably, digest_of
from trainer.checkpoint.tiers import Tier, Tiers, attempt_folder
from trainer.contract import COMMITTED_NAME, Manifest, Shard
from trainer.errors import ConfigError, StorageError
from trainer.events import emit
from trainer.gang import Gang


@dataclass(frozen=True)
class Found:
    """A shard of this rank and the tier that holds a sound copy."""

    shard: Shard
    tier: Tier


def restore(engine: Any, gang: Gang, tiers: Tiers, campaign: str) -> Manifest | None:
    """Load the newest sound step into the engine; None when there is nothing to restore.

    Raises `StorageError` when the shared tier holds checkpoints but none is sound, `ConfigError` when all are of
    another world size.
    """
    candidates = _candidates(gang, tiers, campaign)
    fitting = [manifest for manifest in candidates if manifest.world_size == gang.world_size]
    for manifest in fitting:
        found = [_find(shard, manifest, tiers, gang.rank) for shard in needed(manifest, gang.rank)]
        sound = [item for item in found if item is not None]
        if gang.all_agree(len(sound) == len(found)):
            _stage(sound, manifest, gang, tiers)
            _load(engine, manifest, gang, tiers)
            return manifest
        if gang.first:
            emit("refused_step", step=manifest.step, of_attempt=manifest.attempt, why="not complete on every rank")
    if candidates and not fitting:
        sizes = sorted({manifest.world_size for manifest in candidates})
        raise ConfigError(
            "the checkpoints are of another world size",
            f"{sizes} ranks, this attempt has {gang.world_size}",
            "use as many ranks as before, or reshape the checkpoint with DeepSpeed's universal format",
        )
    if gang.sums([float(any(True for _ in tiers.shared.manifests()))])[0]:
        raise StorageError(
            "the shared tier holds checkpoints but none of them is sound",
            ", ".join(f"step {manifest.step}" for manifest in fitting) or "damaged manifests",
            "restore a sound copy from the archive, or remove the folder to start from the beginning",
        )
    return None


def needed(manifest: Manifest, rank: int) -> tuple[Shard, ...]:
    """What a rank loads: its own shards and the model states, which all ranks share."""
    return tuple(shard for shard in manifest.shards if shard.rank == rank or _common(shard))


def verified(manifest: Manifest, folder: Path) -> list[tuple[Shard, str]]:
    """Shards below a step folder that do not have their digest, with what was seen instead."""
    seen = ((shard, _digest(folder / shard.file)) for shard in manifest.shards)
    return [(shard, digest) for shard, digest in seen if digest != shard.sha256]


def _candidates(gang: Gang, tiers: Tiers, campaign: str) -> list[Manifest]:
    """Everything that any rank saw on any tier, the same list on all ranks; newest step, then newest attempt first."""
    mine: set[str] = set()
    for tier in tiers:
        for step, content in tier.manifests():
            try:
                manifest = Manifest.model_validate_json(content)
                if (manifest.step, manifest.campaign) != (step, campaign):
                    raise ValueError(f"it says step {manifest.step} of campaign {manifest.campaign}")
                mine.add(content.decode())
            except (ValidationError, ValueError) as error:
                why = str(error).splitlines()[0]
                emit("refused_shard", step=step, tier=tier.name, file=COMMITTED_NAME, seen=why, wanted="a manifest")
    union = sorted(set().union(*gang.gather(sorted(mine))))
    manifests = [Manifest.model_validate_json(text) for text in union]
    return sorted(manifests, key=lambda manifest: (manifest.step, manifest.attempt), reverse=True)


def _find(shard: Shard, manifest: Manifest, tiers: Tiers, rank: int) -> Found | None:
    for tier in tiers:
        seen = _digest(tier.folder(manifest.step) / shard.file)
        if seen == shard.sha256:
            return Found(shard, tier)
        event = "missing_shard" if seen == "missing" else "refused_shard"
        emit(event, step=manifest.step, tier=tier.name, rank=rank, file=shard.file, seen=seen, wanted=shard.sha256)
    return None


def _stage(found: list[Found], manifest: Manifest, gang: Gang, tiers: Tiers) -> None:
    """Bring what the local tier lacks from the shared one, so that the load is local and the node whole again."""
    for item in found:
        mine = item.shard.rank == gang.rank or gang.first_on_node
        if item.tier is not tiers.local and mine:
            source, target = (tier.folder(manifest.step) / item.shard.file for tier in (item.tier, tiers.local))
            copy_durably(source, target, partial(_insist, item.shard, item.tier.name))
    gang.barrier()
    if gang.first_on_node:
        tiers.local.publish(manifest)


def _load(engine: Any, manifest: Manifest, gang: Gang, tiers: Tiers) -> None:
    root = tiers.local.folder(manifest.step)
    wanted = {root / shard.file: shard for shard in manifest.shards}

    def verify(path: Path) -> None:
        if path not in wanted:
            raise StorageError("a file that the manifest does not name was about to be loaded", path)
        _insist(wanted[path], tiers.local.name, digest_of(path))

    engine.checkpoint_engine = HostCopyEngine(verify)
    path, _ = engine.load_checkpoint(str(root), tag=attempt_folder(manifest.attempt))
    if path is None:
        raise StorageError("DeepSpeed found no state in a verified checkpoint", root)
    rng = root / attempt_folder(manifest.attempt) / f"rng_rank_{gang.rank:05d}.pt"
    verify(rng)
    set_rng_state(load_safely(rng))


def _digest(path: Path) -> str:
    try:
        return digest_of(path)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _insist(shard: Shard, tier: str, seen: str) -> None:
    if seen != shard.sha256:
        raise StorageError("a shard changed after it was verified", f"{tier} {shard.file}: {seen}")


def _common(shard: Shard) -> bool:
    return shard.file.rpartition("/")[2].startswith("mp_rank_")

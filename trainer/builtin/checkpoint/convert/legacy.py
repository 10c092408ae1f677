"""The import of folders that DeepSpeed saved without a manifest, only by an explicit command.

Every file is read through the allow-list before it is copied. The manifest seals the bytes at that moment; it does not
vouch for them before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.builtin.checkpoint.deepspeed_engine import forbidden, load_safely
from trainer.builtin.checkpoint.files import copy_durably, digest_of, open_regular
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import Manifest, Shard, attempt_folder
from trainer.errors import StorageError

_SHARD = re.compile(r"^(?:bf16_|fp16_)?(?:zero_pp_rank_(\d+)_)?mp_rank_00_?(?:model|optim)_states\.pt$")
ATTEMPT = 0
"""Attempt of imported steps: no attempt of the campaign made them, and every attempt may continue from them."""


@dataclass(frozen=True)
class Origin:
    """Facts about a folder that DeepSpeed's files do not hold."""

    campaign: str
    tokens: int
    position: int
    """Sequences consumed by all ranks."""
    data_digest: str = ""


def import_legacy(source: Path, tier: Tier, origin: Origin) -> Manifest:
    """Copy a tag's folder (`global_step100`) to a tier and commit it there.

    Raises `StorageError` for files that are missing or cannot be read safely, and for a step that exists already.
    """
    files = sorted(path for path in source.iterdir() if _SHARD.match(path.name)) if source.is_dir() else []
    if not any("model_states" in path.name for path in files):
        raise StorageError("this is not a DeepSpeed folder", source, "name the tag's folder, such as global_step100")
    _refuse_what_would_execute(files)
    state = _read(next(path for path in files if "model_states" in path.name))
    try:
        step, world_size = int(state["global_steps"]), int(state["dp_world_size"])
    except KeyError as missing:
        raise StorageError("these model states are not of DeepSpeed's engine", f"{source}: no {missing}") from missing
    optimizers = [path for path in files if "optim_states" in path.name]
    if optimizers and len(optimizers) != world_size:
        detail = f"{source}: {len(optimizers)} of {world_size}"
        raise StorageError("optimizer states are missing", detail, "bring the folders of all nodes together first")
    if any(claim.step == step for claim in tier.claims()):
        raise StorageError("the tier has this step already", tier.folder(step), "import into another campaign")
    stage = int(_read(optimizers[0])["optimizer_state_dict"].get("zero_stage", 1)) if optimizers else 0
    shards = tuple(_take(path, tier, step) for path in files)
    manifest = Manifest(
        campaign=origin.campaign,
        attempt=ATTEMPT,
        step=step,
        tokens=origin.tokens,
        world_size=world_size,
        zero_stage=stage,
        position=origin.position,
        loss=None,
        config_digest="",
        data_digest=origin.data_digest,
        shards=shards,
        rng_included=False,
    )
    tier.settle(step)
    tier.publish(manifest, ATTEMPT)
    return manifest


def _refuse_what_would_execute(files: list[Path]) -> None:
    for path in files:
        with open_regular(path) as file:
            if reason := forbidden(file):
                raise StorageError("a file of the checkpoint must not be loaded", f"{path}: {reason}")


def _read(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        state: dict[str, Any] = load_safely(file)
    return state


def _take(path: Path, tier: Tier, step: int) -> Shard:
    match = _SHARD.match(path.name)
    assert match is not None
    name, digest = f"{attempt_folder(ATTEMPT)}/{path.name}", digest_of(path)

    def accept(actual_digest: str) -> None:
        if actual_digest != digest:
            raise StorageError("a file changed while it was imported", path)

    copy_durably(path, tier.folder(step) / name, accept)
    return Shard(file=name, size_bytes=path.stat().st_size, sha256=digest, rank=int(match.group(1) or 0))

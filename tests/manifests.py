"""Manifests of checkpoints whose numbers do not matter, and shards by what lies in their files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trainer.contract import COMMITTED_NAME, Manifest, Shard


def manifest_of(step: int, shards: tuple[Shard, ...] = (), **told: Any) -> Manifest:
    """`told`: what does matter."""
    plain = {"campaign": "tiny", "attempt": 1, "tokens": step, "position": step, "loss": 1.0}
    plain |= {"world_size": 1, "zero_stage": 1, "config_digest": "c", "data_digest": "d"}
    return Manifest.model_validate(plain | {"step": step, "shards": shards} | told)


def shard_at(path: Path, rank: int = 0) -> Shard:
    """Of a file below an attempt's folder."""
    content = path.read_bytes()
    name = f"{path.parent.name}/{path.name}"
    return Shard(file=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), rank=rank)


def seal(folder: Path, manifest: Manifest) -> None:
    (folder / COMMITTED_NAME).write_bytes(manifest.serialize())

"""The rows of a list of checkpoints, from manifests and sizes of files only: `trainer.contract.listing.Listed`, as JSON
holds it. Standard library and Python 3.8 only, as `trainer.contract.tree`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict

from trainer.contract.exits import limit_of
from trainer.contract.sealed import MANIFEST, read_manifest, step_folder, step_of_folder
from trainer.contract.tree import own_name

Row = Dict[str, Any]
_OF_MANIFEST = ("attempt", "tokens", "loss", "evaluation_loss", "world_size", "zero_stage")


def rows_of(folder: Path, tier: str, campaign: str, node: str = "") -> list[Row]:
    """Return the steps in a folder of `step-<8 digits>` folders, newest first, unreadable ones included. `campaign`:
    whose they are, empty for any. Raises a limit's `OSError`, which says nothing of any."""
    try:
        steps = sorted((step for step in map(step_of_folder, os.listdir(folder)) if step is not None), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [_row_in(folder / step_folder(step), step, tier, campaign, node) for step in steps]


def row_of(
    content: bytes | None,
    size_of: Callable[[str], int | None],
    step: int,
    tier: str,
    campaign: str,
    node: str,
    read: Callable[[str], bytes],
) -> Row:
    """Return a row, from a manifest's bytes (None: no manifest) and the shards' sizes (None: no shard). `read`: content
    of a shard, for the checkpoint's own name."""
    row: Row = {"tier": tier, "node": node, "step": step, "committed": False}
    if content is None:
        return {**row, "why": "no manifest: never committed, or half gone"}
    try:
        manifest = read_manifest(content, step, campaign)
        shards = [(shard["file"], shard["size_bytes"]) for shard in manifest["shards"]]
        row.update({name: manifest.get(name) for name in _OF_MANIFEST})
    except ValueError as error:
        return {**row, "why": f"{MANIFEST}: {error}", "damaged": True}
    local_sizes = [size for file, size in shards if size_of(file) == size]
    missing_count = len(shards) - len(local_sizes)
    return {
        **row,
        "committed": True,
        "why": f"{missing_count} of {len(shards)} shards are not here" if missing_count else "",
        "shards": len(shards),
        "here": len(local_sizes),
        "bytes": sum(local_sizes),
        "name": own_name((file for file, _ in shards), read),
    }


def _row_in(place: Path, step: int, tier: str, campaign: str, node: str) -> Row:
    try:
        content: bytes | None = (place / MANIFEST).read_bytes()
    except FileNotFoundError:
        content = None
    except OSError as error:
        if limit_of(error):
            raise
        reason = f"unreadable: {error.strerror}"
        return {"tier": tier, "node": node, "step": step, "committed": False, "why": reason, "damaged": True}
    return row_of(content, partial(_size, place), step, tier, campaign, node, lambda name: (place / name).read_bytes())


def _size(place: Path, name: str) -> int | None:
    try:
        return (place / name).lstat().st_size
    except OSError as error:
        if limit_of(error):
            raise
        return None

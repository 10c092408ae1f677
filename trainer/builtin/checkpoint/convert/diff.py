"""`python -m trainer.builtin.checkpoint.convert.diff A B`: compare two checkpoint folders by tensor and metadata.

Shards are loaded pair by pair, so that at most two are in memory; nothing in a shard is executed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainer.builtin.checkpoint.convert.weights import load_shard, verified_manifest
from trainer.contract import Manifest
from trainer.errors import TrainerError

_IDENTITY = frozenset({"shards", "seal", "format"})


def diff(first: Path, second: Path) -> dict[str, Any]:
    """Verify and compare both folders. Raises `StorageError` for one that is not sound."""
    manifests = verified_manifest(first), verified_manifest(second)
    names = [_by_name(manifest) for manifest in manifests]
    rows: list[dict[str, Any]] = []
    for name in sorted(names[0].keys() & names[1].keys()):
        (file, digest), (other, other_digest) = names[0][name], names[1][name]
        if digest == other_digest:
            rows.append({"shard": name, "equal": True, "tensors": []})
        else:
            pair = (dict(_tensors(load_shard(first / file))), dict(_tensors(load_shard(second / other))))
            rows.append({"shard": name, "equal": False, "tensors": list(_compared(*pair))})
    return {
        "steps": [manifest.step for manifest in manifests],
        "metadata": _metadata(*manifests),
        "only_in_first": sorted(names[0].keys() - names[1].keys()),
        "only_in_second": sorted(names[1].keys() - names[0].keys()),
        "shards": rows,
    }


def _by_name(manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return name without the attempt's folder -> (file, digest)."""
    return {shard.file.rpartition("/")[2]: (shard.file, shard.sha256) for shard in manifest.shards}


def _metadata(first: Manifest, second: Manifest) -> dict[str, list[Any]]:
    ours, theirs = first.model_dump(mode="json"), second.model_dump(mode="json")
    return {key: [ours[key], theirs[key]] for key in ours if key not in _IDENTITY and ours[key] != theirs[key]}


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for every tensor and plain value of a state."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}[{index}]")
    else:
        yield path, value


def _compared(first: dict[str, Any], second: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the differences."""
    for path in [*first, *(path for path in second if path not in first)]:
        if path not in first or path not in second:
            yield {"tensor": path, "change": "only in the first" if path in first else "only in the second"}
            continue
        ours, theirs = first[path], second[path]
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            if repr(ours) != repr(theirs):
                yield {"tensor": path, "change": f"{ours!r:.80} -> {theirs!r:.80}"}
        elif ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            yield {"tensor": path, "change": f"{_shape(ours)} -> {_shape(theirs)}"}
        elif not torch.equal(ours, theirs):
            yield {"tensor": path, **_distance(ours, theirs)}


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, Any]:
    before, after = ours.double(), theirs.double()
    moved = after - before
    return {
        "elements": ours.numel(),
        "changed": int((ours != theirs).sum()),
        "norm_first": float(before.norm()),
        "norm_second": float(after.norm()),
        "norm_of_difference": float(moved.norm()),
        "largest_difference": float(moved.abs().max()),
    }


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.builtin.checkpoint.convert.diff", description="Compare two checkpoints."
    )
    parser.add_argument("first", type=Path, help="a step folder with its manifest")
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    try:
        found = diff(options.first, options.second)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

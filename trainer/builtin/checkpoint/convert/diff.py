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


def diff(left: Path, right: Path) -> dict[str, Any]:
    """Verify and compare both folders. Raises `StorageError` for one that is not sound."""
    manifests = verified_manifest(left), verified_manifest(right)
    names = [_by_name(manifest) for manifest in manifests]
    rows: list[dict[str, Any]] = []
    for name in sorted(names[0].keys() & names[1].keys()):
        (left_file, left_digest), (right_file, right_digest) = names[0][name], names[1][name]
        if left_digest == right_digest:
            rows.append({"shard": name, "equal": True, "tensors": []})
        else:
            pair = (dict(_tensors(load_shard(left / left_file))), dict(_tensors(load_shard(right / right_file))))
            rows.append({"shard": name, "equal": False, "tensors": list(_differences(*pair))})
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


def _metadata(left: Manifest, right: Manifest) -> dict[str, list[Any]]:
    old, new = left.model_dump(mode="json"), right.model_dump(mode="json")
    return {key: [old[key], new[key]] for key in old if key not in _IDENTITY and old[key] != new[key]}


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


def _differences(left: dict[str, Any], right: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the differences."""
    for path in [*left, *(path for path in right if path not in left)]:
        if path not in left or path not in right:
            yield {"tensor": path, "change": "only in the first" if path in left else "only in the second"}
            continue
        left_value, right_value = left[path], right[path]
        if not isinstance(left_value, torch.Tensor) or not isinstance(right_value, torch.Tensor):
            if repr(left_value) != repr(right_value):
                yield {"tensor": path, "change": f"{left_value!r:.80} -> {right_value!r:.80}"}
        elif left_value.shape != right_value.shape or left_value.dtype != right_value.dtype:
            yield {"tensor": path, "change": f"{_shape(left_value)} -> {_shape(right_value)}"}
        elif not torch.equal(left_value, right_value):
            yield {"tensor": path, **_distance(left_value, right_value)}


def _distance(left: torch.Tensor, right: torch.Tensor) -> dict[str, Any]:
    left_values, right_values = left.double(), right.double()
    difference = right_values - left_values
    return {
        "elements": left.numel(),
        "changed": int((left != right).sum()),
        "norm_first": float(left_values.norm()),
        "norm_second": float(right_values.norm()),
        "norm_of_difference": float(difference.norm()),
        "largest_difference": float(difference.abs().max()),
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
        result = diff(options.first, options.second)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

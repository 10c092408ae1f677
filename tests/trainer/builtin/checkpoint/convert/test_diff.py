"""What two steps differ in, by tensor and by what their manifests say; told only of checkpoints that are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.manifests import manifest_of, seal, shard_at
from trainer.builtin.checkpoint.convert.diff import diff
from trainer.contract import attempt_folder, step_folder
from trainer.errors import StorageError


def commit(root: Path, step: int, attempt: int, states: dict[str, Any]) -> Path:
    folder, shards = root / step_folder(step), []
    for name, state in states.items():
        path = folder / attempt_folder(attempt) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path)
        shards.append(shard_at(path))
    manifest = manifest_of(step, tuple(shards), attempt=attempt)
    seal(folder, manifest)
    return folder


def test_only_what_moved_is_told_with_how_far(tmp_path: Path) -> None:
    weights = {"a": torch.zeros(4), "b": torch.ones(3)}
    moved = {"a": torch.tensor([0.0, 3.0, 0.0, 4.0]), "b": torch.ones(3)}
    first = commit(tmp_path, 10, 1, {"m.pt": {"module": weights, "step": 10}, "same.pt": {"x": torch.ones(2)}})
    second = commit(tmp_path, 20, 2, {"m.pt": {"module": moved, "step": 20}, "same.pt": {"x": torch.ones(2)}})
    found = diff(first, second)
    by_shard = {row["shard"]: row for row in found["shards"]}
    assert by_shard["same.pt"]["equal"] and not by_shard["m.pt"]["equal"]
    tensor, step = by_shard["m.pt"]["tensors"]
    assert (tensor["tensor"], tensor["changed"], tensor["norm_of_difference"]) == ("module.a", 2, 5.0)
    assert tensor["largest_difference"] == 4.0 and step == {"tensor": "step", "change": "10 -> 20"}
    assert found["metadata"] == {"step": [10, 20], "attempt": [1, 2], "tokens": [10, 20], "position": [10, 20]}


def test_a_shape_that_changed_and_a_shard_that_is_new_are_told(tmp_path: Path) -> None:
    first = commit(tmp_path, 10, 1, {"m.pt": {"a": torch.zeros(4)}})
    second = commit(tmp_path, 20, 1, {"m.pt": {"a": torch.zeros(2, 2)}, "new.pt": {"b": torch.zeros(1)}})
    found = diff(first, second)
    assert found["only_in_second"] == ["new.pt"]
    assert found["shards"][0]["tensors"] == [{"tensor": "a", "change": "float32[4] -> float32[2, 2]"}]


def test_a_damaged_checkpoint_is_not_compared(tmp_path: Path) -> None:
    first = commit(tmp_path, 10, 1, {"m.pt": {"a": torch.zeros(4)}})
    second = commit(tmp_path, 20, 1, {"m.pt": {"a": torch.ones(4)}})
    (second / attempt_folder(1) / "m.pt").write_bytes(b"x")
    with pytest.raises(StorageError, match="not whole"):
        diff(first, second)

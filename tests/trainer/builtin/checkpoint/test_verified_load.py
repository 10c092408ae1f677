"""What is loaded is what was compared: each shard is read for its digest once, and any later change of it shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.manifests import manifest_of, shard_at
from trainer.builtin.checkpoint import restore
from trainer.builtin.checkpoint.search import FoundShard, look
from trainer.builtin.checkpoint.tiers import Tier, Tiers, campaign_tiers
from trainer.contract import Manifest, attempt_folder
from trainer.errors import StorageError

NAME = "mp_rank_00_model_states.pt"


class Engine:
    """The part of DeepSpeed's engine that a restore calls; `before` happens between the comparing and the loading."""

    def __init__(self, before: Callable[[Path], None]) -> None:
        self.checkpoint_engine: Any = None
        self.before, self.state = before, dict[str, Any]()

    def load_checkpoint(self, root: str, tag: str) -> tuple[str, None]:
        path = Path(root) / tag / NAME
        self.before(path)
        self.state = self.checkpoint_engine.load(str(path))
        return root, None


def committed(tmp_path: Path) -> tuple[Tiers, Manifest]:
    tiers = campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny")
    path = tiers.local.folder(7) / attempt_folder(1) / NAME
    path.parent.mkdir(parents=True)
    torch.save({"w": torch.arange(100_000, dtype=torch.float32)}, path)
    manifest = manifest_of(7, (shard_at(path),), rng_included=False)
    return tiers, manifest


def load(tiers: Tiers, manifest: Manifest, before: Callable[[Path], None]) -> Engine:
    (shard,), tier = manifest.shards, tiers.local
    why, identity = look(tier.folder(7) / shard.file, shard)
    assert not why
    engine = Engine(before)
    restore._load(engine, manifest, None, tiers, [FoundShard(shard, tier, identity)])  # type: ignore[arg-type]
    return engine


def rewritten(path: Path) -> None:
    """The same size, the same time of modification, one byte of a tensor changed in place."""
    was = path.stat()
    with path.open("r+b") as file:
        file.seek(was.st_size // 2)
        (byte,) = file.read(1)
        file.seek(was.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def replaced(path: Path) -> None:
    torch.save({"w": torch.zeros(100_000)}, path.with_name("other"))
    path.with_name("other").replace(path)


def test_a_shard_that_was_compared_is_loaded_without_being_read_for_its_digest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers, manifest = committed(tmp_path)
    calls: list[str] = []
    monkeypatch.setattr(restore, "_insist", lambda *rest: calls.append("again"))
    engine = load(tiers, manifest, lambda path: None)
    assert torch.equal(engine.state["w"], torch.arange(100_000, dtype=torch.float32)) and not calls


@pytest.mark.parametrize("change", [rewritten, replaced])
def test_a_shard_that_changed_after_it_was_compared_is_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    tiers, manifest = committed(tmp_path)
    with pytest.raises(StorageError, match="changed after it was verified"):
        load(tiers, manifest, change)


def test_a_tensor_that_was_loaded_stays_what_it_was_when_its_file_goes(tmp_path: Path) -> None:
    tiers, manifest = committed(tmp_path)
    engine = load(tiers, manifest, lambda path: None)
    Tier.drop(tiers.local, 7, 1)
    engine.state["w"].add_(1)
    assert engine.state["w"][0] == 1 and engine.state["w"][-1] == 100_000

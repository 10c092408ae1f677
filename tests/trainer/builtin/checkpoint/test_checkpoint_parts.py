"""The parts of a checkpoint, each alone: tiers, fence, files, and a load that executes nothing."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler

from tests.manifests import manifest_of
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine, forbidden, load_safely
from trainer.builtin.checkpoint.fence import check_fence, raise_fence
from trainer.builtin.checkpoint.files import copy_durably, digest_of, durable, open_regular, sha256_of
from trainer.builtin.checkpoint.tiers import RESHAPING, Tier
from trainer.builtin.engine import learning_rate
from trainer.contract import OptimizerConfig
from trainer.errors import Fenced, StorageError


def committed(tier: Tier) -> list[int]:
    return [manifest.step for manifest in tier.committed()]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    tier = Tier("local", tmp_path / "tiny")
    for step in (10, 20, 30, 40):
        tier.publish(manifest_of(step), attempt=1)
    return tier


@pytest.mark.parametrize("size", [0, 1, 2**22 - 1, 2**22, 2**22 + 1, 2**23, 3 * 2**22 + 5])
def test_a_digest_covers_every_byte_and_the_file_can_be_read_after_it(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "shard").write_bytes(content)
    with open_regular(tmp_path / "shard") as file:
        assert sha256_of(file) == hashlib.sha256(content).hexdigest()
        file.seek(0)
        assert file.read() == content


def test_a_digest_of_a_disk_that_fails_is_an_error() -> None:
    class Failing(io.BytesIO):
        def readinto(self, buffer: Any, /) -> int:
            if self.tell():
                raise OSError(errno.EIO, "the disk")
            return super().readinto(buffer)

    with pytest.raises(OSError, match="the disk"):
        sha256_of(cast("io.BufferedReader", Failing(bytes(2**23))))


def test_retention_keeps_the_newest_and_what_is_proven(tier: Tier) -> None:
    assert tier.retain(keep=2, newest=40, protected_steps={10}, attempt=1, start_step=-1) == [20]
    assert committed(tier) == [40, 30, 10]


def test_retention_counts_up_to_the_newest_commit_and_leaves_refused_leftovers_alone(tier: Tier) -> None:
    assert tier.retain(keep=1, newest=30, protected_steps=(), attempt=1, start_step=-1) == [20, 10]
    assert committed(tier) == [40, 30]


def test_retention_removes_steps_that_never_committed(tier: Tier) -> None:
    (tier.folder(15) / "attempt-0001").mkdir(parents=True)
    tier.retain(keep=9, newest=40, protected_steps=(), attempt=1, start_step=-1)
    assert not tier.folder(15).exists()


def test_a_step_without_a_manifest_is_not_committed(tier: Tier) -> None:
    tier.folder(50).mkdir()
    assert tier.steps()[0] == 50 and committed(tier)[0] == 40


def test_what_a_killed_attempt_left_of_reshaping_goes_and_a_newer_ones_stays(tier: Tier) -> None:
    for attempt in (1, 2, 3):
        (tier.root / f"{RESHAPING}00000040-{attempt:04d}" / "universal").mkdir(parents=True)
    assert tier.clean({(step, 1) for step in tier.steps()}, attempt=2) == [
        f"{RESHAPING}00000040-0001",
        f"{RESHAPING}00000040-0002",
    ]
    assert [path.name for path in tier.root.glob(".*")] == [f"{RESHAPING}00000040-0003"]
    assert committed(tier) == [40, 30, 20, 10]


def test_a_fence_lets_the_newest_attempt_pass_and_stops_older_ones(tmp_path: Path) -> None:
    raise_fence(tmp_path, 3)
    check_fence(tmp_path, 3)
    raise_fence(tmp_path, 5)
    for late in (raise_fence, check_fence):
        with pytest.raises(Fenced, match="fence at 5"):
            late(tmp_path, 4)


def test_a_fence_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "fence").write_text("")
    with pytest.raises(StorageError):
        check_fence(tmp_path, 1)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), durable(tmp_path / "shard") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_the_digest_that_streams_past_is_that_of_the_file(tmp_path: Path) -> None:
    with durable(tmp_path / "shard") as file:
        torch.save({"x": torch.arange(100_000)}, cast(IO[bytes], file))
    assert file.sha256() == digest_of(tmp_path / "shard")
    assert file.size_bytes == (tmp_path / "shard").stat().st_size


def test_a_copy_that_is_not_accepted_does_not_appear(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")

    def refuse(seen: str) -> None:
        raise StorageError("another digest", seen)

    with pytest.raises(StorageError):
        copy_durably(tmp_path / "a", tmp_path / "b", refuse)
    assert not (tmp_path / "b").exists()


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch harmed",)


def test_a_load_never_executes_code_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Harmful()}, tmp_path / "shard.pt")
    with (tmp_path / "shard.pt").open("rb") as file, pytest.raises(StorageError, match="Weights only load failed"):
        load_safely(file)
    assert not (tmp_path / "harmed").exists()


def test_sound_shards_that_are_looked_at_side_by_side_are_all_taken(tmp_path: Path) -> None:
    path = tmp_path / "shard.pt"
    torch.save({"scaler": LossScaler(1.0)}, path)

    def look(_: int) -> str:
        with path.open("rb") as file:
            why = forbidden(file)
            file.seek(0)
            return why or str(load_safely(file) and "")

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(look, range(200))) == {""}


class Engine:
    """What DeepSpeed's engine does in a save: it hands a state that is alive to its checkpoint engine."""

    optimizer, save_zero_checkpoint = None, False

    def __init__(self) -> None:
        self.checkpoint_engine = HostCopyEngine(lambda path, file: None)
        self.weight = torch.ones(3)

    def _save_checkpoint(self, root: str, tag: str) -> None:
        self.checkpoint_engine.save({"module": {"a": self.weight, "b": [self.weight]}}, f"{root}/{tag}/shard.pt")


def test_a_saved_state_is_a_copy_that_later_steps_do_not_change(tmp_path: Path) -> None:
    engine = Engine()
    (snapshot,) = engine.checkpoint_engine.collect(engine, tmp_path, "attempt-0001")
    engine.weight.add_(1)
    assert snapshot.path == tmp_path / "attempt-0001/shard.pt"
    assert snapshot.state["module"]["a"].tolist() == [1, 1, 1]
    assert snapshot.state["module"]["b"][0] is snapshot.state["module"]["a"]


def test_every_save_fills_the_buffers_that_were_made_ahead_of_the_first(tmp_path: Path) -> None:
    engine = Engine()
    engine.checkpoint_engine.foresee(engine)()
    places = {buffer.data_ptr() for buffer in engine.checkpoint_engine.buffers.values()}
    assert len(places) == 1
    for _ in range(2):
        (snapshot,) = engine.checkpoint_engine.collect(engine, tmp_path, "attempt-0001")
        assert {snapshot.state["module"]["a"].data_ptr()} == places
        engine.weight.add_(1)
    assert snapshot.state["module"]["a"].tolist() == [2, 2, 2]


def test_the_learning_rate_warms_up_and_then_falls_to_its_minimum() -> None:
    config = OptimizerConfig(learning_rate=1.0, minimum_learning_rate=0.1, warmup_steps=10)
    rates = [learning_rate(step, 100, config) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True) and rates[100] == pytest.approx(0.1)

"""Frozen weights are written once, every step is whole with them, and none loses them to another step's end."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.builtin.checkpoint.committing import MakeRank, Rank, ranks_at
from tests.trainer.builtin.checkpoint.saved_steps import TinyEngine, flip
from trainer.builtin.checkpoint.commit import Begun
from trainer.builtin.checkpoint.convert.weights import load_shard
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.builtin.checkpoint.frozen_weights import READ_BACK_EVERY, joined, split
from trainer.builtin.checkpoint.neighbour import Neighbours, ShardAddress, keep_for
from trainer.builtin.checkpoint.search import Search
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import Manifest, Shard

MODEL, BASE = "mp_rank_00_model_states.pt", "frozen_mp_rank_00.pt"
WEIGHTS = torch.randn(4096, generator=torch.Generator().manual_seed(1))


class Adapted(TinyEngine):
    """An engine with one frozen matrix between two that train."""

    def __init__(self, gang: Any) -> None:
        super().__init__(gang)
        self.base = WEIGHTS.clone()
        self.checkpoint_engine = HostCopyEngine(lambda path, file: None, frozen=frozenset({"base"}))

    def states(self, step: int) -> dict[str, Any]:
        states = super().states(step)
        module = {"first": torch.full((3,), float(step)), "base": self.base, "last": torch.full((2,), float(step))}
        return {**states, MODEL: {"module": OrderedDict(module), "step": step}}


def adapted(make: MakeRank, **place: Any) -> Rank:
    rank = make(**place)
    rank.engine = Adapted(rank.gang)
    return rank


def path_of(tier: Tier, manifest: Manifest, name: str) -> Path:
    return tier.folder(manifest.step) / f"attempt-{manifest.attempt:04d}" / name


def is_whole(tier: Tier, manifest: Manifest) -> bool:
    """Whether every file has the digest that the manifest names, and the weights are those of the step."""
    files = [(tier.folder(manifest.step) / shard.file, shard.sha256) for shard in manifest.shards]
    if not all(path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest for path, digest in files):
        return False
    module = load_shard(path_of(tier, manifest, MODEL))["module"]
    assert list(module) == ["first", "base", "last"]
    return torch.equal(module["base"], WEIGHTS) and float(module["last"][0]) == manifest.step


@settings(max_examples=40, deadline=None)
@given(
    acts=st.lists(st.sampled_from(["save", "save", "restart", "damage local", "damage shared"]), max_size=12),
    keep=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_whatever_happens_each_kept_step_of_the_shared_tier_is_whole_and_has_one_base(
    acts: list[str], keep: tuple[int, int]
) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        make = ranks_at(Path(root), patch)
        attempt, step, damaged = 1, 10, set[int]()
        rank = adapted(make, keep_local=keep[0], keep_shared=keep[1])
        rank.commit(step)
        for act in acts:
            newest = rank.tiers.local.committed()[0]
            if act == "save":
                step += 10
                rank.commit(step)
            elif act == "restart" and is_whole(rank.tiers.local, newest):
                attempt += 1
                rank = adapted(make, keep_local=keep[0], keep_shared=keep[1], attempt=attempt,
                               begun=Begun(newest, on_shared=True))  # fmt: skip
            elif act == "damage local":
                flip(path_of(rank.tiers.local, newest, BASE))
            elif act == "damage shared":
                broken = rank.tiers.shared.committed()[0]
                flip(path_of(rank.tiers.shared, broken, BASE))
                damaged.add(broken.step)
        step += 10
        rank.commit(step)
        kept = rank.tiers.shared.committed()
        assert kept[0].step == step and len(kept) <= keep[1]
        assert {each.step for each in kept if not is_whole(rank.tiers.shared, each)} <= damaged
        assert is_whole(rank.tiers.local, rank.tiers.local.committed()[0])
        bases = {path_of(rank.tiers.shared, each, BASE).stat().st_ino for each in kept}
        assert len(bases) <= 1 + 2 * acts.count("damage shared")
        if not {"damage local", "damage shared"} & set(acts):
            assert (
                len({path_of(rank.tiers.local, each, BASE).stat().st_ino for each in rank.tiers.local.committed()}) == 1
            )


def rot(path: Path) -> None:
    """Change a byte as a failing disk does: the file keeps its inode and its times."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    return ranks_at(tmp_path, monkeypatch)


def test_a_save_holds_no_second_copy_of_the_base_in_memory(make: MakeRank) -> None:
    rank = adapted(make)
    rank.commit(10)
    buffers = rank.engine.checkpoint_engine.buffers.values()
    assert buffers and max(buffer.numel() for buffer in buffers) < WEIGHTS.numel()


def test_a_later_attempt_of_the_layout_links_the_base_and_another_layout_writes_its_own(make: MakeRank) -> None:
    first = adapted(make)
    first.commit(10)
    (newest,) = first.tiers.local.committed()
    second = adapted(make, attempt=2, begun=Begun(newest, on_shared=True))
    second.commit(20)
    links = [path_of(second.tiers.local, each, BASE).stat().st_nlink for each in second.tiers.local.committed()]
    assert links == [2, 2]
    other = newest.model_copy(update={"world_size": 2})
    third = adapted(make, attempt=3, begun=Begun(other, on_shared=True))
    third.commit(30)
    assert path_of(third.tiers.local, third.tiers.local.committed()[0], BASE).stat().st_nlink == 1


def test_a_rank_loads_the_base_with_the_states_and_only_what_was_verified(make: MakeRank) -> None:
    rank = adapted(make)
    rank.commit(10)
    folder, names = rank.tiers.local.folder(10), list[str]()
    engine = HostCopyEngine(lambda path, file: names.append(path.name))
    state = engine.load(str(folder / "attempt-0001" / MODEL))
    assert torch.equal(state["module"]["base"], WEIGHTS) and names == [MODEL, BASE]
    (folder / "attempt-0001" / BASE).unlink()
    with pytest.raises(FileNotFoundError):
        engine.load(str(folder / "attempt-0001" / MODEL))


def test_the_base_is_needed_by_every_rank_and_its_parts_under_zero_3_by_their_own(make: MakeRank) -> None:
    rank = adapted(make)
    rank.commit(10)
    shards = {shard.file.rpartition("/")[2]: shard for shard in rank.tiers.local.committed()[0].shards}
    assert shards[BASE].common and shards[BASE].is_frozen and not shards[MODEL].is_frozen
    part = shards[BASE].model_copy(update={"file": "attempt-0001/frozen_zero_pp_rank_1_mp_rank_00.pt"})
    assert part.is_frozen and not part.common


def test_parts_of_frozen_weights_under_zero_3_go_with_them_and_come_back() -> None:
    module = OrderedDict(a=torch.ones(1), base=torch.empty(0), b=torch.ones(2))
    state = {"module": module, "frozen_param_fragments": {"base": torch.ones(4)}, "step": 3}
    name = "zero_pp_rank_0_mp_rank_00_model_states.pt"
    trained, frozen = split(state, name, frozenset({"base"}))
    assert "base" not in trained["module"] and trained["frozen_param_fragments"] is None
    whole = joined(trained, Path(name), lambda path: frozen if path.name.startswith("frozen_zero_pp") else None)
    assert list(whole["module"]) == ["a", "base", "b"] and whole.keys() == state.keys()
    assert torch.equal(whole["frozen_param_fragments"]["base"], torch.ones(4))
    for names in (frozenset(), frozenset({"other"})):
        assert split(state, name, names) == (state, None), "a model that trains whole is saved as before"


class FolderDoor(ShardAddress):
    """A neighbour whose shards lie in the folder `address`; it counts what it gives."""

    def fetch(self, step: int, shard: Shard, target: Path, resumable: bool = True) -> int:
        fetches.append(shard.file.rpartition("/")[2])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((Path(self.address) / f"step-{step:08d}" / shard.file).read_bytes())
        return shard.size_bytes


fetches: list[str] = []


def test_a_neighbours_frozen_weights_are_fetched_once_and_anew_where_they_are_damaged(
    make: MakeRank, tmp_path: Path
) -> None:
    rank = adapted(make, keep_local=5)
    rank.commit(10, 20, 30)
    rows = rank.tiers.local.committed()[::-1]
    door, kept = FolderDoor(1, (0,), str(rank.tiers.local.root), 1, "word"), Tier("local", tmp_path / "successor/tiny")
    fetches.clear()
    for manifest, reads_back in zip(rows, (False, False, True), strict=True):
        kept.publish(manifest, 1)
        if reads_back:
            rot(path_of(kept, rows[1], BASE))
        keep_for(door, manifest, kept, reads_back)
    assert fetches.count(BASE) == 2 and fetches.count(MODEL) == 3
    assert path_of(kept, rows[0], BASE).stat().st_nlink == 2
    assert is_whole(kept, rows[2]) and not is_whole(kept, rows[1])


def test_damage_without_a_trace_in_the_one_file_is_noticed_and_mended_by_a_later_save(make: MakeRank) -> None:
    rank = adapted(make, shared_every=10**6)
    rank.commit(10)
    rot(path_of(rank.tiers.local, rank.tiers.local.committed()[0], BASE))
    rank.commit(*range(20, 20 + 10 * (READ_BACK_EVERY - 1), 10))
    assert not is_whole(rank.tiers.local, rank.tiers.local.committed()[0])
    rank.commit(20 + 10 * READ_BACK_EVERY)
    assert is_whole(rank.tiers.local, rank.tiers.local.committed()[0])


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_a_restore_takes_the_other_tiers_file_even_of_another_step(harm: str, make: MakeRank) -> None:
    rank = adapted(make, shared_every=2, keep_shared=3)
    rank.commit(10, 20, 30)
    shared, newest = rank.tiers.shared, rank.tiers.local.committed()[0]
    assert [each.step for each in shared.committed()] == [20] and newest.step == 30
    base = path_of(rank.tiers.local, newest, BASE)
    base.unlink() if harm == "missing" else rot(base)
    places = Search(rank.gang, rank.tiers, Neighbours(0), 2).shards(newest)
    assert None not in places and is_whole(rank.tiers.local, newest)
    rot(base)
    rot(path_of(shared, shared.committed()[0], BASE))
    assert None in Search(rank.gang, rank.tiers, Neighbours(0), 2).shards(newest)

"""What a commit holds safe: bytes that are read back, the fence, the room that it makes, and the neighbour's copy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifest_of
from tests.trainer.builtin.checkpoint.committing import MakeRank, ranks_at, steps
from tests.trainer.builtin.checkpoint.saved_steps import TinyEngine, flip
from trainer.builtin.checkpoint import commit, direct, tiers, writing
from trainer.builtin.checkpoint.commit import Begun
from trainer.builtin.checkpoint.fence import raise_fence
from trainer.builtin.checkpoint.files import digest_of
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import Manifest
from trainer.errors import Fenced, OutOfFiles, OutOfMemory, PeerLost, StorageError


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    return ranks_at(tmp_path, monkeypatch)


# What is read back


def test_a_shard_that_the_shared_tier_holds_otherwise_than_written_is_refused(
    make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, real = make(), tiers.copy_durably

    def spoil(source: Path, target: Path, accept: Callable[[str], None]) -> None:
        real(source, target, accept)
        if target.name == "mp_rank_00_model_states.pt":
            flip(target)

    monkeypatch.setattr(tiers, "copy_durably", spoil)
    rank.save(10)
    for _ in range(3):
        rank.work()
        rank.committer.settle(rank.gang.sums([*rank.committer.votes()[:3], 0]))
    assert isinstance(rank.error, StorageError) and "changed on the shared tier" in str(rank.error)
    assert steps(rank.tiers.shared) == [] and steps(rank.tiers.local) == [10]


def test_a_writer_that_is_refused_memory_blames_no_tier(make: MakeRank, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(direct.mmap, "mmap", refuse)
    rank = make()
    rank.save(10)
    rank.work()
    assert isinstance(rank.error, OutOfMemory) and "tier" not in str(rank.error)
    assert steps(rank.tiers.local) == []


def test_a_shard_that_the_local_tier_no_longer_holds_as_written_is_not_brought_on(make: MakeRank) -> None:
    rank = make()
    rank.save(10)
    rank.work()
    flip(rank.tiers.local.folder(10) / "attempt-0001/rng_rank_00000.pt")
    rank.settle()
    rank.work()
    assert isinstance(rank.error, StorageError) and "changed on the local tier" in str(rank.error)
    assert not (rank.tiers.shared.folder(10) / "attempt-0001/rng_rank_00000.pt").exists()
    assert steps(rank.tiers.shared) == []


class Still(TinyEngine):
    """An engine whose state never changes."""

    def states(self, step: int) -> dict[str, Any]:
        return super().states(5)


def test_a_shard_that_did_not_change_is_linked_on_the_shared_tier(make: MakeRank) -> None:
    rank = make()
    rank.engine = Still(rank.gang)
    rank.commit(10, 20)
    name = "attempt-0001/mp_rank_00_model_states.pt"
    first, second = (rank.tiers.shared.folder(step) / name for step in (10, 20))
    assert first.stat().st_ino == second.stat().st_ino and second.stat().st_nlink == 2


def test_a_shard_that_did_not_change_is_linked_on_the_node_and_one_that_did_is_written(make: MakeRank) -> None:
    rank = make()
    for engine, links in ((Still, 2), (TinyEngine, 1)):
        rank.engine = engine(rank.gang)
        rank.commit(rank.committer.committed_step + 11, rank.committer.committed_step + 22)
        newest = rank.tiers.local.folder(rank.committer.committed_step)
        assert (newest / "attempt-0001/mp_rank_00_model_states.pt").stat().st_nlink == links


def test_a_link_to_a_shard_that_the_shared_tier_lost_is_replaced_by_a_copy(
    make: MakeRank,
) -> None:
    rank = make()
    rank.engine = Still(rank.gang)
    rank.commit(10)
    name = "attempt-0001/mp_rank_00_model_states.pt"
    flip(rank.tiers.shared.folder(10) / name)
    rank.commit(20)
    (newest, _) = rank.tiers.shared.committed()
    digests = {shard.file: shard.sha256 for shard in newest.shards}
    assert digest_of(rank.tiers.shared.folder(20) / name) == digests[name]


def test_a_shard_whose_twin_has_gone_from_the_shared_tier_is_copied(make: MakeRank) -> None:
    rank = make()
    rank.engine = Still(rank.gang)
    rank.commit(10)
    (rank.tiers.shared.folder(10) / "attempt-0001/mp_rank_00_model_states.pt").unlink()
    rank.commit(20)
    assert (rank.tiers.shared.folder(20) / "attempt-0001/mp_rank_00_model_states.pt").exists()
    assert steps(rank.tiers.shared) == [20, 10]


@pytest.mark.parametrize("local_rank", [0, 1])
def test_every_rank_makes_its_folders_durable_before_anyone_publishes(
    local_rank: int, make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, seen = make(rank=local_rank, local_rank=local_rank, ranks=2), list[tuple[str, str, int]]()
    monkeypatch.setattr(Tier, "settle", lambda tier, step: seen.append(("settle", tier.name, step)))
    monkeypatch.setattr(Tier, "publish", lambda tier, manifest, _: seen.append(("publish", tier.name, manifest.step)))
    rank.commit(10)
    whole = [(what, tier, 10) for tier in ("local", "shared") for what in ("settle", "publish")]
    assert seen == [each for each in whole if each[0] == "settle" or rank.gang.first]


# The fence


def test_a_stale_attempt_publishes_nothing(make: MakeRank) -> None:
    rank = make()
    rank.save(10)
    raise_fence(rank.tiers.shared.root, 2)
    rank.work()
    assert isinstance(rank.error, Fenced) and steps(rank.tiers.local) == []


def test_a_stale_attempt_brings_nothing_to_the_shared_tier(make: MakeRank) -> None:
    rank = make()
    rank.save(10)
    rank.work()
    rank.settle()
    raise_fence(rank.tiers.shared.root, 2)
    rank.committer._shared.work()
    assert isinstance(rank.error, Fenced) and not rank.tiers.shared.folder(10).exists()


def test_an_attempt_that_grew_stale_while_it_committed_tidies_nothing_up(
    make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, real = make(keep_local=1), Tier.publish
    rank.commit(10, 20)
    rank.tiers.local.publish(manifest_of(5), 1)

    def overtaken(tier: Tier, manifest: Manifest, attempt: int) -> None:
        real(tier, manifest, attempt)
        raise_fence(rank.tiers.shared.root, 2)

    monkeypatch.setattr(Tier, "publish", overtaken)
    rank.save(30)
    rank.work()
    assert isinstance(rank.error, Fenced)
    assert steps(rank.tiers.local) == [30, 20, 10, 5]


def test_a_stale_attempt_makes_no_room_by_dropping_what_a_newer_one_may_need(make: MakeRank) -> None:
    rank = make()
    rank.commit(10, 20)
    raise_fence(rank.tiers.shared.root, 2)
    with pytest.raises(Fenced):
        rank.committer._reclaim(rank.tiers.local)
    assert steps(rank.tiers.local) == [20, 10]


# Room and retention


def test_each_tier_keeps_as_many_as_it_is_told(make: MakeRank) -> None:
    rank = make(keep_local=1, keep_shared=3)
    rank.commit(10, 20, 30, 40)
    assert steps(rank.tiers.shared) == [40, 30, 20]
    # The newest that is proven there outlives the count here, until its successor is.
    assert steps(rank.tiers.local) == [40, 30]


def test_the_newest_proven_step_and_the_one_under_way_are_not_retired(make: MakeRank) -> None:
    rank = make(keep_local=1)
    rank.commit(10)
    for step in (20, 30, 40):
        rank.save(step)
        rank.committer._local.work()
        rank.committer.settle([1, 0, 0, 0])
    # 10 is proven on the shared tier, 20 is on its way there, 40 is the newest.
    assert steps(rank.tiers.local) == [40, 20, 10]


def test_hours_and_room_are_kept_as_configured(make: MakeRank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, seen = make(keep_hours=6.0, keep_free_gib=1.5, keep_shared=4), list[tuple[Any, ...]]()
    monkeypatch.setattr(Tier, "retain", lambda tier, *rest: seen.append((tier.name, *rest)))
    rank.commit(10)
    limits = commit.KeptLimits(6.0, 1_610_612_736)
    assert seen == [("local", 2, 10, {-1}, 1, -1, limits), ("shared", 4, 10, {10}, 1, -1, limits)]


def test_shards_of_an_earlier_attempt_at_a_step_go_when_this_attempt_commits_it(make: MakeRank) -> None:
    make().commit(10)
    rank = make(attempt=2)
    rank.commit(10)
    for tier in rank.tiers:
        assert [path.name for path in tier.folder(10).glob("attempt-*")] == ["attempt-0002"]


def test_shards_stay_when_the_manifest_that_is_brought_on_is_an_earlier_attempts(make: MakeRank) -> None:
    make().commit(10)
    (manifest,) = make(attempt=2).tiers.local.committed()
    rank = make(attempt=2, begun=Begun(manifest))
    older = rank.tiers.shared.folder(10) / "attempt-0000"
    older.mkdir()
    rank.work()
    rank.settle()
    rank.work()
    assert older.exists()


def test_a_full_tier_gives_up_all_but_the_newest_the_proven_and_what_is_under_way(make: MakeRank) -> None:
    rank = make(keep_local=9)
    rank.commit(10, 20)
    for step in (30, 40, 50):
        rank.save(step)
        rank.committer._local.work()
        rank.committer.settle([1, 0, 0, 0])
    rank.save(60)
    (rank.tiers.local.folder(60)).mkdir()
    # 20 is proven, 30 on its way, 50 the newest, 60 pending.
    assert rank.committer._reclaim(rank.tiers.local) == [40, 10]
    assert rank.tiers.local.steps() == [60, 50, 30, 20]


@pytest.mark.parametrize(("tier", "call"), [("local", "state_bytes"), ("shared", "copy_durably")])
def test_a_disk_that_is_full_once_is_relieved_and_the_step_still_commits(
    tier: str, call: str, make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = make(keep_local=9, keep_shared=9)
    rank.commit(10, 20)
    module, name = (writing, "durable") if tier == "local" else (tiers, "copy_durably")
    real, failed = getattr(module, name), list[str]()

    def full(*rest: Any) -> Any:
        if not failed:
            failed.append(tier)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*rest)

    monkeypatch.setattr(module, name, full)
    rank.commit(30)
    assert failed == [tier]
    assert steps(rank.tiers.local)[0] == steps(rank.tiers.shared)[0] == 30
    assert 10 not in steps(getattr(rank.tiers, tier))


# Trouble


@pytest.mark.parametrize("worker", ["_local", "_shared", "_keeper"])
def test_an_error_of_any_background_work_ends_the_attempt_as_storage(worker: str, make: MakeRank) -> None:
    rank = make()
    getattr(rank.committer, worker).error = OSError(errno.EIO, "a disk")
    assert rank.committer.votes()[3] == 1
    with pytest.raises(StorageError, match="could not be written"):
        rank.settle()


@pytest.mark.parametrize(("number", "error"), [(errno.ENOMEM, OutOfMemory), (errno.EMFILE, OutOfFiles)])
def test_a_limit_that_stops_background_work_is_not_the_storages(
    number: int, error: type[Exception], make: MakeRank
) -> None:
    rank = make()
    rank.committer._local.error = OSError(number, "refused")
    with pytest.raises(error, match="refused"):
        rank.settle()


def test_an_error_that_has_a_name_keeps_it_and_another_ranks_is_a_lost_peer(make: MakeRank) -> None:
    rank = make(ranks=2)
    with pytest.raises(PeerLost, match="another rank"):
        rank.committer.settle([0, 0, 0, 1])
    rank.committer._shared.error = Fenced("a newer attempt", "seen", "cure")
    with pytest.raises(Fenced):
        rank.committer.settle([0, 0, 0, 2])

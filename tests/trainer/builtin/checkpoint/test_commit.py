"""What the commit of one rank is: who publishes when, what is skipped, and which steps go to the shared tier."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.manifests import shard_at
from tests.trainer.builtin.checkpoint.committing import MakeRank, ranks_at, steps
from trainer.builtin.checkpoint import commit, tiers
from trainer.builtin.checkpoint.commit import VOTES, Begun
from trainer.builtin.checkpoint.files import digest_of
from trainer.builtin.checkpoint.search import unsound_shards
from trainer.errors import Diverged


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    return ranks_at(tmp_path, monkeypatch)


# What a commit is


def test_a_step_is_committed_on_both_tiers_with_everything_that_its_manifest_says(make: MakeRank) -> None:
    rank = make()
    rank.commit(10)
    for tier in rank.tiers:
        (manifest,) = tier.committed()
        assert (manifest.step, manifest.tokens, manifest.position, manifest.loss) == (10, 100, 20, 1.5)
        assert (manifest.campaign, manifest.attempt, manifest.zero_stage, manifest.world_size) == ("tiny", 1, 1, 1)
        assert (manifest.config_digest, manifest.data_digest) == ("of the config", "of the data")
        assert (manifest.code_digest, manifest.image_digest) == ("of the code", "of the image")
        assert sorted(shard.file.rpartition("/")[2] for shard in manifest.shards) == [
            "mp_rank_00_model_states.pt",
            "rng_rank_00000.pt",
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ]
        for shard in manifest.shards:
            path = tier.folder(10) / shard.file
            assert digest_of(path) == shard.sha256 and path.stat().st_size == shard.size_bytes
    assert rank.committer.committed_step == 10
    assert rank.said("committed") == [
        {"event": "committed", "step": 10, "tier": tier, "shards": 3} for tier in ("local", "shared")
    ]


def test_nothing_is_published_before_every_rank_has_written(make: MakeRank) -> None:
    rank = make(ranks=2)
    rank.save(10)
    assert rank.committer.votes() == [0, 0, 0, 0] and steps(rank.tiers.local) == []
    rank.committer._local.work()
    assert rank.committer.votes() == [1, 0, 0, 0]
    assert rank.committer.settle([1, 0, 0, 0]) is False and rank.committer._pending is not None
    assert rank.committer.settle([2, 0, 0, 0]) is False and rank.committer._pending is None
    assert rank.committer.votes()[:2] == [0, 0] and steps(rank.tiers.shared) == []
    rank.committer._shared.work()
    assert rank.committer.votes()[:2] == [0, 1]
    assert rank.committer.settle([0, 1, 0, 0]) is False and steps(rank.tiers.shared) == []
    rank.committer.settle([0, 2, 0, 0])
    rank.work()
    assert steps(rank.tiers.shared) == [10]
    assert rank.committer.votes() == [0, 0, 1, 0] and len(rank.committer.votes()) == VOTES
    assert rank.committer.settle([0, 0, 1, 0]) is False and rank.committer.settle([0, 0, 2, 0]) is True


@pytest.mark.parametrize("worker", ["_local", "_shared", "_keeper"])
def test_a_rank_is_not_idle_while_any_of_its_background_work_goes_on(worker: str, make: MakeRank) -> None:
    rank = make()
    assert rank.committer.votes() == [0, 0, 1, 0] and not rank.committer.writing()
    getattr(rank.committer, worker).submit(lambda: None)
    assert rank.committer.votes() == [0, 0, 0, 0] and rank.committer.writing()


def test_a_step_is_on_its_way_until_the_shared_tier_has_it(make: MakeRank) -> None:
    rank = make()
    rank.save(10)
    rank.work()
    assert rank.committer.writing()
    rank.settle()
    rank.work()
    assert rank.committer.writing()
    rank.settle()
    rank.work()
    assert not rank.committer.writing()


def test_ranks_that_are_at_different_steps_commit_nothing(make: MakeRank) -> None:
    rank = make(ranks=2)
    rank.gang.others[1] = (11, None, ())
    rank.save(10)
    rank.work()
    assert isinstance(rank.error, Diverged) and "(10, 11)" in str(rank.error)
    assert steps(rank.tiers.local) == [] and rank.committer.votes()[3] == 1


def test_the_manifest_names_every_ranks_shards_and_the_first_ranks_evaluation(make: MakeRank, tmp_path: Path) -> None:
    other = tmp_path / "attempt-0001" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    other.parent.mkdir()
    other.write_bytes(b"of rank 1")
    rank = make(ranks=2)
    rank.gang.others[1] = (10, None, (shard_at(other, rank=1),))
    rank.save(10, evaluation_loss=2.25)
    rank.work()
    (manifest,) = rank.tiers.local.committed()
    assert manifest.evaluation_loss == 2.25 and manifest.world_size == 2
    assert [shard.rank for shard in manifest.shards] == [0, 0, 0, 1]


def test_a_nodes_first_rank_publishes_there_and_the_first_of_all_on_the_shared_tier(make: MakeRank) -> None:
    second = make(rank=1, local_rank=1, ranks=2)
    second.commit(10)
    assert steps(second.tiers.local) == steps(second.tiers.shared) == []
    assert second.committer.committed_step == -1 and second.said("saving") == []
    assert (second.tiers.shared.folder(10) / "attempt-0001/rng_rank_00001.pt").exists()
    elsewhere = make(rank=1, local_rank=0, ranks=2)
    elsewhere.commit(20)
    assert steps(elsewhere.tiers.local) == [20] and steps(elsewhere.tiers.shared) == []


def test_a_rank_brings_its_own_shards_to_the_shared_tier_and_nobody_elses(make: MakeRank, tmp_path: Path) -> None:
    rank = make(ranks=2)
    other = rank.tiers.local.folder(10) / "attempt-0001" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of rank 1")
    rank.gang.others[1] = (10, None, (shard_at(other, rank=1),))
    rank.commit(10)
    assert sorted(path.name for path in (rank.tiers.shared.folder(10) / "attempt-0001").iterdir()) == [
        "mp_rank_00_model_states.pt",
        "rng_rank_00000.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ]


# A save that is under way


def test_a_save_while_another_is_under_way_is_skipped_and_told_once(make: MakeRank) -> None:
    rank = make()
    assert rank.save(10) and not rank.save(20) and not rank.save(30)
    told = [(event["step"], event["why"]) for event in rank.said("save_skipped")]
    assert told == [(20, "step 10 is still being written")]
    rank.work()
    rank.settle()
    assert rank.save(40) and not rank.save(50)
    assert [event["step"] for event in rank.said("save_skipped")] == [20, 50]
    assert [event["step"] for event in rank.said("saving")] == [10, 40]
    assert steps(rank.tiers.local) == [10], "the second is not written yet"


def test_a_save_measures_its_stall_its_copy_and_its_way(make: MakeRank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make()
    now = [100.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(commit.time, "monotonic", tick)
    monkeypatch.setattr(type(rank.engine.checkpoint_engine), "collect", lambda *rest: [])
    rank.engine.checkpoint_engine.copy_s = 0.25
    rank.commit(10)
    seen = rank.committer.measured
    assert (seen.stall_s, seen.copy_s, seen.write_s, seen.shared_s) == (1.0, 0.25, 1.0, 1.0)
    assert rank.said("saving")[0] == {"event": "saving", "step": 10, "stall_seconds": 1.0, "copy_seconds": 0.25}


def test_the_hosts_buffers_are_made_once_and_beside_the_training(make: MakeRank) -> None:
    rank, made = make(), list[str]()
    engine = SimpleNamespace(checkpoint_engine=SimpleNamespace(foresee=lambda engine: lambda: made.append("buffers")))
    rank.committer.make_ready(engine)
    assert made == []
    rank.committer.make_ready(engine)
    rank.work()
    assert made == ["buffers"]


def test_the_random_state_of_the_save_is_written_for_each_rank(make: MakeRank) -> None:
    rank = make(rank=1, local_rank=1, ranks=2)
    torch.manual_seed(7)
    wanted = torch.get_rng_state()
    rank.save(10)
    torch.rand(3)
    rank.work()
    saved = torch.load(rank.tiers.local.folder(10) / "attempt-0001/rng_rank_00001.pt")
    assert torch.equal(saved["cpu"], wanted) and "cuda" not in saved


# Which steps go to the shared tier


def test_every_nth_commit_goes_to_the_shared_tier_counted_in_steps(make: MakeRank) -> None:
    rank = make(shared_every=2)
    rank.commit(10)
    assert steps(rank.tiers.shared) == []
    rank.commit(20, 30)
    assert steps(rank.tiers.shared) == [20]
    rank.commit(40)
    assert steps(rank.tiers.shared) == [40, 20]


def test_with_a_measured_pace_every_nth_commit_goes_there_counted_in_saves(make: MakeRank) -> None:
    rank = make(shared_every=2, measured=True)
    rank.commit(10)
    rank.commit(13)
    rank.commit(20)
    assert steps(rank.tiers.shared) == [13]


def test_a_step_does_not_overtake_the_one_that_is_on_its_way_to_the_shared_tier(make: MakeRank) -> None:
    rank = make()
    for step in (10, 20):
        rank.save(step)
        rank.committer._local.work()
        rank.committer.settle([1, 0, 0, 0])
    assert rank.committer._replicating.step == 10 and len(rank.committer._shared.jobs) == 1
    (told,) = rank.said("replication_skipped")
    assert (told["step"], told["why"]) == (20, "step 10 is still being copied to the shared tier")


@pytest.mark.parametrize(("replicate", "shared"), [(True, [30, 20]), (False, [20])])
def test_draining_waits_for_what_is_under_way_and_brings_the_newest_on_when_asked(
    replicate: bool, shared: list[int], make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = make(shared_every=2, keep_local=9)
    rank.commit(10, 20)
    rank.save(30)
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: rank.work())
    rank.committer.drain(replicate)
    assert steps(rank.tiers.local) == [30, 20, 10] and steps(rank.tiers.shared) == shared
    assert not rank.committer.writing()


def test_what_outlived_its_attempt_on_nodes_alone_goes_to_the_shared_tier_at_once(make: MakeRank) -> None:
    make().commit(10)
    first = make(attempt=2)
    (manifest,) = first.tiers.local.committed()
    first.tiers.shared.drop(10, 2)
    rank = make(attempt=2, begun=Begun(manifest))
    assert rank.committer.committed_step == 10 and rank.committer.writing()
    rank.work()
    rank.settle()
    rank.work()
    assert steps(rank.tiers.shared) == [10] and not rank.committer.writing()


def test_what_the_shared_tier_already_has_is_not_brought_there_again(
    make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().commit(10)
    (manifest,) = make(attempt=2).tiers.local.committed()
    rank = make(attempt=2, begun=Begun(manifest, on_shared=True))
    assert not rank.committer.writing() and rank.committer.committed_step == 10
    copied: list[Any] = []
    monkeypatch.setattr(tiers, "copy_durably", lambda *rest: copied.append(rest))
    rank.committer.drain(replicate=True)
    assert copied == []


@pytest.mark.parametrize(
    ("shared_every", "before", "brought"),
    [(1, [10, 20], [10, 20]), (1, [10], [10]), (9, [10, 20], [20]), (9, [], [30])],
)
def test_draining_brings_one_step_after_the_other_and_none_that_is_no_longer_the_newest(
    shared_every: int, before: list[int], brought: list[int], make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, copied, real = make(shared_every=shared_every, keep_local=9), list[int](), commit.Committer._copy
    monkeypatch.setattr(
        commit.Committer, "_copy", lambda committer, manifest: copied.append(manifest.step) or real(committer, manifest)
    )
    if not before:
        rank.commit(10)
        rank.save(30)
    for step in before:
        rank.save(step)
        rank.committer._local.work()
        rank.committer.settle([1, 0, 0, 0])
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: rank.work())
    rank.committer.drain(replicate=True)
    assert copied == brought and sorted(steps(rank.tiers.shared)) == brought
    assert all(
        unsound_shards(manifest, rank.tiers.shared.folder(manifest.step)) == []
        for manifest in rank.tiers.shared.committed()
    )


def test_before_the_first_commit_there_is_none(make: MakeRank) -> None:
    rank = make()
    assert rank.committer.committed_step == -1 and Begun().step == -1
    rank.committer.drain(replicate=True)
    assert not (rank.tiers.shared.root / "step-00000000").exists()

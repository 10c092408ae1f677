"""A restore after its choice: what is brought to the node, what is loaded, and whether the shared tier holds it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.builtin.checkpoint.saved_steps import (
    MODEL,
    TinyEngine,
    Told,
    changed,
    flip,
    random_state,
    saved,
    watched,
)
from trainer.builtin.checkpoint import restore, search
from trainer.builtin.checkpoint.commit import Begun
from trainer.builtin.checkpoint.files import digest_of
from trainer.builtin.checkpoint.search import FoundShard, needed_shards, unsound_shards
from trainer.builtin.checkpoint.tiers import Tier, Tiers
from trainer.contract import Manifest
from trainer.errors import StorageError

Events = list[dict[str, Any]]
pytestmark = pytest.mark.usefixtures("events")


def restored(tiers: Tiers, gang: Told | None = None, attempt: int = 2) -> tuple[Begun, TinyEngine]:
    engine = TinyEngine(gang or Told.of())
    return restore.load_start(engine, restore.choose_start(engine.gang, tiers, 1, attempt)), engine


def found_on(tier: Tier, manifest: Manifest, rank: int = 0) -> list[FoundShard]:
    return [
        FoundShard(shard, tier, search.look(tier.folder(manifest.step) / shard.file, shard)[1])
        for shard in search.needed_shards(manifest, rank)
    ]


def full_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    real, failed = getattr(owner, name), list[bool]()

    def full(*rest: Any) -> Any:
        if not failed:
            failed.append(True)
            raise OSError(errno.ENOSPC, "full")
        return real(*rest)

    monkeypatch.setattr(owner, name, full)


# What comes to the node


@pytest.mark.parametrize("place", [(0, 0, 2), (1, 0, 2)])
def test_what_the_shared_tier_alone_holds_is_brought_to_the_node_and_published_there(
    place: tuple[int, int, int], tiers: Tiers
) -> None:
    manifest = saved([tiers.shared], 20, ranks=2)
    begun, engine = restored(tiers, Told.of(*place))
    assert begun == Begun(manifest, on_shared=True) and engine.holds(20)
    assert tiers.local.committed() == [manifest]
    digests = {shard.file: shard.sha256 for shard in search.needed_shards(manifest, place[0])}
    folder = tiers.local.folder(20)
    assert {f"attempt-0001/{path.name}": digest_of(path) for path in (folder / "attempt-0001").iterdir()} == digests


def test_another_rank_of_the_node_brings_its_own_shards_and_publishes_nothing(tiers: Tiers) -> None:
    manifest = saved([tiers.shared], 20, ranks=2)
    there: list[list[str]] = []

    def after(what: str) -> None:
        if what == "copy step 20 to the nodes":
            folder = tiers.local.folder(20) / "attempt-0001"
            there.append(sorted(path.name for path in folder.iterdir()))
            shutil.copy(tiers.shared.folder(20) / "attempt-0001" / MODEL, folder)  # as the node's first rank does

    gang = watched(after, 1, 1, 2)
    found = restore._stage(found_on(tiers.shared, manifest, 1), manifest, gang, tiers, 2)
    assert there == [["rng_rank_00001.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"]]
    assert [item.shard for item in found] == list(search.needed_shards(manifest, 1))
    assert {item.tier.name for item in found} == {"local"} and all(item.identity for item in found)
    assert tiers.local.committed() == []


def test_what_lies_on_the_node_stays_as_it_is_and_is_read_once(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = saved(tiers, 20)
    files = [tiers.local.folder(20) / shard.file for shard in manifest.shards]
    before = [path.stat().st_ino for path in files]
    read, again = list[Path](), list[Any]()
    real = search._read
    monkeypatch.setattr(search, "_read", lambda path, shard: read.append(path) or real(path, shard))
    monkeypatch.setattr(restore, "_insist", lambda *rest: again.append(rest))
    restored(tiers)
    assert [path.stat().st_ino for path in files] == before
    assert sorted(read) == sorted(files) and again == []


def test_a_shard_that_changed_on_the_shared_tier_since_it_was_verified_does_not_come(tiers: Tiers) -> None:
    manifest = saved([tiers.shared], 20)
    found = found_on(tiers.shared, manifest)
    flip(tiers.shared.folder(20) / manifest.shards[1].file)
    with pytest.raises(StorageError, match=r"changed after it was verified.*shared"):
        restore._stage(found, manifest, Told.of(), tiers, 2)
    assert not (tiers.local.folder(20) / manifest.shards[1].file).exists() and tiers.local.committed() == []


def test_a_shard_that_the_node_holds_otherwise_than_it_came_is_refused(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved([tiers.shared], 20)
    real = restore.copy_durably

    def spoil(source: Path, target: Path, accept: Callable[[str], None]) -> None:
        real(source, target, accept)
        if target.name.startswith("zero"):
            flip(target)

    monkeypatch.setattr(restore, "copy_durably", spoil)
    with pytest.raises(StorageError, match=r"changed after it was verified.*local"):
        restored(tiers)


@pytest.mark.parametrize(("owner", "name"), [(restore, "copy_durably"), (Tier, "publish")])
def test_a_full_node_makes_room_for_the_step_that_is_restored(
    owner: Any, name: str, tiers: Tiers, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 15, 30):
        saved([tiers.local], step)
    manifest = saved([tiers.shared], 20)
    (tiers.local.folder(40) / "attempt-0003").mkdir(parents=True)
    full_once(monkeypatch, owner, name)
    restore._stage(found_on(tiers.shared, manifest), manifest, Told.of(), tiers, 2)
    assert unsound_shards(manifest, tiers.local.folder(20)) == []
    # Of what was committed before 20 the newest stays, 30 was refused and comes again, 40 is a newer attempt's.
    (told,) = events
    assert (told["event"], told["tier"], told["dropped"]) == ("reclaimed", "local", [30, 10])
    assert tiers.local.steps() == [40, 20, 15]


# What is loaded


def test_each_rank_goes_on_with_the_random_state_that_it_had(tiers: Tiers) -> None:
    saved(tiers, 20, ranks=2)
    for rank in (0, 1):
        torch.manual_seed(99)
        restored(tiers, Told.of(rank, rank, 2))
        assert torch.equal(torch.get_rng_state(), random_state(20, rank))


def test_a_random_state_that_changed_since_it_was_verified_is_refused(tiers: Tiers) -> None:
    manifest = saved(tiers, 20)
    found = found_on(tiers.local, manifest)
    flip(tiers.local.folder(20) / "attempt-0001/rng_rank_00000.pt")
    with pytest.raises(StorageError, match=r"changed after it was verified.*rng_rank"):
        restore._load(TinyEngine(Told.of()), manifest, Told.of(), tiers, found)


def test_a_file_that_the_manifest_does_not_name_is_never_loaded(tiers: Tiers) -> None:
    manifest = saved(tiers, 20)
    less = manifest.model_copy(update={"shards": manifest.shards[:1]})
    with pytest.raises(StorageError, match="does not name"):
        restore._load(TinyEngine(Told.of()), less, Told.of(), tiers, found_on(tiers.local, manifest)[:1])


def test_an_engine_that_finds_no_state_does_not_begin_anew(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tiers, 20)
    monkeypatch.setattr(TinyEngine, "load_checkpoint", lambda *rest, **named: (None, {}))
    with pytest.raises(StorageError, match="found no state"):
        restored(tiers)


# Whether the shared tier holds it


@pytest.mark.parametrize("lack", ["nothing", "manifest", "shard", "size", "another", "of another rank"])
def test_what_was_restored_counts_as_archived_only_where_the_shared_tier_holds_all_of_it(
    lack: str, tiers: Tiers
) -> None:
    saved([tiers.shared], 10, ranks=2)
    manifest = saved(tiers, 20, ranks=2)
    folder = tiers.shared.folder(20)
    last = folder / next(s.file for s in reversed(manifest.shards) if s.rank == (1 if lack == "of another rank" else 0))
    match lack:
        case "manifest":
            (folder / "manifest.json").unlink()
        case "shard" | "of another rank":
            last.unlink()
        case "size":
            last.write_bytes(last.read_bytes()[:-1])
        case "another":
            (folder / "manifest.json").write_bytes(changed(manifest).serialize())
    assert tiers.shared.holds(manifest, needed_shards(manifest, 0)) is (lack in ("nothing", "of another rank"))
    assert tiers.local.holds(manifest, needed_shards(manifest, 0))


def test_a_newer_step_beside_it_does_not_hide_what_the_shared_tier_holds(tiers: Tiers) -> None:
    manifest = saved(tiers, 20)
    saved([tiers.shared], 30)
    assert tiers.shared.holds(manifest, needed_shards(manifest, 0)) is True


@pytest.mark.parametrize("agreed", [True, False])
def test_it_is_archived_only_when_every_rank_says_so(
    agreed: bool, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = saved(tiers, 20)
    answers: list[bool] = []
    monkeypatch.setattr(
        Told, "all_agree", lambda gang, mine: answers.append(mine) or (mine and (len(answers) < 2 or agreed))
    )
    assert restored(tiers)[0] == Begun(manifest, on_shared=agreed) and answers == [True, True]
    answers.clear()
    (tiers.shared.folder(20) / manifest.shards[0].file).unlink()
    assert restored(tiers)[0] == Begun(manifest, on_shared=False) and answers == [True, False]

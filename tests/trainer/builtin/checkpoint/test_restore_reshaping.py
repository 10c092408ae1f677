"""A restore by a gang of another size: what is converted, who does it, and what the shared tier then holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.builtin.checkpoint.saved_steps import TinyEngine, Told, changed, flip, saved, watched
from trainer.builtin.checkpoint import restore
from trainer.builtin.checkpoint.commit import Begun
from trainer.builtin.checkpoint.fence import raise_fence
from trainer.builtin.checkpoint.files import digest_of
from trainer.builtin.checkpoint.neighbour import Neighbours
from trainer.builtin.checkpoint.search import Search, unsound_shards
from trainer.builtin.checkpoint.tiers import Tiers
from trainer.contract import Layout
from trainer.errors import Fenced, StorageError

Events = list[dict[str, Any]]
pytestmark = pytest.mark.usefixtures("events")


class Reshaping:
    """In place of DeepSpeed's converter and loader: notes what each is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.converted: dict[str, str] = {}
        self.part = (-1, -1)
        self.loaded, self.order = list[tuple[Any, Path]](), list[str]()
        monkeypatch.setattr(restore, "convert", self.convert)
        monkeypatch.setattr(restore, "load_universal", self.load)

    def convert(self, source: Path, target: Path, part: int, parts: int) -> None:
        self.part = (part, parts)
        self.converted = {f"{source.name}/{path.name}": digest_of(path) for path in source.iterdir()}
        target.mkdir(exist_ok=True)

    def load(self, engine: Any, target: Path) -> None:
        self.order.append("load")
        self.loaded.append((engine, target))


@pytest.fixture
def reshaping(monkeypatch: pytest.MonkeyPatch) -> Reshaping:
    return Reshaping(monkeypatch)


@pytest.mark.parametrize("where", ["local", "shared"])
def test_a_step_of_other_many_ranks_is_reshaped_from_verified_copies(
    where: str, tiers: Tiers, reshaping: Reshaping, events: Events
) -> None:
    manifest = saved([getattr(tiers, where)], 20, ranks=3)
    work = tiers.shared.root / ".universal-00000020-0-0002"
    (work / "attempt-0001").mkdir(parents=True)
    (work / "attempt-0001" / "left.pt").touch()
    there: list[bool] = []
    gang = watched(lambda what: there.append(work.exists()) if what == "barrier" else None, 0, 0, 1)
    engine = TinyEngine(gang)
    before = engine.checkpoint_engine
    begun = restore.load_start(engine, restore.choose_start(gang, tiers, 1, 2))
    assert begun == Begun(manifest, on_shared=True)
    assert reshaping.converted == {shard.file: shard.sha256 for shard in manifest.shards}
    assert reshaping.loaded == [(engine, work / "universal")] and engine.checkpoint_engine is not before
    assert there == [True], "all ranks have loaded before it goes"
    assert not work.exists() and tiers.shared.committed() == [manifest], "the nodes' own copies are of other ranks"
    (told,) = (event for event in events if event["event"] == "reshaped")
    assert (told["step"], told["from_ranks"], told["to_ranks"]) == (20, 3, 1) and 0 <= told["seconds"] < 600


def test_what_the_watch_has_seen_and_decided_lasts_over_another_number_of_ranks(
    tiers: Tiers, reshaping: Reshaping
) -> None:
    saved([tiers.shared], 20, ranks=3, watch="a lower learning rate until step 90")
    gang = Told.of(0, 0, 1)
    assert (
        restore.load_start(TinyEngine(gang), restore.choose_start(gang, tiers, 1, 2)).watch
        == "a lower learning rate until step 90"
    )


def test_every_rank_reshapes_its_part_and_leaves_it_to_the_first_to_be_removed(
    tiers: Tiers, reshaping: Reshaping
) -> None:
    manifest = saved([tiers.shared], 20, ranks=3)
    work = tiers.shared.root / ".universal-00000020-0-0002"
    gang = watched(lambda what: None, 1, 1, 2)
    engine = TinyEngine(gang)
    restore.load_start(engine, restore.choose_start(gang, tiers, 1, 2))
    assert reshaping.converted == {shard.file: shard.sha256 for shard in manifest.shards[1::2]}
    assert reshaping.part == (1, 2) and reshaping.loaded == [(engine, work / "universal")] and work.exists()


def test_a_leftover_of_a_reshaping_that_cannot_be_removed_ends_nothing(tiers: Tiers, reshaping: Reshaping) -> None:
    saved([tiers.shared], 20, ranks=3)
    work = tiers.shared.root / ".universal-00000020-0-0002"
    gang = watched(lambda what: shutil.rmtree(work) if what == "barrier" else None, 0, 0, 1)
    assert restore.load_start(TinyEngine(gang), restore.choose_start(gang, tiers, 1, 2)).step == 20


def test_a_shard_that_changed_since_it_was_verified_is_not_reshaped(
    tiers: Tiers, reshaping: Reshaping, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = saved([tiers.shared], 20, ranks=3)
    gang = Told.of(0, 0, 1)
    items = [item for item in Search(gang, tiers, Neighbours(0), 2).all_shards(manifest) if item]
    flip(tiers.shared.folder(20) / manifest.shards[-1].file)
    with pytest.raises(StorageError, match="changed after it was verified"):
        restore._reshape(
            TinyEngine(gang), manifest, items, Search(gang, tiers, Neighbours(0), 2), Layout(gang.world_size)
        )
    assert reshaping.converted == {} and reshaping.loaded == []


@pytest.mark.parametrize("lack", ["all", "manifest", "shard", "size", "another"])
def test_a_reshaped_step_that_the_shared_tier_lacks_in_part_is_made_whole_there(
    lack: str, tiers: Tiers, reshaping: Reshaping
) -> None:
    saved([tiers.shared], 10, ranks=3)
    manifest = saved([tiers.local], 20, ranks=3)
    folder = tiers.shared.folder(20)
    if lack != "all":
        saved([tiers.shared], 20, ranks=3)
    last = folder / manifest.shards[-1].file
    match lack:
        case "manifest":
            (folder / "manifest.json").unlink()
        case "shard":
            last.unlink()
        case "size":
            last.write_bytes(last.read_bytes()[:-1])
        case "another":
            (folder / "manifest.json").write_bytes(changed(manifest).serialize())
    work = tiers.shared.root / "work"
    shutil.copytree(tiers.local.folder(20), work)
    restore._keep_on_shared(manifest, work, tiers.shared, 2)
    assert tiers.shared.committed()[0] == manifest and unsound_shards(manifest, folder) == []


def test_a_reshaped_step_that_the_shared_tier_holds_is_left_alone(tiers: Tiers, tmp_path: Path) -> None:
    manifest = saved([tiers.shared], 20, ranks=3)
    saved([tiers.shared], 30)
    files = [tiers.shared.folder(20) / shard.file for shard in manifest.shards]
    before = [path.stat().st_ino for path in files]
    restore._keep_on_shared(manifest, tmp_path / "nothing there", tiers.shared, 2)
    assert [path.stat().st_ino for path in files] == before


def test_a_stale_attempt_brings_nothing_that_it_reshaped_to_the_shared_tier(tiers: Tiers, tmp_path: Path) -> None:
    manifest = saved([tiers.local], 20, ranks=3)
    raise_fence(tiers.shared.root, 3)
    with pytest.raises(Fenced, match="attempt 2, fence at 3"):
        restore._keep_on_shared(manifest, tiers.local.folder(20), tiers.shared, 2)
    assert tiers.shared.steps() == []

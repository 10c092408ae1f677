"""Where a rank finds sound shards: on its node, at its neighbours, on the shared tier; and what it takes for sound."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.builtin.checkpoint.saved_steps import MODEL, Told, flip, saved
from trainer.builtin.checkpoint import search
from trainer.builtin.checkpoint.neighbour import Neighbours, ShardAddress
from trainer.builtin.checkpoint.search import NOTHING_NEEDED, Search, identity_of, needed_shards, unsound_shards
from trainer.builtin.checkpoint.tiers import Tiers
from trainer.contract import Shard
from trainer.errors import OutOfFiles, StorageError

Events = list[dict[str, Any]]
pytestmark = pytest.mark.usefixtures("events")


@dataclass(frozen=True)
class ImageInventory(ShardAddress):
    """A neighbour's door: its shards lie in a folder; or it says why it gives none, or gives other bytes."""

    folder: Path = Path()
    says: Exception | None = None
    spoilt: bool = False
    asked: list[str] = field(default_factory=list)

    def fetch(self, step: int, shard: Shard, target: Path, resumable: bool = True) -> int:
        self.asked.append(shard.file)
        if self.says:
            raise self.says
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((self.folder / shard.file).read_bytes())
        if self.spoilt:
            flip(target)
        return 77


def inventory(node: int, folder: Path = Path(), **how: Any) -> ImageInventory:
    return ImageInventory(node, (node,), "there", 1, "word", folder, **how)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    monkeypatch.setattr(search, "time", SimpleNamespace(sleep=seen.append))
    return seen


def searching(tiers: Tiers, gang: Told | None = None, node: int = 0, *doors: ShardAddress) -> Search:
    return Search(gang or Told.of(), tiers, Neighbours(node, doors), 2)


def places(found: list[Any]) -> list[str | None]:
    return [item and item.tier.name for item in found]


# What a rank needs


def test_a_rank_needs_its_own_shards_and_the_models_and_nobody_elses(tiers: Tiers) -> None:
    manifest = saved(tiers, 10, ranks=3)
    assert sorted(shard.file.rpartition("/")[2] for shard in needed_shards(manifest, 1)) == [
        MODEL,
        "rng_rank_00001.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    ]
    shards = searching(tiers, Told.of(1, 0, 3)).shards(manifest)
    assert {item.shard for item in shards if item} == set(needed_shards(manifest, 1)) and len(shards) == 3


def test_what_a_nodes_ranks_share_is_looked_for_when_the_nodes_first_rank_has_brought_it(tiers: Tiers) -> None:
    manifest = saved(tiers, 10, ranks=2)
    model = tiers.local.folder(10) / "attempt-0001" / MODEL
    content = model.read_bytes()
    model.unlink()
    waits: list[str] = []

    class Ranks(Told):
        def together(self, what: str, work: Callable[[], Any]) -> Any:
            value = work()
            waits.append(what)
            model.write_bytes(content)
            return value

    asked = inventory(1)
    second = searching(tiers, Ranks.of(1, 1, 2), 0, inventory(0), asked).shards(manifest)
    assert places(second) == ["local"] * 3 and asked.asked == []
    model.unlink()
    first = searching(tiers, Ranks.of(0, 0, 2)).shards(manifest)
    assert sorted(map(str, places(first))) == ["local", "local", "shared"], "the first does not wait for itself"
    assert waits == ["verify or fetch the shards of step 10"] * 4, "every rank takes part in both exchanges"


def test_for_a_reshaping_each_rank_looks_for_a_part_of_all_shards(tiers: Tiers) -> None:
    manifest = saved([tiers.shared], 10, ranks=3)
    items = [item for rank in range(2) for item in searching(tiers, Told.of(rank, rank, 2)).all_shards(manifest)]
    assert {item.shard for item in items if item} == set(manifest.shards) and len(items) == 7
    assert set(places(items)) == {"shared"}
    assert searching(tiers, Told.of(9, 1, 10)).all_shards(manifest) == [NOTHING_NEEDED], "there are 7"
    flip(tiers.shared.folder(10) / manifest.shards[-1].file)
    assert [item is None for item in searching(tiers).all_shards(manifest)] == [False] * 6 + [True]


def test_shards_are_read_side_by_side_up_to_eight_at_a_time(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    eight, all_waiting, readers = threading.Barrier(8, timeout=30), threading.Event(), set[int]()

    class Readers(ThreadPoolExecutor):
        def map(self, *rest: Any, **named: Any) -> Iterator[Any]:
            found = super().map(*rest, **named)
            all_waiting.set()
            return found

    def slow(*_: Any) -> tuple[str, tuple[int, ...]]:
        readers.add(threading.get_ident())
        all_waiting.wait(30)
        eight.wait()
        return "", ()

    monkeypatch.setattr(search, "ThreadPoolExecutor", Readers)
    monkeypatch.setattr(search, "look", slow)
    some = [Shard(file=f"attempt-0001/{n}.pt", size_bytes=1, sha256=f"{n:064x}", rank=0) for n in range(24)]
    manifest = saved(tiers, 10).model_copy(update={"shards": tuple(some)})
    assert [item and item.shard for item in searching(tiers).shards(manifest)] == some and len(readers) == 8


# Where it is found


def test_the_nodes_own_copy_is_taken_before_a_neighbours_and_that_before_the_shared(tiers: Tiers) -> None:
    manifest = saved(tiers, 10)
    door = inventory(1, tiers.shared.folder(10))
    shards = searching(tiers, None, 0, inventory(0), door).shards(manifest)
    assert places(shards) == ["local"] * 3 and door.asked == []
    for item in shards:
        assert item is not None
        with (tiers.local.folder(10) / item.shard.file).open("rb") as file:
            assert item.identity == identity_of(file)


@pytest.mark.parametrize("trouble", ["missing", "damaged", "a folder"])
def test_what_the_node_lacks_comes_from_a_neighbour_and_replaces_what_was_refused(
    trouble: str, tiers: Tiers, events: Events, tmp_path: Path
) -> None:
    manifest = saved([tiers.local], 10)
    there = tmp_path / "there"
    tiers.local.folder(10).rename(there)
    saved([tiers.local], 10)
    (shard,) = (shard for shard in manifest.shards if shard.file.endswith(MODEL))
    path = tiers.local.folder(10) / shard.file
    if trouble == "damaged":
        flip(path)
    else:
        path.unlink()
    if trouble == "a folder":
        (path / "in its place").mkdir(parents=True)
    shards = searching(tiers, None, 1, inventory(0, there), inventory(1), inventory(2)).shards(manifest)
    assert places(shards) == ["local"] * 3 and unsound_shards(manifest, tiers.local.folder(10)) == []
    with path.open("rb") as file:
        assert next(item.identity for item in shards if item and item.shard == shard) == identity_of(file)
    refusal, fetched = events
    assert refusal["event"] == ("missing_shard" if trouble == "missing" else "refused_shard")
    assert (refusal["tier"], refusal["step"], refusal["rank"], refusal["file"]) == ("local", 10, 0, shard.file)
    wanted = {"event": "fetched_shard", "step": 10, "from_node": 0, "file": shard.file, "bytes": 77}
    assert refusal["wanted"] == shard.sha256 and fetched == wanted


@pytest.mark.parametrize(
    "no", [{"says": StorageError("gives no shard", "404")}, {"says": OSError("unreachable")}, {"spoilt": True}]
)
def test_a_neighbour_that_gives_nothing_sound_is_passed_over_for_the_next_one(
    no: dict[str, Any], tiers: Tiers, events: Events
) -> None:
    manifest = saved([tiers.shared], 10)
    first, second = inventory(1, tiers.shared.folder(10), **no), inventory(2, tiers.shared.folder(10))
    shards = searching(tiers, None, 0, inventory(0), first, second).shards(manifest)
    assert places(shards) == ["local"] * 3
    assert len(first.asked) == len(second.asked) == 3
    assert {event["from_node"] for event in events if event["event"] == "fetched_shard"} == {2}
    passed = [event["node_asked"] for event in events if event["event"] == "neighbour_without_shard"]
    assert passed == ([1] * 3 if "says" in no else [])


def test_without_a_neighbours_copy_the_shared_one_is_taken_and_our_mistakes_are_raised(
    tiers: Tiers,
) -> None:
    manifest = saved([tiers.shared], 10)
    no = [inventory(node, says=StorageError("gives no shard", "404")) for node in range(3)]
    assert places(searching(tiers, None, 0, *no).shards(manifest)) == ["shared"] * 3
    assert (len(no[0].asked), len(no[1].asked), len(no[2].asked)) == (0, 3, 3), "its own door is none"
    with pytest.raises(KeyError):
        searching(tiers, None, 0, no[0], inventory(1, says=KeyError("ours"))).shards(manifest)


def test_a_limit_that_stops_a_fetch_is_not_a_neighbour_without_the_shard(tiers: Tiers, events: Events) -> None:
    manifest = saved([tiers.shared], 10)
    full = inventory(1, says=OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(OutOfFiles):
        searching(tiers, None, 0, inventory(0), full).shards(manifest)
    assert not [event for event in events if event["event"] == "neighbour_without_shard"]


def test_a_shard_that_is_sound_nowhere_is_told_for_each_tier_and_not_found(tiers: Tiers, events: Events) -> None:
    manifest = saved(tiers, 10)
    shard = manifest.shards[0]
    (tiers.local.folder(10) / shard.file).unlink()
    flip(tiers.shared.folder(10) / shard.file)
    door = inventory(1, tiers.shared.folder(10))
    shards = searching(tiers, None, 0, inventory(0), door).shards(manifest)
    assert [item and item.shard for item in shards].count(None) == 1 and len(shards) == 3
    assert door.asked == [shard.file], "asked once: after the shared tier's refusal nothing has changed"
    assert [(event["event"], event["tier"]) for event in events] == [
        ("missing_shard", "local"),
        ("refused_shard", "shared"),
    ]


def test_a_full_node_gives_up_its_older_steps_for_the_shard_that_comes(
    tiers: Tiers, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        saved([tiers.local], step)
    manifest = saved([tiers.shared], 20)
    newer = tiers.local.folder(40) / "attempt-0003"
    newer.mkdir(parents=True)
    (tiers.local.folder(20) / manifest.shards[0].file).unlink()
    full, real = [True], ImageInventory.fetch

    def fetch(door: ImageInventory, *rest: Any) -> int:
        if full.pop() if full else False:
            raise OSError(errno.ENOSPC, "full")
        return real(door, *rest)

    monkeypatch.setattr(ImageInventory, "fetch", fetch)
    shards = searching(tiers, None, 0, inventory(0), inventory(1, tiers.shared.folder(20))).shards(manifest)
    assert places(shards) == ["local"] * 3
    # 20 is wanted, 40 is a newer attempt's; 30 was trained after it and comes again.
    assert tiers.local.steps() == [40, 20]
    (told,) = (event for event in events if event["event"] == "reclaimed")
    assert (told["dropped"], told["needed_bytes"]) == ([30, 10], manifest.shards[0].size_bytes)


def test_the_shared_tier_alone_is_waited_for_up_to_21_seconds(
    tiers: Tiers, pauses: list[float], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = saved(tiers, 10)
    one = manifest.model_copy(update={"shards": manifest.shards[:1]})

    def failing(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(search, "open_regular", failing)
    assert searching(tiers).shards(one) == [None]
    assert pauses == [1.0, 5.0, 15.0]
    assert [(event["event"], event["tier"]) for event in events] == [
        ("refused_shard", name) for name in ("local", "shared")
    ]

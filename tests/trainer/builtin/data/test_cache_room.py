"""The room of a node's cache: what is dropped for a shard that comes, what never, and what is told of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.builtin.data.cached_shards import SIZE, Shelves, World, caches_at, content, shard
from trainer.builtin.data.cache import Cache


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return caches_at(tmp_path, monkeypatch)


def test_what_just_fits_is_kept_and_needs_no_word(make: Callable[..., World]) -> None:
    alone = make(limit=SIZE)
    alone.cache.locate(shard("a"))
    world = make(limit=2 * SIZE)
    world.cache.locate(shard("b"))
    assert world.holds("ab") == "ab" and world.said("data_cache_small") == []


def test_of_those_that_nobody_reads_the_longest_unused_goes_and_no_more_than_must(make: Callable[..., World]) -> None:
    world = make(limit=4 * SIZE)
    for when, name in enumerate("dbca"):
        world.used_at(shard(name), when)
    world.cache.locate(shard("e"))
    assert world.holds("abcde") == "abce"
    world.used_at(shard("b"), 99)
    world.cache.locate(shard("f"))
    assert world.holds("abcdef") == "abef"
    assert {path.suffix for path in world.cache.folder.iterdir()} == {".bin", ".verified", ".lock"}
    assert len(list(world.cache.folder.glob("*.verified"))) == 4 and world.said("data_cache_small") == []


def test_two_go_where_one_is_not_enough(make: Callable[..., World]) -> None:
    big = shard("f", 2 * SIZE)
    world = make(limit=4 * SIZE)
    for when, name in enumerate("abcd"):
        world.used_at(shard(name), when)
    world.source.answers = [content("f", 2 * SIZE)]
    world.cache.locate(big)
    assert world.holds("abcd") == "cd" and world.cache.holds(big)


def test_what_is_read_stays_and_the_next_one_goes_and_where_all_is_read_training_goes_on(
    make: Callable[..., World],
) -> None:
    world = make(limit=2 * SIZE)
    reading = [world.cache.open(shard("a"))]
    world.used_at(shard("a"), 1)
    world.cache.locate(shard("b"))
    world.cache.locate(shard("c"))
    assert world.holds("abc") == "ac" and world.said("data_cache_small") == []
    reading.append(world.cache.open(shard("c")))
    world.cache.locate(shard("d"))
    assert world.holds("abcd") == "acd"
    (told,) = world.said("data_cache_small")
    assert (told["used_bytes"], told["needed_bytes"], told["limit_bytes"]) == (2 * SIZE, SIZE, 2 * SIZE)
    for descriptor in reading:
        os.close(descriptor)
    world.cache.locate(shard("e"))
    assert len(world.holds("abcde")) == 2


def test_a_reader_holds_its_copy_in_common_with_others(make: Callable[..., World]) -> None:
    world = make()
    first, second = world.cache.open(shard("a")), world.cache.open(shard("a"))
    assert os.read(first, 999) == os.read(second, 999) == content("a")
    with pytest.raises(BlockingIOError):
        fcntl.flock(os.open(world.cache.locate(shard("a")), os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(first)
    os.close(second)


def test_what_is_on_its_way_takes_its_room_from_the_first_byte_and_cannot_be_dropped(
    make: Callable[..., World],
) -> None:
    st_sizes: list[int] = []

    def pieces() -> Iterator[bytes]:
        (partial,) = world.cache.folder.glob("*.partial")
        st_sizes.append(partial.stat().st_size)
        with partial.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = World(world.cache, Shelves(), [], world.told)
        other.cache.locate(shard("b"))
        st_sizes.append(partial.stat().st_size)
        yield content("a")

    world = make(pieces, limit=SIZE)
    assert world.cache.locate(shard("a")).read_bytes() == content("a")
    assert st_sizes == [SIZE, SIZE] and len(world.said("data_cache_small")) == 1


def test_what_a_process_that_is_gone_left_half_brought_makes_way(make: Callable[..., World]) -> None:
    world = make(limit=2 * SIZE)
    world.cache.locate(shard("a"))
    left = world.cache.folder / "left.partial"
    left.write_bytes(bytes(SIZE))
    os.utime(left, ns=(1, 1))
    world.cache.locate(shard("b"))
    assert world.holds("ab") == "ab" and not left.exists()


def test_a_copy_that_gets_its_name_while_it_is_counted_counts_once(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(limit=2 * SIZE)
    world.cache.folder.mkdir(parents=True)
    brought, look = world.cache.folder / "brought.partial", Path.stat
    brought.write_bytes(bytes(SIZE))

    def named(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        seen = look(path, follow_symlinks=follow_symlinks)
        if path == brought:
            path.rename(path.with_suffix(".bin"))
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", named)
        world.cache.locate(shard("a"))
    assert brought.with_suffix(".bin").exists() and world.holds("a") == "a"


def test_what_another_process_dropped_first_has_made_its_room(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(limit=2 * SIZE)
    world.cache.locate(shard("a"))
    real = Cache._copies
    gone = (0, SIZE, world.cache.folder / "gone.bin")
    monkeypatch.setattr(Cache, "_copies", lambda cache: [gone, *real(cache)])
    world.cache.locate(shard("b"))
    assert world.holds("ab") == "ab"


def test_dropping_leaves_no_file_open(make: Callable[..., World]) -> None:
    world = make(limit=SIZE)
    for name in "ab":
        world.cache.locate(shard(name))
    before = os.listdir("/proc/self/fd")
    for name in "cde":
        world.cache.locate(shard(name))
    assert len(os.listdir("/proc/self/fd")) == len(before)

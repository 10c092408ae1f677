"""How a shard comes to a node: what is asked for again, what is named as damaged, and which copies are trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.builtin.data.cached_shards import SIZE, World, caches_at, content, shard, shard_of
from trainer.builtin.data import cache as caching
from trainer.builtin.data.cache import Cache
from trainer.contract import TokenShard
from trainer.errors import DataError, OutOfFiles, OutOfMemory, StorageError, TrainerError

MIB = 2**20


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return caches_at(tmp_path, monkeypatch)


# What is brought


def test_a_copy_has_its_name_only_when_all_of_it_is_on_the_disk(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, synced, real = make(content("a")), list[tuple[int, bool]](), os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, world.names == []))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    less = shard("a").model_copy(update={"tokens": 90})
    assert world.cache.locate(less).read_bytes() == content("a")
    assert synced == [(SIZE, True)], "without the room that it did not need"


def test_a_failed_bringing_leaves_nothing_and_what_was_damaged_goes(make: Callable[..., World]) -> None:
    world = make()
    path = world.cache.locate(shard("a"))
    path.write_bytes(b"damaged")
    later = make(*[OSError("reset")] * 5, session="two")
    with pytest.raises(StorageError, match=r"a\.bin from the shelves, 5 tries: reset;"):
        later.cache.locate(shard("a"))
    assert later.names == [] and not list(later.cache.folder.glob("*.partial"))
    assert later.pauses == [0.5, 1.0, 2.0, 4.0] and later.source.asked == ["a.bin"] * 5
    assert not later.cache.holds(shard("a")) and later.cache.locate(shard("a")).read_bytes() == content("a")


@pytest.mark.parametrize(
    ("answers", "kind", "told"),
    [
        ([b"x"] * 5, DataError, "corrupt: 1 bytes"),
        ([FileNotFoundError("NoSuchKey")] * 5, DataError, "NoSuchKey"),
        ([OSError("reset")] * 5, StorageError, "reset"),
        ([OSError()] * 5, StorageError, "OSError"),
        ([OSError(errno.EMFILE, "Too many open files")] * 5, OutOfFiles, ".*Too many"),
        ([OSError("reset")] * 4 + [OSError(errno.ENOMEM, "refused")], OutOfMemory, "reset; .*refused"),
        ([b"x"] * 4 + [OSError("reset")], StorageError, "corrupt.*; reset"),
        ([b"x"] * 4 + [b"y"], StorageError, "corrupt.*; corrupt"),
        ([FileNotFoundError("gone")] * 4 + [OSError("gone")], StorageError, "gone"),
        ([OSError("gone")] + [FileNotFoundError("gone")] * 4, StorageError, "gone"),
    ],
)
def test_only_a_source_that_says_the_same_wrong_thing_at_every_try_is_damaged(
    answers: list[Any], kind: type[Exception], told: str, make: Callable[..., World]
) -> None:
    world = make(*answers)
    with pytest.raises(TrainerError, match=rf"a\.bin from the shelves, 5 tries: {told}") as raised:
        world.cache.locate(shard("a"))
    assert type(raised.value) is kind and len(world.said("data_retry")) == 5


def test_a_mistake_of_ours_is_not_tried_again(make: Callable[..., World]) -> None:
    world = make(KeyError("ours"))
    with pytest.raises(KeyError):
        world.cache.open(shard("a"))
    assert world.source.asked == ["a.bin"] and world.pauses == []


@pytest.mark.parametrize(
    ("size", "seconds", "tries"),
    [
        (1, 10.0, 1),
        (1, 10.5, 5),
        (10 * MIB + MIB // 2, 10.5, 1),
        (10 * MIB + MIB // 2 - 1, 10.5, 5),
        (20 * MIB, 40.0, 5),
    ],
)
def test_less_than_a_mebibyte_a_second_for_ten_is_too_slow_but_for_the_last_try(
    size: int, seconds: float, tries: int, make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    whole = bytes(size)
    wanted = shard_of("a", whole)

    def slowly() -> Iterator[bytes]:
        now[0] += seconds
        yield whole

    monkeypatch.setattr(caching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = make(*[slowly] * 5)
    assert world.cache.locate(wanted).stat().st_size == size
    assert len(world.source.asked) == tries
    assert all(each["seen"].startswith("slow: ") for each in world.said("data_retry"))


# Who trusts what


def test_what_another_rank_brought_meanwhile_is_taken_without_being_read(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, other, real = make(), make(), caching._lock

    @contextlib.contextmanager
    def waited(path: Path) -> Iterator[None]:
        monkeypatch.setattr(caching, "_lock", real)
        other.cache.locate(shard("a"))
        with real(path):
            yield

    def never(path: Path) -> str:
        raise AssertionError("it is read again")

    monkeypatch.setattr(caching, "_lock", waited)
    monkeypatch.setattr(caching, "_digest", never)
    assert world.cache.locate(shard("a")).exists()
    assert (world.source.asked, other.source.asked) == ([], ["a.bin"])


def test_what_lies_there_is_had_without_waiting_for_anybody(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    path = world.cache.locate(shard("a"))
    monkeypatch.setattr(caching, "_lock", None)
    assert world.cache.locate(shard("a")) == path


def test_what_an_earlier_session_left_counts_as_used_when_it_is_trusted_again(make: Callable[..., World]) -> None:
    world = make()
    world.used_at(shard("a"), 1)
    later = make(session="two")
    assert not later.cache.holds(shard("a"))
    path = later.cache.locate(shard("a"))
    assert later.source.asked == [] and later.cache.holds(shard("a")) and path.stat().st_mtime_ns > 1


def test_a_copy_is_held_with_its_mark_and_its_bytes(make: Callable[..., World]) -> None:
    world = make()
    assert not world.cache.holds(shard("a"))
    path = world.cache.locate(shard("a"))
    assert world.cache.holds(shard("a"))
    path.rename(path.with_name("elsewhere"))
    assert not world.cache.holds(shard("a"))
    path.with_name("elsewhere").rename(path)
    path.with_suffix(".verified").unlink()
    assert not world.cache.holds(shard("a"))


def test_a_copy_that_is_dropped_before_it_is_opened_or_used_is_brought_again(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, real, dropped = make(), Cache.locate, list[bool]()

    def drop(cache: Cache, each: TokenShard) -> Path:
        path = real(cache, each)
        if not dropped:
            dropped.append(True)
            path.unlink()
        return path

    monkeypatch.setattr(Cache, "locate", drop)
    descriptor = world.cache.open(shard("a"))
    assert os.read(descriptor, 999) == content("a") and world.source.asked == ["a.bin"] * 2
    os.close(descriptor)
    (world.cache.folder / "gone.bin").unlink(missing_ok=True)
    caching._touch(world.cache.folder / "gone.bin")


def test_any_rank_may_read_the_locks_and_their_owner_alone_writes_them(make: Callable[..., World]) -> None:
    before, world = os.umask(0), make()
    try:
        world.cache.locate(shard("a"))
    finally:
        os.umask(before)
    locks = list(world.cache.folder.glob("*.lock"))
    assert len(locks) == 2 and {stat.S_IMODE(path.stat().st_mode) for path in locks} == {0o644}

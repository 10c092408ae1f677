"""Shards on their way to a node: verified, bounded, shared, tried again, and named when they cannot be had."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import waiting
from tests.root import ROOT
from tests.trainer.data_sets import used_bytes
from tests.waiting import HUNG_S
from trainer.buckets.sources import BucketSource, FolderSource
from trainer.builtin.data import cache as caching
from trainer.builtin.data.cache import TRIES, Cache
from trainer.builtin.data.feed import Feed, Share
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.reader import Reader, load_manifest
from trainer.builtin.data.staging import Stager
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import Parameters, TokenShard
from trainer.contract.recipe import Recipe, Source
from trainer.errors import DataError, StorageError


class Troubled:
    """A source whose first answers are troubles: bytes to give instead, or an error to raise."""

    def __init__(self, root: Path, *troubles: bytes | OSError) -> None:
        self.troubles, self.asked, self._root = list(troubles), list[str](), root

    def read(self, name: str) -> Iterator[bytes]:
        self.asked.append(name)
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, OSError):
            yield (self._root / name).read_bytes()[:100]
            raise trouble
        yield (self._root / name).read_bytes() if trouble is None else trouble

    def __str__(self) -> str:
        return "s3://troubled/data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data")
    for index in range(60):
        (source / f"{index}.txt").write_text("".join(f"{n % (index + 3)} of {index}, {n}\n" for n in range(200)))
    rules = Parameters(held_out=0.1, seed=5, shard_tokens=4096)
    recipe = Recipe(sources=(Source(location=str(source)),), parameters=rules, vocabulary=270)
    make(recipe, out, lambda stage, part: None, cores=1)
    return out


@pytest.fixture(scope="module")
def shards(data: Path) -> tuple[TokenShard, ...]:
    found = load_manifest(data, "").train
    assert len(found) > 8
    return found


def cached(folder: Path, source: object, limit: int = 2**30, session: str = "one") -> tuple[Cache, list[float]]:
    pauses: list[float] = []
    return Cache(folder, limit, source, 2, session, pauses.append), pauses  # type: ignore[arg-type]


def test_a_shard_is_brought_once_and_then_lies_there(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    source = Troubled(data)
    cache, _ = cached(tmp_path, source)
    for _ in range(3):
        assert cache.locate(shards[0]).read_bytes() == (data / shards[0].file).read_bytes()
    assert source.asked == [shards[0].file]
    assert not list(tmp_path.glob("*.partial"))


def test_failing_and_corrupt_answers_are_asked_again_with_growing_pauses(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Troubled(data, OSError("reset by peer"), b"something else", b"")
    cache, pauses = cached(tmp_path, source)
    assert cache.locate(shards[0]).read_bytes() == (data / shards[0].file).read_bytes()
    assert (len(source.asked), pauses) == (4, [0.5, 1.0, 2.0])
    said = capsys.readouterr().out
    assert said.count('"data_retry"') == 3 and "reset by peer" in said and "corrupt" in said


def test_a_shard_that_cannot_be_had_is_named_with_its_source_and_every_reason(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    troubles: list[bytes | OSError] = [OSError("SlowDown"), b"damaged"]
    source = Troubled(data, *troubles * TRIES)
    cache, _ = cached(tmp_path, source)
    with pytest.raises(StorageError, match=rf"{shards[2].file} from s3://troubled/data.*SlowDown.*corrupt.*cure"):
        cache.locate(shards[2])
    assert len(source.asked) == TRIES and not list(tmp_path.glob("*.bin")) + list(tmp_path.glob("*.partial"))


def test_a_source_that_holds_other_bytes_at_every_try_is_damaged_data(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    cache, _ = cached(tmp_path, Troubled(data, *[b"damaged"] * TRIES))
    with pytest.raises(DataError, match=rf"{shards[2].file} from s3://troubled/data.*corrupt.*cure"):
        cache.locate(shards[2])


def test_a_slow_answer_is_left_for_another_but_for_the_last(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Troubled):
        def read(self, name: str) -> Iterator[bytes]:
            self.asked.append(name)
            content = (self._root / name).read_bytes()
            for start in range(0, len(content), 1000):
                clock[0] += 1.0
                yield content[start : start + 1000]

    clock = [0.0]
    monkeypatch.setattr(caching.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(caching, "SLOW_AFTER_S", 3.0)
    source = Slow(data)
    cache, _ = cached(tmp_path, source)
    assert cache.locate(shards[0]).exists()
    assert len(source.asked) == TRIES


def test_what_another_session_left_is_read_once_before_it_is_trusted(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    first, _ = cached(tmp_path, FolderSource(data))
    sound, flipped = first.locate(shards[0]), first.locate(shards[1])
    content = bytearray(flipped.read_bytes())
    content[7] ^= 1
    flipped.write_bytes(content)
    source = Troubled(data)
    second, _ = cached(tmp_path, source, session="two")
    assert second.locate(shards[0]) == sound and second.locate(shards[1]) == flipped
    assert source.asked == [shards[1].file], "the damaged copy alone is brought again"
    assert flipped.read_bytes() == (data / shards[1].file).read_bytes()


def test_the_cache_keeps_below_its_limit_and_drops_the_longest_unused_first(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    limit = 2 * (shards[0].tokens + shards[2].tokens + max(shards[1].tokens, shards[3].tokens))
    cache, _ = cached(tmp_path, FolderSource(data), limit)
    for number, shard in enumerate(shards[:3]):
        os.utime(cache.locate(shard), ns=(number, number))
    cache.locate(shards[0])
    cache.locate(shards[3])
    assert used_bytes(cache) <= limit
    assert [cache.holds(shard) for shard in shards[:4]] == [True, False, True, True]


def test_a_copy_that_gets_its_name_while_room_is_counted_is_counted(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the look at its size: not counted, the cache grew by it over its limit."""
    brought, look = tmp_path / "brought.partial", Path.stat
    brought.write_bytes(bytes(100))

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == brought and os.path.exists(path):
            path.rename(path.with_suffix(".bin"))
        return look(path, follow_symlinks=follow_symlinks)

    cache, _ = cached(tmp_path, FolderSource(data), 2 * shards[0].tokens + 50)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        cache.locate(shards[0])
    assert used_bytes(cache) <= cache.limit_bytes


def test_a_shard_that_someone_reads_is_not_dropped(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = 2 * (shards[0].tokens + shards[1].tokens) + 100
    cache, _ = cached(tmp_path, FolderSource(data), limit)
    with os.fdopen(cache.open(shards[0]), "rb") as file:
        mapped = np.memmap(file, dtype="<i2", mode="r")
    os.utime(cache.locate(shards[0]), ns=(1, 1))
    cache.locate(shards[1])
    cache.locate(shards[2])
    assert cache.holds(shards[0]) and not cache.holds(shards[1])
    with os.fdopen(cache.open(shards[2]), "rb") as file:
        other = np.memmap(file, dtype="<i2", mode="r")
    cache.locate(shards[3])
    assert '"data_cache_small"' in capsys.readouterr().out, "all of it was in use, and that was not said"
    del mapped
    cache.locate(shards[4])
    assert not cache.holds(shards[0]) and len(other) == shards[2].tokens


def test_ranks_of_a_node_bring_a_shard_once_and_a_killed_one_holds_up_nobody(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from trainer.contract import TokenShard\nfrom trainer.builtin.data.cache import Cache\n"
        "from trainer.buckets.sources import FolderSource\n"
        "class Counted(FolderSource):\n"
        "    def read(self, name):\n"
        "        Path(sys.argv[3]).open('a').write(name + '\\n')\n"
        "        for piece in super().read(name):\n"
        "            time.sleep(float(sys.argv[4])); yield piece\n"
        "cache = Cache(Path(sys.argv[1]), 2**30, Counted(Path(sys.argv[2])), 2, 'one')\n"
        "print(cache.locate(TokenShard.model_validate_json(sys.argv[5])).stat().st_size)"
    )
    asked = tmp_path / "asked"

    def rank(seconds: float) -> subprocess.Popen[str]:
        place = [str(tmp_path / "cache"), str(data), str(asked), str(seconds), shards[0].model_dump_json()]
        return subprocess.Popen([sys.executable, "-c", script, *place], stdout=subprocess.PIPE, cwd=ROOT, text=True)

    stuck = rank(600)
    waiting.until(lambda: asked.exists() and asked.read_text().endswith("\n"), "the first has asked")
    ranks = [rank(0) for _ in range(4)]
    stuck.kill()
    answers = [process.communicate(timeout=HUNG_S)[0].strip() for process in ranks]
    stuck.wait()
    assert answers == [str(2 * shards[0].tokens)] * 4
    assert asked.read_text().split() == [shards[0].file] * 2, "once by the one that was killed, once by another"


def reader_of(data: Path, opener: object) -> Reader:
    return Reader(load_manifest(data, ""), opener, 16, 5, shuffle_blocks=1)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_shards_are_staged_ahead_and_the_cache_stays_bounded_over_epochs(
    data: Path, shards: tuple[TokenShard, ...], tmp_path: Path
) -> None:
    """A cache of less than half of the data; the feed's own reads find what the stager brought."""
    source = Troubled(data)
    limit = sum(2 * shard.tokens for shard in shards) * 9 // 20
    cache, _ = cached(tmp_path, source, limit)
    waits: list[str] = []

    def opener(shard: TokenShard) -> int:
        if not cache.holds(shard):
            waits.append(shard.file)
        return cache.open(shard)

    reader, plain = reader_of(data, opener), reader_of(data, folder_opener(data))
    stager, most = Stager(cache, reader, 0, lead=4 * 32), 0
    steps = 2 * reader.samples // 32
    assert stager.ahead.wait(10)
    with Feed(reader, Share(32, 32, 1, 0), 0, 32 * steps, 1, stager) as feed:
        for step in range(steps):
            (batch,) = feed.next().micro_batches
            assert stager.ahead.wait(10), "the step of a training that takes longer than the shards do"
            assert np.array_equal(batch, plain.batch(range(32 * step, 32 * step + 32)))
            most = max(most, used_bytes(cache))
    assert most <= limit
    assert len(source.asked) > len(shards), "two epochs do not fit: some were brought again"
    assert not waits, "the reader met a shard that was not there"


def test_shards_come_from_a_bucket(data: Path, shards: tuple[TokenShard, ...], tmp_path: Path, moto_s3: Any) -> None:
    moto_s3.create_bucket(Bucket="sets")
    moto_s3.upload_file(str(data / shards[0].file), "sets", f"one/{shards[0].file}")
    source = BucketSource("s3://sets/one/")
    source._made = moto_s3
    cache, _ = cached(tmp_path, source)
    assert hashlib.sha256(cache.locate(shards[0]).read_bytes()).hexdigest() == shards[0].sha256
    with pytest.raises(DataError, match=rf"{shards[1].file} from s3://sets/one.*NoSuchKey"):
        cache.locate(shards[1])

"""Shards between nodes: what a lost node held comes back from its successor's NVMe, and only with its digest."""

from __future__ import annotations

import errno
import fcntl
import itertools
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving import serve
from tests.trainer.agents import Attempt, run
from tests.trainer.builtin.checkpoint.committing import MakeRank, ranks_at
from trainer.builtin.checkpoint import commit, fetching
from trainer.builtin.checkpoint.files import digest_of
from trainer.builtin.checkpoint.neighbour import Neighbours, ShardAddress
from trainer.builtin.checkpoint.tiers import Tier
from trainer.builtin.serving import TOKEN_VARIABLE, answer, new_token
from trainer.contract import Manifest, Shard
from trainer.errors import StorageError

PIECE = 2**20
SIZE = 11 * PIECE + 12345
NODE_1_SHARD = "attempt-0001/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"


@pytest.mark.nightly
def test_a_lost_nodes_shards_come_from_its_successor_without_the_shared_tier(twin: Attempt, tmp_path: Path) -> None:
    assert [event["of_node"] for event in twin.events("kept_neighbour", node=0)][-1] == 1
    world = twin.world.copy(tmp_path / "world")
    world.lose_node(1)
    (world.shared / "tiny/step-00000060" / NODE_1_SHARD).unlink()

    attempt = run(world, 2)

    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(1).read_text()
    fetched = {event["file"]: event["from_node"] for event in attempt.events("fetched_shard", node=1)}
    assert fetched[NODE_1_SHARD] == 0 and len(fetched) == 3, fetched
    assert attempt.events("restored")[0]["step"] == 60


@pytest.fixture
def door(tmp_path: Path) -> Iterator[ShardAddress]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, tmp_path / "tiny")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serve(server)
    new_token()
    (tmp_path / "tiny/step-00000010/attempt-0001").mkdir(parents=True)
    (tmp_path / "tiny/step-00000010/attempt-0001/a.pt").write_bytes(b"state" * 1000)
    yield ShardAddress(1, (1,), "127.0.0.1", server.server_port, os.environ.pop(TOKEN_VARIABLE))
    server.shutdown()
    server.server_close()


def shard_of(path: Path, name: str = "a.pt") -> Shard:
    return Shard(file=f"attempt-0001/{name}", size_bytes=5000, sha256=digest_of(path), rank=1)


def test_a_shard_is_fetched_with_its_digest_and_refused_with_another(
    door: ShardAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, door.token)
    source, target = tmp_path / "tiny/step-00000010/attempt-0001/a.pt", tmp_path / "there/a.pt"
    shard = shard_of(source)
    door.fetch(10, shard, target)
    assert target.read_bytes() == source.read_bytes()
    source.write_bytes(b"stale" * 1000)
    with pytest.raises(StorageError, match="another shard"):
        door.fetch(10, shard, tmp_path / "there/b.pt")
    source.write_bytes(b"short")
    with pytest.raises(StorageError, match="416"):
        door.fetch(10, shard, tmp_path / "there/b.pt")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["a.pt"]


@pytest.mark.parametrize("name", ["a.pt", "%2e%2e"])
def test_without_the_word_or_outside_of_the_folder_nothing_is_served(
    name: str, door: ShardAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, door.token if name != "a.pt" else "another word")
    shard = shard_of(tmp_path / "tiny/step-00000010/attempt-0001/a.pt", name)
    with pytest.raises(StorageError, match="403" if name == "a.pt" else "404"):
        door.fetch(10, shard, tmp_path / "there/a.pt")


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: ShardAddress) -> Shard:
    """Of twelve pieces, the last one a part of one."""
    monkeypatch.setenv(TOKEN_VARIABLE, door.token)
    monkeypatch.setattr(fetching, "PIECE_BYTES", PIECE)
    path = tmp_path / "tiny/step-00000010/attempt-0001/large.pt"
    path.write_bytes(random.Random(5).randbytes(SIZE))
    return Shard(file="attempt-0001/large.pt", size_bytes=SIZE, sha256=digest_of(path), rank=1)


def fetch_and_be_killed(door: ShardAddress, shard: Shard, target: Path, pieces: int) -> None:
    """A rank that ends in the middle of its fetch, as by a lost peer or by its pod's end."""
    given = ShardAddress._give
    came = itertools.count(1)

    def give(self: ShardAddress, path: str, start: int, end: int, write: Any) -> None:
        given(self, path, start, end, write)
        if next(came) == pieces:
            os.kill(os.getpid(), signal.SIGKILL)

    ShardAddress._give = give  # type: ignore[method-assign]
    door.fetch(10, shard, target)


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_fetch_that_was_cut_by_the_end_of_its_process_goes_on_where_it_was(
    pieces: int, door: ShardAddress, large: Shard, tmp_path: Path
) -> None:
    target = tmp_path / "there/large.pt"
    rank = multiprocessing.get_context("fork").Process(target=fetch_and_be_killed, args=(door, large, target, pieces))
    rank.start()
    rank.join(60)
    assert rank.exitcode == -signal.SIGKILL and not target.exists()

    elsewhere = replace(door, token="of a node that has none of it")
    with pytest.raises(StorageError, match="403"):
        elsewhere.fetch(10, large, target)
    came = door.fetch(10, large, target)

    assert came <= SIZE - pieces * PIECE, "what had come was asked for again"
    assert digest_of(target) == large.sha256
    assert [path.name for path in target.parent.iterdir()] == ["large.pt"]


def test_what_was_kept_and_is_wrong_is_fetched_again_and_what_cannot_be_kept_goes(
    door: ShardAddress, large: Shard, tmp_path: Path
) -> None:
    target = tmp_path / "there/large.pt"
    partial = target.with_name(f".large.pt.{large.sha256[:16]}.partial")
    target.parent.mkdir()
    partial.write_bytes(b"another" + bytes(SIZE - 7))
    assert door.fetch(10, large, target) == SIZE
    assert digest_of(target) == large.sha256 and not partial.exists()

    gone = large.model_copy(update={"file": "attempt-0001/gone.pt"})
    with pytest.raises(StorageError, match="404"):
        door.fetch(10, gone, tmp_path / "there/gone.pt", resumable=False)
    assert [path.name for path in target.parent.iterdir()] == ["large.pt"]


def test_two_processes_that_fetch_the_same_shard_do_not_write_into_one_file(
    door: ShardAddress, large: Shard, tmp_path: Path
) -> None:
    target = tmp_path / "there/large.pt"
    partial = target.with_name(f".large.pt.{large.sha256[:16]}.partial")
    target.parent.mkdir()
    with partial.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert door.fetch(10, large, target) == SIZE
        assert digest_of(target) == large.sha256 and os.fstat(other.fileno()).st_size == 0


# What a commit keeps for a neighbour


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    return ranks_at(tmp_path, monkeypatch)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []

    def keep(door: ShardAddress, manifest: Manifest, tier: Tier, reads_back: bool) -> int:
        seen.append((door.node, manifest.step))
        return 4096

    monkeypatch.setattr(commit, "keep_for", keep)
    return seen


DOORS = Neighbours(0, (ShardAddress(0, (0,), "here", 1, "word"), ShardAddress(1, (1,), "there", 1, "word")))


def test_a_node_keeps_its_predecessors_shards_of_every_commit(make: MakeRank, kept: list[tuple[int, int]]) -> None:
    rank = make(neighbours=DOORS)
    rank.commit(10)
    assert kept == [(1, 10)]
    (told,) = rank.said("kept_neighbour")
    assert (told["step"], told["of_node"], told["bytes"]) == (10, 1, 4096) and 0 <= told["seconds"] < 60


@pytest.mark.parametrize("settings", [{"neighbours": None}, {"neighbours": DOORS, "neighbour": False}])
def test_without_a_neighbour_or_where_it_is_not_wanted_nothing_is_kept(
    settings: dict[str, Any], make: MakeRank, kept: list[tuple[int, int]]
) -> None:
    make(**settings).commit(10)
    assert kept == []


def test_of_a_nodes_ranks_the_first_alone_keeps_them(make: MakeRank, kept: list[tuple[int, int]]) -> None:
    make(rank=1, local_rank=1, ranks=2, neighbours=DOORS).commit(10)
    assert kept == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), StorageError("a neighbour refuses a shard", "404")])
def test_a_neighbour_that_gives_nothing_ends_nothing(
    error: Exception, make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*rest: Any) -> int:
        raise error

    monkeypatch.setattr(commit, "keep_for", refuse)
    rank = make(neighbours=DOORS)
    rank.commit(10)
    assert [told["of_node"] for told in rank.said("neighbour_not_kept")] == [1] and rank.error is None


def test_a_mistake_of_ours_at_the_neighbour_is_not_taken_for_a_disks(
    make: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*rest: Any) -> int:
        raise KeyError("ours")

    monkeypatch.setattr(commit, "keep_for", fail)
    rank = make(neighbours=DOORS)
    rank.save(10)
    rank.work()
    rank.settle()
    rank.work()
    assert "KeyError" in str(rank.error)

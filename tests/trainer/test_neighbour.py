"""Shards between nodes: what a lost node held comes back from its successor's NVMe, and only with its digest."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agents import Attempt, run

from trainer.checkpoint.door import WORD_VARIABLE, answer, new_word
from trainer.checkpoint.files import digest_of
from trainer.checkpoint.neighbour import Door
from trainer.contract import Shard
from trainer.errors import StorageError

NODE_1_SHARD = "attempt-0001/zero_pp_rank_1_mp_rank_00_optim_states.pt"


def test_the_shards_of_a_lost_node_come_from_its_successor_without_a_trip_to_the_shared_tier(
    twin: Attempt, tmp_path: Path
) -> None:
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
def door(tmp_path: Path) -> Iterator[Door]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, tmp_path / "tiny")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    new_word()
    (tmp_path / "tiny/step-00000010/attempt-0001").mkdir(parents=True)
    (tmp_path / "tiny/step-00000010/attempt-0001/a.pt").write_bytes(b"state" * 1000)
    yield Door(1, (1,), "127.0.0.1", server.server_port, os.environ.pop(WORD_VARIABLE))
    server.shutdown()
    server.server_close()


def shard_of(path: Path, name: str = "a.pt") -> Shard:
    return Shard(file=f"attempt-0001/{name}", size_bytes=5000, sha256=digest_of(path), rank=1)


def test_a_shard_is_fetched_with_its_digest_and_refused_with_another(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORD_VARIABLE, door.word)
    source, target = tmp_path / "tiny/step-00000010/attempt-0001/a.pt", tmp_path / "there/a.pt"
    wanted = shard_of(source)
    door.fetch(10, wanted, target)
    assert target.read_bytes() == source.read_bytes()
    source.write_bytes(b"stale" * 1000)
    with pytest.raises(StorageError, match="another shard"):
        door.fetch(10, wanted, tmp_path / "there/b.pt")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["a.pt"]


@pytest.mark.parametrize("name", ["a.pt", "%2e%2e"])
def test_without_the_word_or_outside_of_the_folder_nothing_is_served(
    name: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORD_VARIABLE, door.word if name != "a.pt" else "another word")
    wanted = shard_of(tmp_path / "tiny/step-00000010/attempt-0001/a.pt", name)
    with pytest.raises(StorageError, match="403" if name == "a.pt" else "404"):
        door.fetch(10, wanted, tmp_path / "there/a.pt")

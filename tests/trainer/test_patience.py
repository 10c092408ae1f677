"""Who waits for whom while a gang begins: for a rank whose disk is slow as long as it lives, for a lost one no more
than in a step."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.serving import serve
from tests.trainer.agents import World, run
from trainer.builtin.checkpoint import restore
from trainer.builtin.checkpoint.neighbour import Neighbours
from trainer.builtin.checkpoint.search import FoundShard, Search
from trainer.builtin.gang import Gang
from trainer.contract import Layout, TrainConfig
from trainer.errors import StorageError, classify

TIMEOUT_S = 2.0
LONGER_S = 2 * TIMEOUT_S
SOON_S = 30.0
"""Of a timeout of two seconds, not of the hour that is granted to disks."""
AGENTS_TIMEOUT_S = 8.0
LATE_S = {"manifest.json": 16.0, "train-00000.bin": 14.0}
"""Longer than a step's timeout and than what is told; the other rank builds its engine in a part of the first."""


def takes_longer() -> None:
    time.sleep(LONGER_S)


def is_killed() -> None:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def freezes() -> None:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)


def fails() -> None:
    raise StorageError("the disk is gone", "nvme1")


def chosen(store: Path, rank: int, disk: Callable[[], None], said: Any) -> None:
    """A rank that looks for a step over real gloo; the second one's disk is as told."""

    os.environ["LOCAL_RANK"] = "0"
    meeting = dist.FileStore(str(store), 2)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=2, timeout=timedelta(minutes=1))
    gang = Gang.join(timedelta(seconds=TIMEOUT_S))

    class Slow(Search):
        def _find(self, shard: Any, manifest: Any) -> Any:
            if self.gang.rank == 1:
                disk()
            return FoundShard(shard, None)  # type: ignore[arg-type]

    shard = SimpleNamespace(rank=rank, file="attempt-0001/zero_pp_rank.pt", common=False)
    manifest: Any = SimpleNamespace(step=5, layout=Layout(2), world_size=2, zero_stage=1, attempt=1, shards=(shard,))
    begun = time.monotonic()
    try:
        tiers: Any = None
        found = restore._choose([manifest], Slow(gang, tiers, Neighbours(0), 2), Layout(2), 1)
        said.put((rank, time.monotonic() - begun, found[0].step if found else None))
    except BaseException as error:
        said.put((rank, time.monotonic() - begun, classify(error).reason))
    said.close()
    said.join_thread()
    os._exit(0)


@pytest.fixture
def two_ranks(tmp_path: Path) -> Iterator[Callable[[Callable[[], None], int], dict[int, tuple[float, object]]]]:
    context = mp.get_context("fork")
    ranks: list[Any] = []

    def outcomes(disk: Callable[[], None], of: int) -> dict[int, tuple[float, object]]:
        queue = context.Queue()
        for rank in range(2):
            ranks.append(context.Process(target=chosen, args=(tmp_path / "store", rank, disk, queue)))
            ranks[-1].start()
        answers = [queue.get(timeout=60) for _ in range(of)]
        return {rank: (seconds, what) for rank, seconds, what in answers}

    yield outcomes
    for rank in ranks:
        rank.kill()
        rank.join()


def test_a_rank_that_fetches_for_longer_than_a_steps_timeout_is_waited_for(two_ranks: Any) -> None:
    seen = two_ranks(takes_longer, of=2)
    assert [seen[rank][1] for rank in range(2)] == [5, 5], seen
    assert min(seconds for seconds, _ in seen.values()) > TIMEOUT_S


@pytest.mark.parametrize("disk", [is_killed, freezes])
def test_a_rank_that_is_lost_while_it_fetches_ends_the_others_within_a_steps_timeout(disk: Any, two_ranks: Any) -> None:
    seconds, what = two_ranks(disk, of=1)[0]
    assert what == "peer-lost"
    assert seconds < SOON_S


def test_a_rank_that_fails_while_it_fetches_says_why_and_the_others_that_it_was_not_they(two_ranks: Any) -> None:
    seen = two_ranks(fails, of=2)
    assert (seen[0][1], seen[1][1]) == ("peer-lost", "storage")
    assert max(seconds for seconds, _ in seen.values()) < SOON_S


def started(port: int, rank: int, config: TrainConfig, said: Any) -> None:
    from trainer.builtin.engine import initialize_distributed

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    if rank == 1:
        time.sleep(LONGER_S)
    try:
        initialize_distributed(config)
        said.put((rank, Gang.join(timedelta(seconds=TIMEOUT_S)).sums([1.0])))
    except BaseException as error:
        said.put((rank, repr(error)))
    said.close()
    said.join_thread()
    time.sleep(1)  # the first rank serves the store
    os._exit(0)


def test_a_rank_whose_imports_take_longer_than_a_steps_timeout_is_waited_for(config: TrainConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = mp.get_context("fork")
    queue = context.Queue()
    impatient = config.model_copy(update={"collective_timeout_s": TIMEOUT_S})
    ranks = [context.Process(target=started, args=(port, rank, impatient, queue)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    try:
        assert sorted(queue.get(timeout=120) for _ in ranks) == [(0, [2.0]), (1, [2.0])]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


@pytest.fixture
def slow_bucket(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """S3 as the ranks see it: whoever asks second for the manifest, or for the first shard, waits."""
    names: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2].partition("?")[0]
            names.append(name)
            if names.count(name) == 2:
                time.sleep(LATE_S.get(name, 0.0))
            content = (data / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serve(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield names
    server.shutdown()
    server.server_close()


@pytest.mark.nightly
def test_a_node_whose_data_come_later_than_a_steps_timeout_is_waited_for(
    world: World, config: TrainConfig, slow_bucket: list[str]
) -> None:
    data = config.data.model_copy(update={"stream_from": "s3://sets", "cache_gib": 1.0})
    world.config = config.model_copy(update={"data": data, "steps": 2, "collective_timeout_s": AGENTS_TIMEOUT_S})

    attempt = run(world, 1)

    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(0).read_text()
    waits = [event["what"] for event in attempt.events("ranks_wait")]
    assert waits[:1] == ["open the data"] and "read the first step's data" in waits, waits
    assert slow_bucket.count("manifest.json") == 2


def barrier(store: Path, rank: int, patient: bool, said: Any) -> None:
    """Rank 1 comes later than a step's timeout."""
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    gang = Gang.join(timedelta(seconds=TIMEOUT_S))
    try:
        with gang.patient() if patient else contextlib.nullcontext():
            if rank == 1:
                time.sleep(2 * TIMEOUT_S)
            gang.barrier()
        said.put((rank, "met"))
    except RuntimeError:
        said.put((rank, "gave up"))
    said.close()
    said.join_thread()
    os._exit(0)


@pytest.mark.nightly
@pytest.mark.parametrize(("patient", "first"), [(True, "met"), (False, "gave up")])
def test_only_where_the_gang_is_patient_a_collective_outlasts_a_steps_timeout(
    patient: bool, first: str, tmp_path: Path
) -> None:
    context = mp.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=barrier, args=(tmp_path / "store", rank, patient, queue)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    assert dict(queue.get(timeout=120) for _ in ranks)[0] == first
    for rank in ranks:
        rank.kill()
        rank.join()

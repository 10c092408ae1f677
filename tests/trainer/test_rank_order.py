"""Pods of a restart get the ranks whose shards their nodes hold: only lost nodes cost bytes on the wire."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving import serve
from tests.trainer.agents import Attempt, World, run
from tests.trainer.builtin.checkpoint.saved_steps import MODEL, Told, saved
from trainer.builtin.checkpoint.neighbour import Neighbours, ShardAddress
from trainer.builtin.checkpoint.search import Search
from trainer.builtin.checkpoint.tiers import Tiers, campaign_tiers
from trainer.builtin.rank_order import Standing, order, standing
from trainer.builtin.serving import TOKEN_VARIABLE, answer, new_token
from trainer.contract import TOPOLOGY_NAME, Manifest
from trainer.supervisor.place import Place

NODES, PER_NODE, STEP = 5, 2, 20


def place(index: int) -> Place:
    return Place("tiny", 2, f"node-{index}", "127.0.0.1", index, NODES, PER_NODE, "pod-0:29500")


class Nodes:
    """The disks of an attempt's nodes after its end: each has its own ranks' shards and those of the node before."""

    def __init__(self, root: Path) -> None:
        self.root, self.sent = root, Counter[int]()
        self.manifest: Manifest | None = None
        for node in range(NODES):
            self.manifest = saved([self.tiers(node).local], STEP, ranks=NODES * PER_NODE)
            for shard in self.manifest.shards:
                if not shard.common and shard.rank // PER_NODE not in (node, (node - 1) % NODES):
                    (self.tiers(node).local.folder(STEP) / shard.file).unlink()

    def tiers(self, disk: int) -> Tiers:
        return campaign_tiers(self.root / f"disk-{disk}", self.root / "shared", "tiny")

    def restore(self, disks: Sequence[int]) -> list[int]:
        """Order pods whose nodes have these disks, and let every rank bring its shards. Return pods' node ranks."""
        assert self.manifest is not None
        ranks = order([standing(self.tiers(disk).local, place(pod), self.root / "x") for pod, disk in enumerate(disks)])
        with ExitStack() as stack:
            doors = {rank: stack.enter_context(self.door(disk)) for rank, disk in zip(ranks, disks, strict=True)}
            servers = tuple(
                ShardAddress(node, (node * PER_NODE, node * PER_NODE + 1), "127.0.0.1", doors[node], self.token)
                for node in range(NODES)
            )
            for node, disk in zip(ranks, disks, strict=True):
                for local in range(PER_NODE):
                    gang = Told.of(node * PER_NODE + local, local, NODES * PER_NODE)
                    shards = Search(gang, self.tiers(disk), Neighbours(node, servers), 2).shards(self.manifest)
                    assert shards and None not in shards
        return ranks

    @contextmanager
    def door(self, disk: int) -> Iterator[int]:
        root, sent = self.tiers(disk).local.root, self.sent

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self, root)

            def send_header(self, keyword: str, value: str) -> None:
                if keyword == "Content-Range":
                    first, last = value.removeprefix("bytes ").partition("/")[0].split("-")
                    sent[disk] += int(last) - int(first) + 1
                super().send_header(keyword, value)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        serve(server)
        yield server.server_port
        server.shutdown()
        server.server_close()

    @property
    def token(self) -> str:
        return os.environ[TOKEN_VARIABLE]

    def bytes_of(self, nodes: Sequence[int]) -> int:
        """All that these nodes' ranks load."""
        assert self.manifest is not None
        own = sum(s.size_bytes for s in self.manifest.shards if not s.common and s.rank // PER_NODE in nodes)
        return own + len(nodes) * sum(s.size_bytes for s in self.manifest.shards if s.common)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power fails here, and a busy disk takes its time
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    new_token()
    return Nodes(tmp_path)


@pytest.mark.parametrize("lost", [(), (1,), (0,), (0, 3)])
def test_a_restart_moves_the_bytes_of_the_lost_nodes_alone_wherever_the_pods_are(
    lost: tuple[int, ...], nodes: Nodes
) -> None:
    empty = NODES
    disks = [empty + disk if disk in lost else disk for disk in (3, 0, 4, 2, 1)]

    ranks = nodes.restore(disks)

    assert sorted(ranks) == [*range(NODES)]
    assert all(rank == disk for rank, disk in zip(ranks, disks, strict=True) if disk < empty)
    assert sum(nodes.sent.values()) == nodes.bytes_of(lost)


def holding(*ranks: int, step: int = 20, size: int = 100) -> Standing:
    return Standing(held={step: dict.fromkeys(ranks, size)})


def test_any_number_of_lost_nodes_leaves_the_others_their_ranks() -> None:
    chance = random.Random(11)
    for count in (0, 1, 7, 63, 64):
        lost = set(chance.sample(range(64), count))
        # The shards of two nodes are never of quite the same size.
        sizes = [1000 + chance.randint(0, 50) for _ in range(64)]
        pods: list[tuple[int, Standing]] = []
        for node in range(64):
            held = {20: {rank: sizes[rank] for rank in (node, (node - 1) % 64)}}
            pods.append((-1, Standing()) if node in lost else (node, Standing(held=held)))
        chance.shuffle(pods)
        ranks = order([pod for _, pod in pods])
        assert sorted(ranks) == [*range(64)]
        assert all(rank == was for rank, (was, _) in zip(ranks, pods, strict=True) if was >= 0)


def test_of_two_nodes_that_hold_the_same_ranks_the_one_with_the_newer_step_gets_them() -> None:
    came_back = holding(1, 0, step=10, size=900)
    assert order([Standing(), came_back, holding(0, 1)])[2] == 1
    assert order([Standing(), holding(1, 0), holding(0, 1, step=10, size=900)])[1] == 1


def test_two_nodes_that_hold_all_of_each_other_stay_as_they_are() -> None:
    both = holding(0, 1)
    assert order([both, both]) == [0, 1]
    assert order([Standing(), both]) == [0, 1]
    assert order([both, Standing()]) == [0, 1]


def test_what_nobody_holds_goes_by_the_network_and_without_labels_by_the_index() -> None:
    assert order([Standing()] * 4) == [0, 1, 2, 3]
    leaves = ["b", "a", "b", "a", "c", "a"]
    ranks = order([Standing(network=("top", leaf)) for leaf in leaves])
    by_rank = [leaf for _, leaf in sorted(zip(ranks, leaves, strict=True))]
    assert by_rank == ["a", "a", "a", "b", "b", "c"]
    near, far = (Standing(network=("top", leaf)) for leaf in ("a", "b"))
    held = [Standing(held={20: {rank: 10}}, network=("top", "b" if rank > 1 else "a")) for rank in (0, 3)]
    assert order([far, *held, near]) == [2, 0, 3, 1], "rank 1 is next to rank 0, rank 2 next to rank 3"


def test_a_shard_that_is_cut_or_of_other_many_ranks_is_not_held(nodes: Nodes) -> None:
    tier = nodes.tiers(2).local
    told = standing(tier, place(0), nodes.root / "none")
    assert set(told.held[STEP]) == {1, 2} and told.network == ()
    for path in tier.folder(STEP).glob("attempt-0001/*"):
        if path.name != MODEL:
            path.write_bytes(b"cut")
    (nodes.root / TOPOLOGY_NAME).write_text('{"node-0": ["nn-1", "nn-2"]}')
    told = standing(tier, place(0), nodes.root / "train.json")
    assert told == Standing(held={STEP: {}}, network=("nn-1", "nn-2"), node="node-0")
    fewer = Place("tiny", 2, "node-0", "127.0.0.1", 0, NODES - 1, PER_NODE, "pod-0:29500")
    assert standing(tier, fewer, nodes.root / "none" / "x").held == {}


@pytest.mark.nightly
def test_pods_that_changed_their_nodes_change_their_ranks_and_fetch_nothing(twin: Attempt, tmp_path: Path) -> None:
    longer = twin.world.config.model_copy(update={"steps": 61})
    world: World = twin.world.copy(tmp_path / "world", longer)
    for node in range(2):  # without the neighbour's shards, that each node has its own alone
        for path in (world.local(node) / "tiny").glob("step-*/attempt-0001/*"):
            if f"rank_{1 - node}_mp" in path.name or path.name == f"rng_rank_{1 - node:05d}.pt":
                path.unlink()
    kept = tmp_path / "kept"
    shutil.move(world.local(0), kept)
    shutil.move(world.local(1), world.local(0))
    shutil.move(kept, world.local(1))

    attempt = run(world, 2)

    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(0).read_text()
    events: list[dict[str, Any]] = [*attempt.events("node_rank", 0), *attempt.events("node_rank", 1)]
    assert [(event["pod"], event["node_rank"]) for event in events] == [(0, 1), (1, 0)]
    assert not attempt.events("fetched_shard", 0) and not attempt.events("fetched_shard", 1)
    assert attempt.events("restored", node=1)[0]["step"] == 60
    assert 61 in attempt.losses(node=1)

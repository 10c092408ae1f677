"""The feed as a dataset: one order whatever the ranks and workers, a resume anywhere, and a ledger that is audited."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import traceback
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.trainer.data_sets import open_data
from trainer.builtin.data.feed import Feed, Share
from trainer.builtin.data.replay import replay
from trainer.client.bivouac_data import sequences
from trainer.client.bivouac_data.sequences import Part, Sequences
from trainer.contract import TrainConfig, ledger
from trainer.contract.ledger import Consumed, audit

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
CONTEXT, BATCH = 8, 24
SIZES = {"a": (700, 333, 150), "b": (410,)}
"""Tokens of each source's shards."""
BASE = {"a": 0, "b": 1_000_000}
SHAPES = [(1, 24, 1), (1, 1, 3), (2, 3, 2), (3, 4, 1), (4, 2, 3), (6, 4, 2), (8, 3, 4), (24, 1, 1)]
"""Ranks, micro batch, workers of each rank's loader."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose tokens say where they stand in their source."""
    root, train = tmp_path_factory.mktemp("counted"), []
    for name, sizes in SIZES.items():
        at = BASE[name]
        for number, size in enumerate(sizes):
            np.arange(at, at + size, dtype="<i4").tofile(root / f"{name}{number}.bin")
            train.append({"file": f"{name}{number}.bin", "source": name, "tokens": size})
            at += size
    np.arange(50, dtype="<i4").tofile(root / "held.bin")
    manifest = {
        "format": 2, "dtype": "int32", "parameters": {"shard_tokens": 64}, "train": train,
        "sources": [{"name": name, "weight": None} for name in SIZES],
        "validation": [{"file": "held.bin", "source": "", "tokens": 50}],
    }  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


class Fleet:
    """All ranks of a job, each with a loader of several workers that take turns, as torch's do."""

    def __init__(self, root: Path, shape: tuple[int, int, int], state: dict[str, Any] | None = None) -> None:
        world, micro, self.workers = shape
        self.ranks = [Sequences(root, CONTEXT, BATCH, micro, 7, rank=rank, world_size=world) for rank in range(world)]
        for one in self.ranks if state else ():
            one.load_state_dict(json.loads(json.dumps(state)))
        self.parts = [self._loaded(rank) for rank in self.ranks]

    def _loaded(self, data: Sequences) -> Iterator[Part]:
        turns = []
        for number in range(self.workers):
            with pytest.MonkeyPatch.context() as patch:
                worker = SimpleNamespace(id=number, num_workers=self.workers)
                patch.setattr(sequences, "get_worker_info", lambda worker=worker: worker)
                turn = iter(pickle.loads(pickle.dumps(data)))
                turns.append(chain([next(turn)], turn))
        while True:
            for turn in turns:
                yield next(turn)

    def step(self, number: int) -> dict[int, list[int]]:
        """Train a step on all ranks; return tokens by position."""
        got: dict[int, list[int]] = {}
        for one, parts in zip(self.ranks, self.parts, strict=True):
            fed = list(islice(parts, one.parts_per_step))
            one.done(number, fed)
            for part in fed:
                for position, tokens in zip(part["positions"].tolist(), part["tokens"].tolist(), strict=True):
                    assert position not in got
                    got[position] = tokens
        return got


@settings(max_examples=8, deadline=None)
@given(shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3), steps=st.integers(1, 4))
def test_one_order_whatever_the_ranks_and_workers_and_wherever_others_go_on(
    counted: Path, shapes: list[tuple[int, int, int]], steps: int
) -> None:
    got: dict[int, list[int]] = {}
    state = None
    for number, shape in enumerate(shapes):
        fleet = Fleet(counted, shape, state)
        for step in range(number * steps, (number + 1) * steps):
            fed = fleet.step(step + 1)
            assert sorted(fed) == list(range(step * BATCH, (step + 1) * BATCH)), "each position of the step, once"
            got |= fed
        states = [rank.state_dict() for rank in fleet.ranks]
        assert {(state["position"], state["taken"]) for state in states} == {((number + 1) * steps * BATCH, 0)}
        state = states[-1]
    alone = Fleet(counted, (1, BATCH, 1))
    for step in range(len(shapes) * steps):
        for position, tokens in alone.step(step + 1).items():
            assert got[position] == tokens
    starts: dict[str, list[int]] = {name: [] for name in SIZES}
    for _, tokens in sorted(got.items()):
        name = "b" if tokens[0] >= BASE["b"] else "a"
        assert tokens == list(range(tokens[0], tokens[0] + CONTEXT + 1)), "a window of one source, across its shards"
        starts[name].append((tokens[0] - BASE[name]) // CONTEXT)
        assert (tokens[0] - BASE[name]) % CONTEXT == 0
    for name, sizes in SIZES.items():
        epoch = (sum(sizes) - 1) // CONTEXT
        for first in range(0, len(starts[name]) - epoch + 1, epoch):
            assert sorted(starts[name][first : first + epoch]) == list(range(epoch)), "each sample once an epoch"
        assert len(starts[name]) < 10 or starts[name] != sorted(starts[name]), "shuffled"


def test_it_is_the_order_of_the_built_in_trainer(data: Path, config: TrainConfig) -> None:
    mine = iter(Sequences(data, config.model.context, 8, 2, 1234, rank=1, world_size=2))
    reader = open_data(data, "", 512, config.model.context, 1234)
    with Feed(reader, Share(8, 2, 2, 1), 0, 80, 2) as feed:
        for batch in chain.from_iterable(feed.next().micro_batches for _ in range(10)):
            assert torch.equal(next(mine)["tokens"], torch.from_numpy(batch))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_a_loader_with_workers_of_its_own_gives_it(counted: Path, start: str) -> None:
    whole, data = Fleet(counted, (1, BATCH, 1)), Sequences(counted, CONTEXT, BATCH, 4, 7)
    parts = iter(DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=start))
    for step in range(1, 4):
        fed = list(islice(parts, data.parts_per_step))
        data.done(step, fed)
        got = {p: t for part in fed for p, t in zip(part["positions"].tolist(), part["tokens"].tolist(), strict=True)}
        assert got == whole.step(step)
    assert data.state_dict()["position"] == 3 * BATCH


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_torchdatas_loader_goes_on_in_the_middle_of_a_step(counted: Path, workers: int) -> None:
    def loader() -> StatefulDataLoader[Part]:
        data = Sequences(counted, CONTEXT, BATCH, 2, 7, rank=1, world_size=2)
        return StatefulDataLoader(data, batch_size=None, num_workers=workers)

    first, again = loader(), loader()
    through = iter(first)
    for _ in range(7):
        next(through)
    again.load_state_dict(first.state_dict())
    for one, other in zip(islice(through, 9), again, strict=False):
        assert torch.equal(one["positions"], other["positions"]) and torch.equal(one["tokens"], other["tokens"])


def test_what_was_read_without_a_word_of_steps_is_not_read_again_by_other_ranks(counted: Path) -> None:
    ranks = [Sequences(counted, CONTEXT, BATCH, 2, 7, rank=rank, world_size=2) for rank in range(2)]
    read = [part["positions"].tolist() for rank in ranks for part in islice(rank, 7)]
    assert sorted(chain.from_iterable(read)) == list(range(28))
    alone = Sequences(counted, CONTEXT, BATCH, 1, 7)
    alone.load_state_dict(ranks[1].state_dict())
    assert next(iter(alone))["positions"].tolist() == [28]


def test_a_state_of_other_data_or_another_order_is_refused_and_a_workers_by_other_ranks(counted: Path) -> None:
    data = Sequences(counted, CONTEXT, BATCH, 2, 7, rank=0, world_size=2)
    state = data.state_dict()
    for more in ({"seed": 8}, {"weights": {"a": 1.0, "b": 2.0}}, {"context": 16}, {"shuffle_blocks": 3}):
        given = {"context": CONTEXT, "seed": 7, **more}
        with pytest.raises(ValueError, match="another order"):
            Sequences(counted, global_batch=BATCH, **given).load_state_dict(state)  # type: ignore[arg-type]
    workers = {**state, "taken": 3, "shape": {**state["shape"], "workers": 2}}
    with pytest.raises(ValueError, match="fits no other ranks"):
        Sequences(counted, CONTEXT, BATCH, 2, 7, rank=0, world_size=1).load_state_dict(workers)
    data.load_state_dict(workers)
    with pytest.raises(ValueError, match="of 2 workers, this loader has 1"):
        next(iter(data))


def test_a_step_that_was_fed_other_positions_is_refused(counted: Path) -> None:
    data = Sequences(counted, CONTEXT, BATCH, 4, 7)
    fed = list(islice(data, data.parts_per_step))
    with pytest.raises(ValueError, match="step 1 was fed positions"):
        data.done(1, fed[::-1])
    data.done(1, fed)
    with pytest.raises(ValueError, match="was fed positions"):
        data.done(2, fed)


@pytest.mark.parametrize(("world", "micro"), [(5, 1), (2, 24), (1, 7)])
def test_a_batch_that_ranks_cannot_share_is_refused(counted: Path, world: int, micro: int) -> None:
    with pytest.raises(ValueError, match="no multiple"):
        Sequences(counted, CONTEXT, BATCH, micro, world_size=world, rank=0)


def test_the_ledger_of_two_ranks_and_then_of_one_is_proved_from_the_data(
    data: Path, config: TrainConfig, tmp_path: Path
) -> None:
    """By the audit of the built-in trainer, which draws every sample again."""
    context, pids = config.model.context, []
    for rank in range(2):
        if not (pid := os.fork()):
            try:
                torch.set_num_threads(1)
                dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "s"), 2), rank=rank, world_size=2)
                one = Sequences(data, context, 8, 2, config.data.seed, rank=rank, world_size=2)
                parts = iter(one)
                for step in (1, 2, 3):
                    one.done(step, list(islice(parts, one.parts_per_step)))
                (tmp_path / f"{rank}.json").write_text(json.dumps(one.state_dict()))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    states = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert states[0]["rows"] == states[1]["rows"]
    alone = Sequences(data, context, 8, 4, config.data.seed)
    alone.load_state_dict(states[1])
    parts = iter(alone)
    for step in (4, 5):
        alone.done(step, list(islice(parts, 2)))
    rows = [Consumed.model_validate(row) for row in alone.state_dict()["rows"]]
    assert [(row.world_size, row.first_step, row.last_step) for row in rows] == [(2, 1, 3), (1, 4, 5)]
    found = audit(tuple(rows), 40, (), dict(replay(config, data, rows)))
    assert found.passes and found.checked_by_data == 5, found
    wrong = rows[0].model_copy(update={"chain": hashlib.sha256(b"").hexdigest()})
    assert not audit((wrong, rows[1]), 40, (), dict(replay(config, data, rows))).passes


def test_its_digests_are_the_contracts() -> None:
    chance, link = random.Random(3), ledger.CHAIN_START
    assert link == sequences.CHAIN_START
    for step in range(50):
        position, tokens = chance.randrange(2**40), chance.randbytes(64)
        digest = ledger.sample_digest(position, tokens)
        assert sequences.sample_digest(position, tokens) == digest
        given = (link, step, position, 8, digest)
        link = ledger.next_link(*given)
        assert sequences.next_link(*given) == link

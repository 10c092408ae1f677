"""Random state over a restart: what would have been drawn next is drawn next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.builtin.checkpoint.committing import MakeRank, ranks_at
from tests.trainer.builtin.checkpoint.saved_steps import TinyEngine, Told
from trainer.builtin.checkpoint import restore
from trainer.builtin.checkpoint.writing import rng_state, set_rng_state


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    return ranks_at(tmp_path, monkeypatch)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_rank_draws_what_it_would_have_drawn_next(rank: int, make: MakeRank) -> None:
    """The numbers between the save and the end of the attempt are drawn again; those of the engine's making are not."""
    first = make(rank=rank, local_rank=0, ranks=2)
    torch.manual_seed(1234 + rank)
    torch.rand(7)
    first.save(10)
    wanted = torch.rand(64).tolist()
    first.work()
    first.settle()
    first.work()
    (manifest,) = first.tiers.local.committed()
    torch.manual_seed(0)

    engine = TinyEngine(Told.of(rank, 0, 2))
    begun = restore.load_start(engine, restore.choose_start(engine.gang, first.tiers, 1, 2))

    assert begun.manifest == manifest
    assert torch.rand(64).tolist() == wanted


def test_each_save_has_the_random_state_of_its_own_step(make: MakeRank) -> None:
    rank = make()
    wanted = []
    for step in (10, 20):
        torch.rand(5)
        rank.commit(step)
        wanted.append(torch.rand(16).tolist())
    restore.load_start(rank.engine, restore.choose_start(rank.gang, rank.tiers, 1, 2))
    assert torch.rand(16).tolist() == wanted[1]


def test_that_of_the_accelerator_is_kept_where_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(rng_state()) == {"cpu"}
    of_device, given = torch.arange(16, dtype=torch.uint8), list[torch.Tensor]()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: of_device)
    state = rng_state()
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    set_rng_state(state)
    assert len(given) == 1 and torch.equal(given[0], of_device)
    set_rng_state({"cpu": state["cpu"]})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    set_rng_state(state)
    assert len(given) == 1, "saved without, or resumed without an accelerator"

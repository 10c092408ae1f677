"""Which ranks share what, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tests.tables import Table
from trainer.builtin.data.feed import Share
from trainer.builtin.model.recompute import next_token_loss
from trainer.builtin.model.tensor import Rule, join
from trainer.contract import Heads, Layout, ParallelConfig, layout_trouble, model_trouble
from trainer.errors import StorageError

TABLE = Table(__file__)


def test_ranks_of_a_group_read_the_same_sequences_and_all_groups_cover_a_step_once() -> None:
    for layout in (Layout(8), Layout(8, tensor=2), Layout(8, sequence=4), Layout(4, tensor=4)):
        read = dict[int, list[int]]()
        for rank in range(layout.world_size):
            share = Share(16, 1, layout.data, layout.data_rank(rank))
            read[rank] = [position for part in share.micro_batches(100) for position in part]
            assert read[rank] == read[rank - rank % layout.group]
        counted = [position for rank, found in read.items() if layout.leads(rank) for position in found]
        assert sorted(counted) == list(range(100, 116))


@TABLE.cases
def test_what_a_gang_cannot_be(
    parallel: dict[str, int], ranks: int, per_node: int, stage: int, message: str | None
) -> None:
    trouble = layout_trouble(ParallelConfig(**parallel), ranks, per_node, stage)
    assert (trouble.message if trouble else None) == message


def test_heads_width_and_context_are_dealt_out_whole() -> None:
    heads, split = Heads(queries=8, keys=2, hidden=96), ParallelConfig(tensor=2)
    assert model_trouble(split, heads, 7) is None
    assert "key heads" in (model_trouble(ParallelConfig(tensor=4), heads, 64) or ("", ""))[1]
    assert "width" in (model_trouble(split, heads._replace(hidden=97), 64) or ("", ""))[1]
    assert "the context" in (model_trouble(ParallelConfig(sequence=2), heads, 63) or ("", ""))[1]


RULES = (Rule(r"attention\.in", "column", pieces=3), Rule(r"attention\.out", "row"))


def test_parts_are_joined_as_they_were_dealt_out() -> None:
    stacked, flat = torch.arange(24.0).reshape(12, 2), torch.arange(8.0).reshape(2, 4)
    # Three matrices of four rows: each rank has two rows of each.
    mine = [stacked.reshape(3, 2, 2, 2)[:, rank].reshape(6, 2) for rank in range(2)]
    gain = torch.ones(3)
    names = ("x.attention.in.weight", "x.attention.out.weight", "x.attention.out.bias")
    parts = [dict(zip(names, (mine[rank], flat[:, 2 * rank : 2 * rank + 2], gain), strict=True)) for rank in range(2)]
    found = join(parts, RULES)
    assert torch.equal(found[names[0]], stacked)
    assert torch.equal(found[names[1]], flat)
    assert torch.equal(found[names[2]], gain)

    parts[1][names[2]] = gain + 1e-7
    with pytest.raises(StorageError, match="differ in a tensor that each has whole"):
        join(parts, RULES)
    del parts[1][names[2]]
    with pytest.raises(StorageError, match="hold different tensors"):
        join(parts, RULES)


def test_parts_of_a_sequence_add_up_to_its_loss_even_if_nothing_of_one_counts() -> None:
    hidden, weight = torch.randn(8, 4), torch.randn(11, 4)
    targets = torch.tensor([1, 2, 3, -5, -6, -7, -8, -9])
    whole = torch.nn.functional.cross_entropy(hidden[:3] @ weight.T, targets[:3])
    parts = [next_token_loss(hidden[at : at + 4], weight, targets[at : at + 4], torch.tensor(3)) for at in (0, 4)]
    assert torch.allclose(parts[0] + parts[1], whole) and parts[1] == 0

"""Sequence parallelism by DeepSpeed's Ulysses (Jacobs et al. 2023, arXiv 2309.14509).

Each rank of a group computes a part of every sequence. For attention the group exchanges, so that each rank has all
positions of some heads. All ranks read whole sequences, so documents and masks are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.builtin.model.recompute import next_token_loss

ATTENTION = "ulysses"
"""Our name among the attention functions of `transformers`."""
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Spread:
    """A rank's place in the group that shares its sequences."""

    group: dist.ProcessGroup
    rank: int
    ranks: int
    averaged: bool = False
    """DeepSpeed averages the gradients of the group's ranks, instead of summing them."""

    def part(self, positions: Tensor, dim: int = 1) -> Tensor:
        """Return this rank's part of what has one entry per position."""
        return positions.chunk(self.ranks, dim=dim)[self.rank]

    def attend(self, mix: Mix, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Apply an attention of whole sequences to parts; all have the shape (batch, heads, positions, width)."""
        from deepspeed.sequence.layer import DistributedAttention

        def attend_whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return mix(*(tensor.transpose(1, 2) for tensor in (query, key, value))).transpose(1, 2)

        exchange = DistributedAttention(attend_whole, self.group, scatter_idx=2, gather_idx=1)
        parts = (tensor.transpose(1, 2).contiguous() for tensor in (query, key, value))
        result: Tensor = exchange(*parts, batch_dim_idx=0)
        return result.transpose(1, 2)

    def sum(self, loss: Tensor) -> Tensor:
        """Return the sum over the group; the gradient is that of this rank's part."""
        return _Sum.apply(loss, self)  # type: ignore[no-any-return, no-untyped-call]


class _Sum(torch.autograd.Function):
    """Each rank gives the gradient of its own part, for DeepSpeed sums or averages those of a group."""

    @staticmethod
    def forward(context: Any, loss: Tensor, spread: Spread) -> Tensor:
        context.factor = spread.ranks if spread.averaged else 1
        total = loss.detach().clone()
        dist.all_reduce(total, group=spread.group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return gradients[0] * context.factor, None


def shared_loss(hidden: Tensor, weight: Tensor, targets: Tensor, spread: Spread | None) -> Tensor:
    """Return the mean loss of whole sequences' `targets`, shape (batch, length), from this rank's part of the states.

    Ranks may have different numbers of positions that count, even none.
    """
    if spread is None:
        return next_token_loss(hidden, weight, targets.flatten())
    valid_count = (targets >= 0).sum()
    return spread.sum(next_token_loss(hidden, weight, spread.part(targets).flatten(), valid_count))


def use_in_transformers(network: Any, spread: Spread) -> None:
    """Make the attention of a model of `transformers` that of whole sequences."""
    from transformers import AttentionInterface

    inner = AttentionInterface()[network.config._attn_implementation]

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **keywords: Any
    ) -> tuple[Tensor, None]:
        def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            output: Tensor = inner(module, query, key, value, attention_mask, **keywords)[0]
            return output.transpose(1, 2)

        return spread.attend(mix, query, key, value).transpose(1, 2).contiguous(), None

    AttentionInterface.register(ATTENTION, attention)
    # `transformers` makes no mask for a name that it does not know: it is made for whole sequences by us, or there is
    # none and attention is causal.
    network.set_attn_implementation(ATTENTION)

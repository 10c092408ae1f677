"""Activations that the backward pass computes again instead of keeping them: blocks by policy, and the loss in parts.

A recomputed operation gets the same inputs in the same order, so losses and gradients stay the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.contract import RecomputeConfig

_IGNORED = -100
LOGITS_AT_ONCE = 2**24
"""Scores (positions x vocabulary) of one part of the loss: 64 MiB in float32, twice that with their gradient."""
_COSTLY = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""`selective` keeps the results of these: they take nearly all of a block's time (Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models")."""


def runner(config: RecomputeConfig, block: int) -> Callable[..., Tensor]:
    """Return the function that applies the `block`-th block to its arguments."""
    return recompute_function(config, block) or _apply


def recompute_function(config: RecomputeConfig, block: int) -> Callable[..., Tensor] | None:
    """Return the function that applies the `block`-th block and computes it again; None if all of it is kept."""
    if config.policy == "none" or block % config.every:
        return None
    if config.policy == "full":
        return partial(checkpoint, use_reentrant=False)
    contexts = partial(create_selective_checkpoint_contexts, _keep)
    return partial(checkpoint, use_reentrant=False, context_fn=contexts)


def next_token_loss(hidden: Tensor, weight: Tensor, targets: Tensor, total_count: Tensor | None = None) -> Tensor:
    """Return the mean cross entropy in nats of `hidden @ weight.T`, computed in float32.

    `hidden`: (positions, width); `weight`: (vocabulary, width); `targets`: (positions), of which negative ones count
    neither in the sum nor in the mean: at least one has to count. Scores are made for as many positions at a time as
    `LOGITS_AT_ONCE` allows, and made again in the backward pass: memory does not grow with positions x vocabulary. What
    fits into one part is computed at once, and kept. `total_count`: the number of positions to divide the sum by, where
    these are a part of them.
    """
    rows = max(1, LOGITS_AT_ONCE // len(weight))
    valid = targets >= 0
    targets = torch.where(valid, targets, _IGNORED)
    if len(hidden) <= rows:
        if total_count is not None:
            return _summed_loss(hidden, weight, targets) / total_count
        return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=_IGNORED)
    parts = zip(hidden.split(rows), targets.split(rows), strict=True)
    sums = [checkpoint(_summed_loss, part, weight, part_targets, use_reentrant=False) for part, part_targets in parts]
    return torch.stack(sums).sum() / (valid.sum() if total_count is None else total_count)


def _summed_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=_IGNORED, reduction="sum")


def _apply(block: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return block(*arguments)


def _keep(context: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _COSTLY else CheckpointPolicy.PREFER_RECOMPUTE

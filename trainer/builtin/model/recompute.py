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
LEAST_ROWS = 2048
"""Positions of one part at least, whatever the vocabulary: a GPU is slow on products of few rows."""
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
    `LOGITS_AT_ONCE` allows, with their gradients: memory does not grow with positions x vocabulary. What fits into one
    part is computed at once, and kept. `total_count`: the number of positions to divide the sum by, where these are a
    part of them.
    """
    valid = targets >= 0
    targets = torch.where(valid, targets, _IGNORED)
    if len(hidden) > rows_at_once(len(weight)):
        count = valid.sum() if total_count is None else total_count
        loss: Tensor = _LossInParts.apply(hidden, weight, targets, count, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return loss
    if total_count is not None:
        return _summed_loss(hidden, weight, targets) / total_count
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=_IGNORED)


def rows_at_once(vocabulary: int) -> int:
    """Return the most positions of one part of the loss."""
    return max(LEAST_ROWS, LOGITS_AT_ONCE // vocabulary)


class _LossInParts(torch.autograd.Function):
    """The loss of one part of the positions after the other, each with its gradients: nothing comes after the loss, so
    no part's scores are made again for the backward pass.

    It adds the parts' gradients of the weight in float32. A sum in bfloat16 would round them to 8 bits each time.
    """

    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, targets: Tensor, count: Tensor, learns: bool) -> Tensor:
        hidden_learns, weight_learns = (learns and needs_gradient for needs_gradient in context.needs_input_grad[:2])
        hidden, weight, rows = hidden.detach(), weight.detach(), rows_at_once(len(weight))
        weight.requires_grad_(weight_learns)
        weight_sum = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False) if weight_learns else None
        losses, hidden_parts = list[Tensor](), list[Tensor]()
        for part, part_targets in zip(hidden.split(rows), targets.split(rows), strict=True):
            part.requires_grad_(hidden_learns)
            with torch.set_grad_enabled(hidden_learns or weight_learns):
                loss = _summed_loss(part, weight, part_targets) / count
            losses.append(loss.detach())
            inputs = [tensor for tensor in (part, weight) if tensor.requires_grad]
            gradients = list(torch.autograd.grad(loss, inputs)) if inputs else []
            if weight_sum is not None:
                weight_sum += gradients.pop()
            hidden_parts += gradients
        context.save_for_backward(torch.cat(hidden_parts) if hidden_parts else None, weight_sum)
        context.kind, context.rows = weight.dtype, rows
        return torch.stack(losses).sum()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        hidden_gradient, weight_sum = context.saved_tensors
        # In place and in parts: at this moment all activations are alive. A second backward pass is refused by torch.
        if hidden_gradient is not None:
            for part in hidden_gradient.split(context.rows):
                part.copy_(part.float() * gradients[0])
        if weight_sum is not None:
            weight_sum = weight_sum.mul_(gradients[0]).to(context.kind)
        return hidden_gradient, weight_sum, None, None, None


def _summed_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=_IGNORED, reduction="sum")


def _apply(block: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return block(*arguments)


def _keep(context: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _COSTLY else CheckpointPolicy.PREFER_RECOMPUTE

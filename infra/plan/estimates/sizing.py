"""Sizes of a model, its checkpoint and its state in memory. Pure; bytes and parameters are whole numbers."""

from __future__ import annotations

import math

from trainer.contract import ModelConfig
from trainer.contract.shape import feed_forward_width as feed_forward_width
from trainer.contract.shape import parameters as parameters
from trainer.contract.shape import work_of

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_BYTES = 12
"""fp32 master copy, Adam's first and second moments: 4 bytes each, per parameter."""
GIB = 2**30


def training_flops_per_token(model: ModelConfig) -> int:
    """6 N + 12 layers x width of all heads x context, N without the embedding (its use as the output layer counted).

    Source: Chowdhery et al., PaLM, appendix B; the form that torchtitan uses. MFU in a run has the same.
    """
    return work_of(model).flop(model.context)


def flops_formula(model: ModelConfig) -> str:
    work = work_of(model)
    attention = f"12 x {work.layers} layers x {work.queries} x context {model.context}"
    return f"6 x {work.used} parameters that compute + {attention}"


def checkpoint_bytes(model: ModelConfig, precision: str) -> int:
    """All shards of one checkpoint: (weights + 12) bytes x parameters; 16 in float32, 14 in bfloat16."""
    return (WEIGHT_BYTES[precision] + OPTIMIZER_BYTES) * parameters(model)


def checkpoint_bytes_per_node(model: ModelConfig, precision: str, nodes: int, zero_stage: int) -> int:
    """Return the bytes on the fullest node: the weights and its part of the optimizer state (ZeRO 0: all of it)."""
    count = parameters(model)
    weights, optimizer = WEIGHT_BYTES[precision] * count, OPTIMIZER_BYTES * count
    if zero_stage == 0:
        return weights + optimizer
    if zero_stage < 3:
        return weights + math.ceil(optimizer / nodes)
    return math.ceil((weights + optimizer) / nodes)


def checkpoint_bytes_per_rank(model: ModelConfig, precision: str, world_size: int, zero_stage: int) -> int:
    """Return the bytes that the busiest rank copies: rank 0 has the weights and its part of the optimizer state."""
    return checkpoint_bytes_per_node(model, precision, world_size, zero_stage)


def host_bytes_per_rank(model: ModelConfig, precision: str, world_size: int) -> int:
    """Return bytes of offloaded optimizer states in the node's memory: with the gradients in float32 that the update
    reads, and the new weights or kept gradients of this rank's part."""
    part = math.ceil(parameters(model) / world_size)
    return (OPTIMIZER_BYTES + 4 + 2 * WEIGHT_BYTES[precision]) * part


def static_bytes_per_rank(
    model: ModelConfig, precision: str, world_size: int, zero_stage: int, offload: bool = False
) -> int:
    """Return bytes of weights, gradients and optimizer state on one accelerator, without activations.

    Source: Rajbhandari et al., ZeRO, section 3: stage 1 shards the optimizer state, 2 the gradients too, 3 all.
    """
    count = parameters(model)
    parts = (
        (0 if offload else OPTIMIZER_BYTES * count, zero_stage >= 1),
        (WEIGHT_BYTES[precision] * count, zero_stage >= 2),
        (WEIGHT_BYTES[precision] * count, zero_stage >= 3),
    )
    return sum(math.ceil(size / world_size) if sharded else size for size, sharded in parts)

"""Sizes of a model, its checkpoint and its state in memory. Pure; bytes and parameters are whole numbers."""

from __future__ import annotations

import math

from trainer.contract import ModelConfig
from trainer.contract.model.shape import adapter_parameters, trained_parameters, work_of
from trainer.contract.model.shape import feed_forward_width as feed_forward_width
from trainer.contract.model.shape import parameters as parameters

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_BYTES = 12
"""fp32 master copy, Adam's first and second moments: 4 bytes each, per parameter."""
GIB = 2**30


def training_flops_per_token(model: ModelConfig) -> int:
    """Return 6 N + 12 layers x width of all heads x context, N without the embedding.

    Its use as the output layer counts.

    Source: Chowdhery et al., PaLM, appendix B; the form that torchtitan uses. MFU in a run has the same. Frozen weights
    have no gradient of their own: 4 N, and 6 per parameter of the adapters.
    """
    return work_of(model).flop(model.context)


def flops_formula(model: ModelConfig) -> str:
    work = work_of(model)
    weights = f"6 x {work.used} parameters that compute"
    if model.lora is not None:
        weights = f"4 x {work.used} frozen parameters that compute + 6 x {work.adapters} of adapters"
    return f"{weights} + 12 x {work.layers} layers x {work.queries} x context {model.context}"


def checkpoint_bytes(model: ModelConfig, precision: str) -> int:
    """Return the bytes of all shards of one checkpoint: (weights + 12) bytes x parameters; 16 in float32, 14 in
    bfloat16. Frozen weights lack the 12."""
    return weight_bytes(model, precision) + OPTIMIZER_BYTES * trained_parameters(model)


def weight_bytes(model: ModelConfig, precision: str) -> int:
    return WEIGHT_BYTES[precision] * (parameters(model) + adapter_parameters(model))


def frozen_bytes(model: ModelConfig, precision: str, parts: int = 1, zero_stage: int = 0) -> int:
    """Return the bytes of weights that do not train, on the fullest of `parts` holders: the base beside adapters."""
    size = weight_bytes(model, precision) - WEIGHT_BYTES[precision] * trained_parameters(model)
    return math.ceil(size / parts) if zero_stage == 3 else size


def checkpoint_bytes_per_node(model: ModelConfig, precision: str, nodes: int, zero_stage: int) -> int:
    """Return the bytes on the fullest node: the weights and its part of the optimizer state (ZeRO 0: all of it)."""
    weights, optimizer = weight_bytes(model, precision), OPTIMIZER_BYTES * trained_parameters(model)
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
    part = math.ceil(trained_parameters(model) / world_size)
    return (OPTIMIZER_BYTES + 4 + 2 * WEIGHT_BYTES[precision]) * part


def static_bytes_per_rank(
    model: ModelConfig, precision: str, world_size: int, zero_stage: int, offload: bool = False
) -> int:
    """Return bytes of weights, gradients and optimizer state on one accelerator, without activations.

    Source: Rajbhandari et al., ZeRO, section 3: stage 1 shards the optimizer state, 2 the gradients too, 3 all.
    """
    count = trained_parameters(model)
    parts = (
        (0 if offload else OPTIMIZER_BYTES * count, zero_stage >= 1),
        (WEIGHT_BYTES[precision] * count, zero_stage >= 2),
        (weight_bytes(model, precision), zero_stage >= 3),
    )
    return sum(math.ceil(size / world_size) if is_sharded else size for size, is_sharded in parts)

"""Parameters of adapters by formula, and the matrices that can have one. Pure; no torch, no peft."""

from __future__ import annotations

from infra.spec.models.shape import parameters, shape_of
from trainer.contract import ModelConfig


def matrices(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the matrices of a layer: name -> inputs and outputs. Each kind of model with a formula has these."""
    shape = shape_of(model)
    width, hidden, queries, keys = shape.width, shape.hidden, shape.queries, shape.keys
    return {
        "q_proj": (width, queries), "k_proj": (width, keys), "v_proj": (width, keys), "o_proj": (queries, width),
        "gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width),
    }  # fmt: skip


def adapter_parameters(model: ModelConfig) -> int:
    """Return the number: rank x (inputs + outputs) of each matrix that has an adapter."""
    lora = model.lora
    if lora is None or model.is_function:  # a function's model with adapters is refused
        return 0
    there = matrices(model)
    wanted = there if lora.targets == "all-linear" else set(lora.targets) & set(there)
    return lora.rank * shape_of(model).layers * sum(sum(there[name]) for name in wanted)


def trained_parameters(model: ModelConfig) -> int:
    return parameters(model) if model.lora is None else adapter_parameters(model)


def unknown_targets(model: ModelConfig) -> list[str]:
    """Return names of `lora.targets` that the model does not have."""
    if model.lora is None or model.lora.targets == "all-linear" or model.is_function:
        return []
    return sorted(set(model.lora.targets) - set(matrices(model)))

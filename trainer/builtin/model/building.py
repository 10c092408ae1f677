"""The model that a configuration describes."""

from __future__ import annotations

from torch import nn

from trainer.builtin.model.adapters import adapt
from trainer.builtin.model.named import NamedModel, layers_of
from trainer.builtin.model.transformer import Transformer
from trainer.contract import ModelConfig, RecomputeConfig

Model = Transformer | NamedModel


def build(config: ModelConfig, recompute: RecomputeConfig | None = None, bare: bool = False) -> Model:
    """Return a new model. Raises `ConfigError` if there is none of this name. `bare`: without its adapters."""
    if not config.name:
        return Transformer(config, recompute)
    model = NamedModel(config, recompute)
    if config.lora is not None and not bare:
        adapt(model, config.lora)
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's layers, from the first to the last."""
    return layers_of(model.network) if isinstance(model, NamedModel) else list(getattr(model, "blocks", ()))


def parameter_count(model: nn.Module, trainable_only: bool = False) -> int:
    """Return the whole model's, though with ZeRO stage 3 a rank holds a part of each: DeepSpeed notes its size.
    `trainable_only`: of those that are not frozen."""
    return sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in model.parameters()
        if parameter.requires_grad or not trainable_only
    )

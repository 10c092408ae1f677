"""The model that a configuration describes."""

from __future__ import annotations

from torch import nn

from trainer.contract import ModelConfig, RecomputeConfig
from trainer.model.named import NamedModel, layers_of
from trainer.model.transformer import Transformer

Model = Transformer | NamedModel


def build(config: ModelConfig, recompute: RecomputeConfig | None = None) -> Model:
    """Return a new model. Raises `ConfigError` if there is none of this name."""
    return NamedModel(config, recompute) if config.name else Transformer(config, recompute)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's layers, from the first to the last."""
    return layers_of(model.network) if isinstance(model, NamedModel) else list(getattr(model, "blocks", ()))


def parameter_count(model: nn.Module) -> int:
    """Return the whole model's, though with ZeRO stage 3 a rank holds a part of each: DeepSpeed notes its size."""
    return sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters())

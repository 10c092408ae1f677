"""The model that a configuration describes."""

from __future__ import annotations

from trainer.contract import ModelConfig, RecomputeConfig
from trainer.model.named import NamedModel
from trainer.model.transformer import Transformer

Model = Transformer | NamedModel


def build(config: ModelConfig, recompute: RecomputeConfig | None = None) -> Model:
    """Return a new model. Raises `ConfigError` if there is none of this name."""
    return NamedModel(config, recompute) if config.name else Transformer(config, recompute)

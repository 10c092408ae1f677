"""The model that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn

from trainer.builtin.model.adapters import adapt
from trainer.builtin.model.named import NamedModel, layers_of
from trainer.builtin.model.transformer import Transformer
from trainer.contract import ModelConfig, RecomputeConfig

Model = Transformer | NamedModel
_DRAWS = ("uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_")


def build(
    config: ModelConfig, recompute: RecomputeConfig | None = None, bare: bool = False, draw: bool = True
) -> Model:
    """Return a new model. Raises `ConfigError` if there is none of this name. `bare`: without its adapters. `draw`:
    whether the weights get their first values, which takes minutes for a large model; someone else sets them if not."""
    with nullcontext() if draw else undrawn():
        if not config.name:
            return Transformer(config, recompute, draw)
        model = NamedModel(config, recompute, draw)
        if config.lora is not None and not bare:
            adapt(model, config.lora)
        return model


@contextmanager
def undrawn() -> Iterator[None]:
    """Leave parameters as their memory is where a module would draw them. Anything else, such as a buffer, is drawn."""
    functions = {name: getattr(nn.init, name) for name in _DRAWS}
    for name, function in functions.items():
        setattr(nn.init, name, partial(_draw_unless_parameter, function))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(nn.init, name, function)


def _draw_unless_parameter(function: Callable[..., Tensor], tensor: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
    return tensor if isinstance(tensor, nn.Parameter) else function(tensor, *arguments, **keywords)


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

"""The search for a loss of precision: how far the loss of one micro batch is from what float32 gives on equal weights.

Weights are float32 in the optimizer, so the updates keep small changes. What 8 bits lose, they lose in the computation,
where attention scores and states grow too large for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_NARROW = (torch.bfloat16, torch.float16)


class _InFloat32(TorchFunctionMode):
    """Every operation gets float32 in place of a narrower format: one widened matrix at a time, no second model."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        wide_args, wide_kwargs = tree_map(_wide, (args, dict(kwargs or {})))
        return function(*wide_args, **wide_kwargs)


def _wide(value: Any) -> Any:
    return value.to(torch.float32) if isinstance(value, Tensor) and value.dtype in _NARROW else value


def rounding(model: nn.Module, tokens: Tensor) -> float:
    """Return the relative difference of the loss from that in float32. The model must be whole on this rank."""
    with torch.no_grad():
        narrow = float(model(tokens))
        with _InFloat32():
            wide = float(model(tokens))
    return abs(narrow - wide) / max(abs(wide), 1e-12)

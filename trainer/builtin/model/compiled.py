"""Layers compiled by `torch.compile`: one kernel in place of several for norm, rotation and SwiGLU.

A layer is compiled once for all layers of its shape, in an attempt's first step. Hooks stay outside. What `selective`
keeps is chosen inside: outside, torch would ask Python about each operation, which takes longer than a GPU computes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.builtin.model.building import blocks_of
from trainer.builtin.model.recompute import recompute_function
from trainer.contract import RecomputeConfig, TrainConfig

FOLDER = ".compiled"
"""Folder on the node's disk, beside the campaigns' checkpoints: the next attempt on this node compiles nothing."""


def compile_layers(
    model: nn.Module, recompute: RecomputeConfig, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Make each layer compile its forward pass, and its gradient, when it is first called.

    `recompute`: what `recompute_outside` leaves out is compiled with the layer. `backend`: of `torch.compile`.
    """
    for number, layer in enumerate(blocks_of(model)):
        compute, keep = layer.forward, recompute_function(recompute, number)
        if recompute.policy == "selective" and keep is not None:
            compute = partial(keep, compute)
        # Not `layer.compile()`: it would compile the hooks too.
        layer.forward = torch.compile(compute, dynamic=False, backend=backend)  # type: ignore[method-assign]


def recompute_outside(config: TrainConfig) -> RecomputeConfig:
    """Return what the model itself does around its layers."""
    is_inside = config.compile == "layers" and config.recompute.policy == "selective"
    return RecomputeConfig() if is_inside else config.recompute


def keep_kernels(folder: Path) -> None:
    """Keep in `folder` what this process compiles, and use what lies there."""
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}


def uncompiled(config: TrainConfig) -> AbstractContextManager[None]:
    """Return a context in which compiled layers compute as they are written, in the order of whoever evaluates a
    checkpoint."""
    return torch.compiler.set_stance("force_eager") if config.compile == "layers" else nullcontext()

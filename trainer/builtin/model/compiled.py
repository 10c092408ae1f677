"""Layers compiled by `torch.compile`: one kernel in place of several for norm, rotation and SwiGLU.

A layer is compiled once for all layers of its shape, in an attempt's first step. Hooks stay outside.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

from trainer.builtin.model.building import blocks_of
from trainer.contract import TrainConfig

FOLDER = ".compiled"
"""Folder on the node's disk, beside the campaigns' checkpoints: the next attempt on this node compiles nothing."""


def compile_layers(model: nn.Module) -> None:
    """Make each layer compile its forward pass, and its gradient, when it is first called."""
    for layer in blocks_of(model):
        # Not `layer.compile()`: it would compile the hooks, and the choice of what is computed again, too.
        layer.forward = torch.compile(layer.forward, dynamic=False)  # type: ignore[method-assign]


def keep_kernels(folder: Path) -> None:
    """Keep in `folder` what this process compiles, and use what lies there."""
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}


def uncompiled(config: TrainConfig) -> AbstractContextManager[None]:
    """Return a context in which compiled layers compute as they are written, in the order of whoever evaluates a
    checkpoint."""
    return torch.compiler.set_stance("force_eager") if config.compile == "layers" else nullcontext()

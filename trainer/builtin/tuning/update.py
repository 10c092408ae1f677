"""Fewer looks of DeepSpeed's update at gradients: each look is a few kernels per parameter, or a wait for the device.

`step` of DeepSpeed 0.19.8 (`stage_1_and_2.py`, `fp16/unfused_optimizer.py`) first reads each gradient for what is no
number, then takes the norm of all, which is no number either then, and refuses the step by that as well, where one rank
has each parameter whole or in parts of its own. Stage 3 does the second alone in bfloat16. Stages 1 and 2 ask once more
about the norm for each group of parameters that they scale.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

_READ = "0.19.8"
"""The version of DeepSpeed whose `step` was read."""


def read_norm_once(engine: Any) -> None:
    """Let the gradient's norm alone decide whether the engine's optimizer takes a step. Every bit stays the same.

    Optimizers with states in the node's memory keep their checks: they have no norm on the device. So do ranks that
    compute one model together: only the first of them has the replicated parameters in its norm, and another's broken
    gradient would be taken. Another version of DeepSpeed keeps its own way.
    """
    optimizer = engine.optimizer
    if engine.mp_world_size > 1 or version("deepspeed") != _READ:
        return
    if hasattr(optimizer, "overflow_checker") and not hasattr(optimizer, "averaged_gradients"):
        optimizer.overflow_checker.check = lambda: False
    if not getattr(optimizer, "check_grad_overflow", False) or optimizer.cpu_offload:
        return
    optimizer.check_overflow = lambda **_: None

    def scale(gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
        """Do as `unscale_and_clip_grads` for a norm that `step` has found sound."""
        clip = torch.clamp((norm / optimizer.loss_scale + 1e-6) / optimizer.clip_grad, min=1.0)
        for gradient in gradients:
            gradient.data.mul_(1.0 / (clip * optimizer.loss_scale))

    optimizer.unscale_and_clip_grads = scale

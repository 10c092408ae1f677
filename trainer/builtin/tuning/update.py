"""Fewer looks of DeepSpeed's update at gradients: each look is a few kernels per parameter, or a wait for the device.

`step` of DeepSpeed 0.19.8 (`stage_1_and_2.py`, `fp16/unfused_optimizer.py`) first reads each gradient for what is no
number, then takes the norm of all, which is no number either then, and refuses the step by that as well. Stage 3 does
the second alone in bfloat16. Stages 1 and 2 ask once more about the norm for each group of parameters that they scale.
"""

from __future__ import annotations

from typing import Any

import torch


def read_norm_once(engine: Any) -> None:
    """Let the gradient's norm alone decide whether the engine's optimizer takes a step. Every bit stays the same.

    Optimizers with states in the node's memory keep their checks: they have no norm on the device.
    """
    optimizer = engine.optimizer
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

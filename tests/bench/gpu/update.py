"""Where an update's time goes within DeepSpeed's optimizers of stages 1 to 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainer.builtin.watch.figures import Split

PARTS = {
    "check_overflow": "scan", "scaled_global_norm": "norm", "_get_norm_groups": "norm",
    "unscale_and_clip_grads": "clip", "flatten": "flatten", "free_grad_in_param_list": "free",
    "_optimizer_step": "adamw", "_update_model_bit16_weights": "views",
}  # fmt: skip
"""Methods of DeepSpeed 0.19.8's optimizers -> part of an update."""


def update_parts(engine: Any, step: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds of each part of one step's update, by CUDA events where there is a GPU; none with stage 0.

    The figure `optimizer` less these is what DeepSpeed copies: gradients to float32, and new weights back.
    """
    split, optimizer, replaced = Split(engine.device), engine.optimizer, dict[str, Any]()

    def timed_part(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with split.part(f"update: {part}"):
                return method(*args, **kwargs)

        return call

    for name, part in PARTS.items():
        if method := getattr(optimizer, name, None):
            replaced[name] = vars(optimizer).get(name)
            setattr(optimizer, name, timed_part(part, method))
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    for name, method in replaced.items():
        if method is None:
            delattr(optimizer, name)
        else:
            setattr(optimizer, name, method)
    return split.take_seconds()

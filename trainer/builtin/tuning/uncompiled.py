"""torch's optimizers without torch's compiler, which they import when they are made and at each step, though nobody
compiles them: 1.3 s of each process, and 900 modules (torch 2.13)."""

from __future__ import annotations

import inspect
from functools import cache

import torch
from torch.optim import Adam, AdamW, Optimizer

_ASKED_NOT_TO_COMPILE = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods that torch wraps so that its compiler passes over them (`torch._disable_dynamo`)."""


@cache
def keep_compiler_out() -> None:
    """Have AdamW do the same without the import; call it before the first optimizer is made."""
    for name in _ASKED_NOT_TO_COMPILE:
        method = inspect.unwrap(getattr(Optimizer, name))
        # The wrapper looks here for what the compiler gave it at an earlier call.
        setattr(method, "__dynamo_disable", method)
    # Torch's own wrapper of it switches gradients off, and tells the compiler so.
    AdamW.step = torch.no_grad()(inspect.unwrap(Adam.step))  # type: ignore[method-assign]

"""The learning rate: linear warm-up, then half a cosine."""

from __future__ import annotations

import math

from trainer.contract import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the rate of the 0-based optimizer step `step` out of `steps`."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    part = min(1.0, (step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    span = config.learning_rate - config.minimum_learning_rate
    return config.minimum_learning_rate + 0.5 * span * (1.0 + math.cos(math.pi * part))

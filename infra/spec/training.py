"""The spec's section `training`: the built-in trainer's model, optimizer, batch and length."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.spec.section import Section
from trainer.contract import ModelConfig, OptimizerConfig, RecomputeConfig, WatchConfig, grace_seconds


class Training(Section):
    model: ModelConfig = ModelConfig()
    """The built-in model."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW with warm-up and cosine decay."""
    steps: int = Field(ge=1)
    """Optimizer steps of the whole training."""
    global_batch: int = Field(ge=1)
    """Sequences per optimizer step over all ranks: `micro_batch` x ranks x accumulation steps."""
    micro_batch: int = Field(default=2, ge=1)
    """Sequences that one rank computes at once."""
    zero_stage: int = Field(default=1, ge=0, le=3)
    """Stage of DeepSpeed's ZeRO."""
    recompute: RecomputeConfig = RecomputeConfig()
    """Activations that the backward pass computes again instead of keeping them."""
    watch: WatchConfig = WatchConfig()
    """Detectors of trouble in the training, and what follows from each alarm. The default is to log."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of the computation."""
    seed: int = 42
    """Seed of the initial weights."""
    evaluate_every: int = Field(default=50, ge=1)
    """Steps between evaluations on the held-out part. The last step is always evaluated."""
    evaluate_batches: int = Field(default=8, ge=1)
    """Held-out batches of `micro_batch` sequences per evaluation."""
    step_seconds_estimate: float = Field(default=1.0, gt=0)
    """Estimated time of one step, for plan and check."""
    collective_timeout_s: float = Field(default=30.0, gt=0)
    """Time that a rank waits in one exchange of a step, or of DeepSpeed's load, before it calls a peer lost. Opening
    data and fetching a checkpoint have no such limit: others wait for a slow rank up to the startup timeout."""

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL."""
        return grace_seconds(self.collective_timeout_s)

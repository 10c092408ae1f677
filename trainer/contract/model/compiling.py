"""What cannot be compiled."""

from __future__ import annotations

from trainer.contract.model.layout import Trouble
from trainer.contract.training import ParallelConfig, WatchConfig


def compile_trouble(zero_stage: int, parallel: ParallelConfig, watch: WatchConfig) -> Trouble | None:
    """Return why layers are not compiled with these settings."""
    reasons = {
        "zero_stage 3": (zero_stage == 3, "gathers weights within a layer"),
        "parallel": (parallel.tensor * parallel.sequence > 1, "exchanges within a layer"),
        "watch.precision_every": (bool(watch.precision_every), "widens each operation within a layer"),
    }
    setting, reason = next(((name, reason) for name, (applies, reason) in reasons.items() if applies), ("", ""))
    if not setting:
        return None
    return Trouble("compile", f"makes one piece of each layer, and {setting} {reason}", "layers", "write none")

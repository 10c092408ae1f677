"""The ends of ranks after which a restart in place is right, and the signs of a sick node, after which it is not."""

from __future__ import annotations

import signal

from trainer.contract import ExitCode, Termination
from trainer.health.gpus import suspicion
from trainer.health.looking import Look

_AGAIN = ("signal", "internal", "peer-lost", "stopped")
"""Reasons that may pass. Not here: what a retry repeats (config, data, numeric), what a disk or the watch has caused,
and what the next attempt alone can mend (a fence, a roll-back, nothing sound)."""
_OF_OTHERS = "peer-lost"
_BY_HARDWARE = (signal.SIGBUS, signal.SIGILL)
"""A page that the memory or the disk lost, and an instruction that the processor does not know."""
_SIGNS = ("cuda error", "cuda failure", "cuda driver error", "cudnn", "cublas", "nvml", "xid", " ecc ", "uncorrectable")
"""Words of errors behind which a GPU may be broken."""


def refusal(ended: Termination) -> str:
    """Return why an end is not for a restart in place; empty when it is, as far as the end itself tells."""
    if ended.exit_code != ExitCode.INTERNAL or ended.reason not in _AGAIN:
        return f"the reason is {ended.reason}"
    if ended.signal in _BY_HARDWARE:
        return f"{signal.Signals(ended.signal).name} may come from the hardware"
    said = f" {ended.detail.lower()} "
    found = next((sign for sign in _SIGNS if sign in said), None)
    return f"the error may come from the GPU: {ended.detail[:200]}" if found else ""


def is_own(ended: Termination) -> bool:
    """Return whether a rank of this node died by itself, and not because of another node's."""
    return ended.reason != _OF_OTHERS


def sick(accelerated: bool, look: Look) -> str:
    """Return why this node's GPUs are suspected; empty when they are not, and without GPUs."""
    return suspicion(look) if accelerated else ""

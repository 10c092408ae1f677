"""What the GPUs of an instance type must show when they are looked at."""

from __future__ import annotations

from infra.plan.catalogue.instance_types import USABLE, InstanceType
from trainer.contract import GpuExpectation


def gpu_expectation(item: InstanceType) -> GpuExpectation | None:
    """None where the accelerators are no GPUs."""
    if item.maker != "nvidia":
        return None
    several = item.accelerators > 1
    return GpuExpectation(
        product=item.accelerator,
        count=item.accelerators,
        memory_gib=item.accelerator_memory_gib * USABLE,
        # A GPU that is sold alone has no peer at the other end of its links. Where no source states how many there are,
        # none is insisted on: a sound node must not be replaced for a guess.
        nvlinks=(item.nvlinks or 0) if several else 0,
        nvswitch=several and item.nvlinks != 0,
    )

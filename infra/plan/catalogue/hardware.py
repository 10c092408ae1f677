"""Expected GPUs of an instance type."""

from __future__ import annotations

from infra.plan.catalogue.expectations import reduced_link
from infra.plan.catalogue.instance_types import InstanceType
from infra.plan.catalogue.thresholds import number
from trainer.contract import GpuExpectation


def gpu_expectation(item: InstanceType) -> GpuExpectation | None:
    """Return the expectation; None if the accelerators are not GPUs."""
    if item.maker != "nvidia":
        return None
    several = item.accelerators > 1
    return GpuExpectation(
        product=item.accelerator,
        count=item.accelerators,
        memory_gib=item.accelerator_memory_gib * number("usable_share"),
        # A GPU that is sold alone has no peer at the other end of its links. If no source states the number, none is
        # required: a sound node must not be replaced because of a guess.
        nvlinks=(item.nvlinks or 0) if several else 0,
        nvswitch=several and item.nvlinks != 0,
        pcie=reduced_link(item.name),
    )

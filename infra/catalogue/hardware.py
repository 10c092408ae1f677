"""What the GPUs of an instance type must show when they are looked at."""

from __future__ import annotations

from infra.catalogue.instance_types import InstanceType
from trainer.contract import GpuExpectation

_USABLE = 0.9
"""Of the nominal memory: ECC and the driver keep the rest."""
_NVLINKS = {"A100": 12, "H100": 18, "H200": 18, "B200": 18, "B300": 18}
"""Per GPU (awslabs/awsome-distributed-ai, 1.architectures/efa-cheatsheet.md); B300 as B200, its own is not listed."""


def gpu_expectation(item: InstanceType) -> GpuExpectation | None:
    """None where the accelerators are no GPUs."""
    if item.maker != "nvidia":
        return None
    known = getattr(item, "nvlinks", None)
    links = known if known is not None else _NVLINKS.get(item.accelerator, 0)
    together = item.accelerators > 1 and links > 0
    return GpuExpectation(
        product=item.accelerator,
        count=item.accelerators,
        memory_gib=item.accelerator_memory_gib * _USABLE,
        # A GPU that is sold alone has no peer at the other end of its links.
        nvlinks=links if together else 0,
        nvswitch=together,
    )

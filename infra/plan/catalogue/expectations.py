"""Preflight profiles: written ones, and one derived from each instance type."""

from __future__ import annotations

from functools import cache
from typing import Any

from infra.plan.catalogue.instance_types import InstanceType, instance_type, instance_types
from infra.plan.catalogue.reading import read, unknown
from infra.plan.catalogue.thresholds import limits, number
from trainer.contract import DATA_MOUNT, LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS, Expectation, GpuExpectation, PcieLink
from trainer.contract.frozen import Frozen

_MOUNTS = (DATA_MOUNT, LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS)


class Bandwidth(Frozen):
    """Measured all-reduce bus bandwidth between two nodes."""

    bus_bandwidth_gb_s: float
    all_reduce_mib: int
    """Message size of the measurement."""


@cache
def _content() -> dict[str, Any]:
    return read("expectations")


def profiles() -> tuple[str, ...]:
    """Return the names that `expectation` accepts."""
    return (*_content()["profiles"], *(item.name for item in instance_types()))


def bandwidth(instance_type: str) -> Bandwidth | None:
    """Return the measured bandwidth; None if no source states it: then preflight has no limit for it."""
    row = _content()["measured"].get(instance_type)
    return None if row is None else Bandwidth.model_validate(row)


def reduced_link(instance_type: str) -> PcieLink | None:
    """Return the GPUs' link if the type wires fewer lanes than the card has, else None."""
    links = _content()["pcie"]["links"].get(instance_type)
    return None if links is None else PcieLink.model_validate(links)


def least_versions() -> dict[str, str]:
    """Return, by component, the oldest version that works in a node image that no bake of ours made."""
    return dict(_content()["least_versions"]["components"])


@cache
def expectation(name: str) -> Expectation:
    """Return the profile of this name, a written one or an instance type; raise `UserError` with the nearest names."""
    rows = _content()["profiles"]
    if name in rows:
        return Expectation(profile=name, mounts=_MOUNTS, limits=limits(), **rows[name])
    if name not in profiles():
        raise unknown("expectation", name, profiles())
    return _type_profile(instance_type(name))


def _type_profile(item: InstanceType) -> Expectation:
    floor = bandwidth(item.name) or Bandwidth(bus_bandwidth_gb_s=0.0, all_reduce_mib=1024)
    return Expectation(
        profile=item.name,
        cpus=item.vcpus,
        memory_gib=item.memory_gib * number("usable_share"),
        accelerators=item.accelerators,
        local_disk_gib=item.nvme_total_gib * number("usable_share"),
        shared_disk_gib=number("shared_disk_gib"),
        mounts=_MOUNTS,
        limits=limits(),
        clock_skew_s=number("clock_skew_s"),
        all_reduce_mib=floor.all_reduce_mib,
        bus_bandwidth_gb_s=floor.bus_bandwidth_gb_s * number("floor_share"),
        gpudirect=item.name in _content()["gpudirect"]["types"],
    )


def gpu_expectation(item: InstanceType) -> GpuExpectation | None:
    """Return the expectation; None if the accelerators are not GPUs."""
    if item.maker != "nvidia":
        return None
    has_peers = item.accelerators > 1
    return GpuExpectation(
        product=item.accelerator,
        count=item.accelerators,
        memory_gib=item.accelerator_memory_gib * number("usable_share"),
        # A GPU that is sold alone has no peer at the other end of its links. If no source states the number, none is
        # required: a sound node must not be replaced because of a guess.
        nvlinks=(item.nvlinks or 0) if has_peers else 0,
        nvswitch=has_peers and item.nvlinks != 0,
        pcie=reduced_link(item.name),
    )

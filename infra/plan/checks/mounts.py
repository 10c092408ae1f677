"""Rules about the copies of mounts on the nodes' disks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from infra.plan.checks.finding import Case, Draft, error
from infra.plan.estimates.storage import NVME_BYTES_PER_S, S3_BYTES_PER_S, USABLE_SHARE
from infra.spec import duration
from infra.spec.workload.workload import GIB

_IMPORTS_S = timedelta(minutes=5)
"""Time that images and imports are taken to need of `recovery.startup_timeout`, besides the copies."""


def staged_mounts(case: Case) -> Iterator[Draft]:
    """Copies fit the nodes' disks beside the checkpoints, and are made before the launch is given up."""
    workload, instance, timeout = case.spec.workload, case.facts.instance, case.spec.recovery.startup_timeout
    if workload is None or not workload.staged or not case.facts.environment.inputs or instance is None:
        return
    field, size = f"workload.mounts.{next(iter(workload.staged))}", sum(workload.staged.values()) * GIB
    tier = case.estimate.tier("local") if case.estimate else None
    disks = instance.nvme_count * instance.nvme_gb * 10**9 // (2 if case.spec.storage.local.layout == "RAID10" else 1)
    room = USABLE_SHARE * disks - (tier.needed_bytes if tier is not None else 0)
    if size > room:
        detail = f"{size / 1e9:,.0f} GB, {max(0, room) / 1e9:,.0f} GB usable beside the checkpoints"
        cure = "stage less, or take an instance type with more NVMe disks"
        yield error(field, "the copies do not fit the nodes' disks", seen=detail, cure=cure)
    elif (copying := timedelta(seconds=round(size / _copy_rate(instance.nvme_count)))) + _IMPORTS_S > timeout:
        detail = f"about {duration.text(copying)} to copy, startup_timeout {duration.text(timeout)}"
        cure = f"write recovery.startup_timeout: {duration.text(copying * 2 + _IMPORTS_S)}, or stage less"
        yield error(field, "the launch is given up before the copies are made", seen=detail, cure=cure)


def _copy_rate(disks: int) -> float:
    """Return the bytes per second of one node: its disks write, or one client of S3 reads, more slowly."""
    return min(disks * NVME_BYTES_PER_S, S3_BYTES_PER_S)

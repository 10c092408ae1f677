"""Rules about mounts with volumes of their own, and about copies on the nodes' disks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from ipaddress import IPv4Network, collapse_addresses

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.plan.estimates.storage import NVME_BYTES_PER_S, S3_BYTES_PER_S, USABLE_SHARE
from infra.plan.facts import GivenFileSystem
from infra.spec import duration
from infra.spec.workload.workload import GIB

_LUSTRE_PORTS = ((988, 988), (1018, 1023))
_IMPORTS_S = timedelta(minutes=5)
"""Time that images and imports are taken to need of `recovery.startup_timeout`, besides the copies."""


def given_file_system(case: Case) -> Iterator[Draft]:
    """An existing file system is there, is Lustre's, is in the existing network that the spec names, and lets nodes
    in."""
    job, answers, network = case.job, case.facts.file_systems, case.spec.network
    if not case.facts.environment.inputs:
        return
    for name, mount in job.attached.items():
        if mount.fsx is None:
            continue
        field, system = f"workload.mounts.{name}", next((row for row in answers or () if row.id == mount.fsx), None)
        if network.vpc_id is None:
            cure = "name its VPC in network.vpc_id, and subnets of it in network.subnet_ids"
            yield error(field, "the campaign's own network does not reach it", seen=mount.fsx, cure=cure)
        if system is not None:
            yield from _unfit(case, field, system)
        elif answers is not None:
            cure = f"name one of {case.spec.account}, {case.spec.region}: `aws fsx describe-file-systems` lists them"
            yield error(field, "account and region have no such file system", seen=mount.fsx, cure=cure)


def _unfit(case: Case, field: str, system: GivenFileSystem) -> Iterator[Draft]:
    network, subnet_ids = case.spec.network, case.spec.network.subnet_ids
    if system.kind != "LUSTRE":
        cure = "name one of Lustre: nodes have no other client"
        yield error(field, "is no FSx for Lustre file system", seen=system.kind, cure=cure)
        return
    if system.lifecycle not in ("AVAILABLE", "UPDATING"):
        cure = "wait until `aws fsx describe-file-systems` says AVAILABLE"
        yield error(field, "cannot be mounted now", seen=system.lifecycle, cure=cure)
    if network.vpc_id not in (None, system.vpc_id):
        cure = f"write network.vpc_id: {system.vpc_id}, with subnets of it"
        yield error(field, "is in another VPC", seen=system.vpc_id, cure=cure)
    subnets = () if case.facts.network is None or subnet_ids is None else case.facts.network.subnets
    for cidr in (subnet.cidr for subnet in subnets if subnet_ids is not None and subnet.id == subnet_ids.gpu):
        closed_ports = [f"{low}-{high}" for low, high in _LUSTRE_PORTS if not _lets_in(system, low, high, cidr)]
        if closed_ports:
            detail = f"ports {', '.join(closed_ports)} from {cidr}"
            cure = f"have its owner admit TCP 988 and 1018-1023 from {cidr} in its security group"
            if any(rule.source.startswith("pl-") for rule in system.admits):
                message = "a prefix list, which was not looked into, may let the nodes in or not"
                yield warning(field, message, seen=detail, cure=cure)
            else:
                yield error(field, "its security group does not let the nodes in", seen=detail, cure=cure)


def _lets_in(system: GivenFileSystem, low: int, high: int, cidr: str) -> bool:
    """Return True if ranges that are open for all of the ports cover the subnet together."""
    rules = [rule for rule in system.admits if rule.first <= low and high <= rule.last]
    ranges = [IPv4Network(rule.source) for rule in rules if not rule.source.startswith("pl-")]
    return any(IPv4Network(cidr).subnet_of(block) for block in collapse_addresses(ranges))


def staged_mounts(case: Case) -> Iterator[Draft]:
    """Copies fit the nodes' disks beside the checkpoints, and are made before the launch is given up."""
    job, instance, timeout = case.job, case.facts.instance, case.spec.recovery.startup_timeout
    if not job.staged or not case.facts.environment.inputs or instance is None:
        return
    field, size = f"workload.mounts.{next(iter(job.staged))}", sum(job.staged.values()) * GIB
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

"""Quotas of the account: vCPUs that are free for an instance type and purchase option, and for a campaign's resources
besides GPU nodes limit, use and demand.

Without this check a full quota fails the stack at its first resource or after a quarter of an hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from infra.aws.account import Account, every
from infra.plan import catalogue
from infra.plan.catalogue import InstanceType, Quota
from infra.plan.estimates.preparing import vcpus
from infra.plan.facts import QuotaRoom
from infra.spec.campaign import Spec
from infra.spec.names import BUILD_NETWORK
from infra.spec.sections import Egress
from trainer.contract.frozen import Frozen

_SCRATCH = "SCRATCH"
_NAT_STATES = [{"Name": "state", "Values": ["pending", "available", "deleting"]}]
"""States that count, by the quota's own description."""


def quota_questions(account: Account, spec: Spec) -> Iterator[Callable[[], QuotaRoom]]:
    """Yield one function for each quota that the campaign uses; each returns the room or raises botocore's errors."""
    makes_network = spec.network.made
    nat = makes_network and spec.network.egress is Egress.NAT
    builds = spec.image.builders is None
    yield partial(_vpcs, account, int(makes_network), builds)
    yield partial(_internet_gateways, account, nat, builds)
    if nat:
        yield partial(_room, account, "addresses", "network.egress", partial(_addresses, account), 1)
        yield partial(_room, account, "NAT gateways", "zone", partial(_nat_gateways, account, spec.zone), 1)
    elif makes_network:
        yield partial(_room, account, "endpoints", "network.egress", lambda: 0, len(spec.endpoint_services))
    yield partial(_room, account, "clusters", "campaign", partial(_clusters, account), 1)
    if spec.data is not None and spec.data.in_cluster:
        prepare = spec.data.prepare
        spot = prepare.capacity == "spot"
        yield partial(
            _room,
            account,
            "standard spot vCPUs" if spot else "standard vCPUs",
            "data.prepare.nodes",
            partial(standard_vcpus, account, spot=spot),
            prepare.nodes * (vcpus(prepare.instance_type) or 0),
        )
    shared = spec.storage.shared
    if shared is None:
        return
    sizes = partial(_lustre, account, shared.deployment)
    kind = shared.deployment
    yield partial(_room, account, f"{kind} systems", "storage.shared.deployment", lambda: len(sizes()), 1)
    yield partial(
        _room, account, f"{kind} GiB", "storage.shared.capacity_gib", lambda: sum(sizes()), shared.capacity_gib
    )


def _room(account: Account, quota_name: str, field: str, usage: Callable[[], int], demand: int) -> QuotaRoom:
    quota = catalogue.resource_quota(quota_name)
    return QuotaRoom(quota=quota, field=field, allowed=quota_value(account, quota), used=usage(), wanted=demand)


def _vpcs(account: Account, demand: int, builds: bool) -> QuotaRoom:
    """Return the room for VPCs, `demand` of the campaign; the account's first one that `builds` in the build network
    also needs that."""
    vpcs = list(every(account.client("ec2"), "describe_vpcs", "Vpcs"))
    build_network = any({"Key": "Name", "Value": BUILD_NETWORK} in (vpc.get("Tags") or ()) for vpc in vpcs)
    return _room(account, "VPCs", "network", lambda: len(vpcs), demand + int(builds and not build_network))


def _internet_gateways(account: Account, nat: bool, builds: bool) -> QuotaRoom:
    gateways = list(every(account.client("ec2"), "describe_internet_gateways", "InternetGateways"))
    build_network = any({"Key": "Name", "Value": BUILD_NETWORK} in (gateway.get("Tags") or ()) for gateway in gateways)
    demand = int(nat) + int(builds and not build_network)
    return _room(account, "internet gateways", "network.egress", lambda: len(gateways), demand)


def _addresses(account: Account) -> int:
    return sum(1 for _ in every(account.client("ec2"), "describe_addresses", "Addresses"))


def _nat_gateways(account: Account, zone: str) -> int:
    ec2, by_zone = account.client("ec2"), [{"Name": "availability-zone", "Values": [zone]}]
    subnets = {item["SubnetId"] for item in every(ec2, "describe_subnets", "Subnets", Filters=by_zone)}
    gateways = every(ec2, "describe_nat_gateways", "NatGateways", Filter=_NAT_STATES)
    return sum(item["SubnetId"] in subnets for item in gateways)


def _clusters(account: Account) -> int:
    return sum(1 for _ in every(account.client("eks"), "list_clusters", "clusters"))


def _lustre(account: Account, deployment: str) -> list[int]:
    """Return sizes in GiB of the file systems that share one quota; both kinds of scratch share theirs."""
    kind = _SCRATCH if deployment.startswith(_SCRATCH) else deployment
    systems = every(account.client("fsx"), "describe_file_systems", "FileSystems")
    return [
        int(system["StorageCapacity"])
        for system in systems
        if str((system.get("LustreConfiguration") or {}).get("DeploymentType", "")).startswith(kind)
    ]


_FAMILIES = {
    (False, "P"): r"p\d", (False, "G and VT"): r"(g|vt)\d", (False, "Trn"): r"trn\d",
    (True, "P5"): r"p5", (True, "P4, P3 and P2"): r"p[234]", (True, "G and VT"): r"(g|vt)\d", (True, "Trn"): r"trn\d",
}  # fmt: skip
"""(spot, family) -> pattern of the instance types that the quota counts."""
_STANDARD = re.compile(r"[acdhimrtz]\d")


class QuotaUse(Frozen):
    code: str
    name: str
    vcpus: int
    used: int
    """vCPUs of running instances; on demand also of unused places in reservations."""

    @property
    def free(self) -> int:
        return max(0, self.vcpus - self.used)


def quota_use(account: Account, item: InstanceType, *, spot: bool) -> QuotaUse | None:
    """Return the quota and its use; None if the quota is unknown. Raises botocore's errors."""
    quota = catalogue.quota(item, spot=spot)
    family = item.spot_quota_family if spot else item.quota_family
    if quota is None or family is None:
        return None
    vcpus = _vcpus_in_use(account, re.compile(_FAMILIES[spot, family]), spot)
    return QuotaUse(code=quota.code, name=quota.name, vcpus=quota_value(account, quota), used=vcpus)


def standard_vcpus(account: Account, *, spot: bool) -> int:
    """Return the used vCPUs of general types, which one quota counts. Raises botocore's errors."""
    return _vcpus_in_use(account, _STANDARD, spot)


def quota_value(account: Account, quota: Quota) -> int:
    """Return the quota's value in this account and region; raise botocore's errors."""
    client, key = account.client("service-quotas"), {"ServiceCode": quota.service, "QuotaCode": quota.code}
    try:
        value = client.get_service_quota(**key)["Quota"]
    except client.exceptions.NoSuchResourceException:
        # The quota was never raised for this account.
        value = client.get_aws_default_service_quota(**key)["Quota"]
    return int(value["Value"])


def _vcpus_in_use(account: Account, types: re.Pattern[str], spot: bool) -> int:
    """Return used vCPUs. Instances in a capacity block do not count against the on-demand quota."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    total = 0
    for group in every(account.client("ec2"), "describe_instances", "Reservations", Filters=states):
        for instance in group["Instances"]:
            lifecycle = instance.get("InstanceLifecycle")
            if types.match(instance["InstanceType"]) and lifecycle == ("spot" if spot else None):
                total += _vcpus(instance)
    return total if spot else total + _vcpus_reserved(account, types)


def _vcpus_reserved(account: Account, types: re.Pattern[str]) -> int:
    """ "Active and unused Capacity Reservations count toward your On-Demand Instance limits" (EC2's guide, which also
    has the states). Blocks do not count."""
    states = [{"Name": "state", "Values": ["active", "pending", "assessing", "scheduled", "delayed"]}]
    vcpus = {item.name: item.vcpus for item in catalogue.instance_types()}
    return sum(
        (reservation.get("AvailableInstanceCount") or 0) * vcpus.get(reservation["InstanceType"], 0)
        for reservation in every(
            account.client("ec2"), "describe_capacity_reservations", "CapacityReservations", Filters=states
        )
        if reservation.get("ReservationType") != "capacity-block" and types.match(reservation["InstanceType"])
    )


def _vcpus(instance: dict[str, Any]) -> int:
    vcpus = {item.name: item.vcpus for item in catalogue.instance_types()}
    if instance["InstanceType"] in vcpus:
        return vcpus[instance["InstanceType"]]
    options = instance.get("CpuOptions") or {}
    return int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 0))

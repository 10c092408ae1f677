"""Quotas that are enforced: a request beyond one is refused with its service's error code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from infra.rehearsal.aws.answers import RequestRefused
from infra.rehearsal.aws.ec2.quotas import Quotas
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World

Params = dict[str, Any]
Count = Callable[[World, Params], int]
RUNNING = ("pending", "running")
_ON_DEMAND = {"L-417A185B": r"p\d", "L-DB2E81BA": r"(g|vt)\d", "L-2C3B7624": r"trn\d", "L-1216C47A": r"[acdhimrtz]\d"}
_SPOT = {
    "L-C4BD4855": r"p5", "L-7212CCBC": r"p[234]", "L-3819A6DF": r"(g|vt)\d", "L-6B0D517C": r"trn\d",
    "L-34B43A08": r"[acdhimrtz]\d",
}  # fmt: skip
"""Quota -> pattern of the instance types whose vCPUs it counts."""


@dataclass(frozen=True)
class QuotaLimit:
    """The quota of one operation."""

    service: str
    quota: str
    code: str
    used: Count
    wanted: Count = lambda world, params: 1


def _nat_gateways(world: World, params: Params) -> int:
    ec2 = world.backend("ec2")
    zones = {subnet.id: zone for zone, subnets in list(ec2.subnets.items()) for subnet in list(subnets.values())}
    zone = zones.get(params["SubnetId"])
    gateways = [gateway for gateway in list(ec2.nat_gateways.values()) if gateway.state not in ("deleted", "failed")]
    return sum(zones.get(gateway.subnet_id) == zone for gateway in gateways)


def _group(world: World, params: Params) -> Any:
    return world.backend("ec2").get_security_group_from_id(params.get("GroupId"))


def _asked_rules(world: World, params: Params) -> int:
    """Return the number of requested rules: each source counts, as in moto."""
    sources = ("IpRanges", "Ipv6Ranges", "UserIdGroupPairs", "PrefixListIds")
    return sum(
        max(1, sum(len(permission.get(key) or ()) for key in sources))
        for permission in params.get("IpPermissions") or [{}]
    )


def _ingress(world: World, params: Params) -> int:
    group = _group(world, params)
    return len(group.ingress_rules) if group else 0


def _egress(world: World, params: Params) -> int:
    group = _group(world, params)
    return len(group.egress_rules) if group else 0


def _routes(world: World, params: Params) -> int:
    table = world.backend("ec2").route_tables.get(params["RouteTableId"])
    return sum(not route.local for route in table.routes) if table else 0


def _endpoints(world: World, params: Params) -> int:
    endpoints = list(world.backend("ec2").vpc_end_points.values())
    return sum(
        endpoint.vpc_endpoint_type == "Interface" and endpoint.vpc_id == params["VpcId"] for endpoint in endpoints
    )


def _lustre(world: World, kind: str) -> list[Any]:
    systems = list(world.backend("fsx").file_systems.values())
    return [system for system in systems if system.lustre["DeploymentType"].startswith(kind)]


def _systems_held(kind: str, number: str, capacity: str) -> list[QuotaLimit]:
    """Return the quotas of deployment types that begin with `kind`."""

    def mine(params: Params) -> bool:
        return str((params.get("LustreConfiguration") or {}).get("DeploymentType") or "SCRATCH_1").startswith(kind)

    return [
        QuotaLimit(
            "fsx", number, "ServiceLimitExceeded",
            lambda world, _: len(_lustre(world, kind)), lambda _, params: int(mine(params)),
        ),
        QuotaLimit(
            "fsx", capacity, "ServiceLimitExceeded",
            lambda world, _: sum(system.storage_capacity for system in _lustre(world, kind)),
            lambda _, params: int(params.get("StorageCapacity") or 0) if mine(params) else 0,
        ),
    ]  # fmt: skip


def _node_groups(world: World, params: Params) -> int:
    cluster = world.clusters.get(params["clusterName"])
    return len(cluster.nodegroups) if cluster else 0


def _vpcs(world: World, params: Params) -> int:
    return len(world.backend("ec2").vpcs)


def _addresses(world: World, params: Params) -> int:
    return len(world.backend("ec2").addresses)


def _gateways(world: World, params: Params) -> int:
    return len(world.backend("ec2").internet_gateways)


def _is_interface(world: World, params: Params) -> int:
    return int(params.get("VpcEndpointType") == "Interface")


HELD = {
    ("ec2", "CreateVpc"): [QuotaLimit("vpc", "L-F678F1CE", "VpcLimitExceeded", _vpcs)],
    ("ec2", "CreateInternetGateway"): [QuotaLimit("vpc", "L-A4707A72", "InternetGatewayLimitExceeded", _gateways)],
    ("ec2", "AllocateAddress"): [QuotaLimit("ec2", "L-0263D0A3", "AddressLimitExceeded", _addresses)],
    ("ec2", "CreateNatGateway"): [QuotaLimit("vpc", "L-FE5A380F", "NatGatewayLimitExceeded", _nat_gateways)],
    ("ec2", "CreateRoute"): [QuotaLimit("vpc", "L-93826ACB", "RouteLimitExceeded", _routes)],
    ("ec2", "CreateVpcEndpoint"): [
        QuotaLimit("vpc", "L-29B6F2EB", "VpcEndpointLimitExceeded", _endpoints, _is_interface)
    ],
    ("ec2", "AuthorizeSecurityGroupIngress"): [
        QuotaLimit("vpc", "L-0EA8095F", "RulesPerSecurityGroupLimitExceeded", _ingress, _asked_rules)
    ],
    ("ec2", "AuthorizeSecurityGroupEgress"): [
        QuotaLimit("vpc", "L-0EA8095F", "RulesPerSecurityGroupLimitExceeded", _egress, _asked_rules)
    ],
    ("eks", "CreateCluster"): [
        QuotaLimit("eks", "L-1194D53C", "ResourceLimitExceededException", lambda world, _: len(world.clusters))
    ],
    ("eks", "CreateNodegroup"): [QuotaLimit("eks", "L-6D54EA21", "ResourceLimitExceededException", _node_groups)],
    ("fsx", "CreateFileSystem"): [
        *_systems_held("PERSISTENT_2", "L-FD6F2F22", "L-8F1B9C74"),
        *_systems_held("SCRATCH", "L-C48231E5", "L-AD2FC696"),
    ],
}  # fmt: skip


def vcpus(instance_type: str) -> int:
    facts = INSTANCE_TYPES.get(instance_type) or {}
    return int((facts.get("VCpuInfo") or {}).get("DefaultVCpus") or 0)


class Limits:
    def __init__(self, world: World) -> None:
        self.world, self.quotas = world, Quotas(world)
        world.launch_hooks.append(self.refuse_launch)

    def refuse_over(self, service: str, operation: str, params: Params) -> None:
        for limit in HELD.get((service, operation), ()):
            maximum, usage = self.quotas.value(limit.service, limit.quota), limit.used(self.world, params)
            demand = limit.wanted(self.world, params)
            if demand and usage + demand > maximum:
                name = self.quotas.name(limit.service, limit.quota)
                message = f"The maximum number of {name} has been reached: {maximum:g}"
                raise RequestRefused(limit.code, message)

    def refuse_launch(self, launch: InstanceLaunch) -> None:
        """Refuse a launch beyond its vCPU quota; reservations and blocks were counted at their purchase."""
        is_reserved = launch.capacity_reservation_id or launch.capacity_reservation_group or launch.reservations_only
        if not self.world.strictness.on or is_reserved or launch.market == "capacity-block":
            return
        spot = launch.market == "spot"
        for quota, types in (_SPOT if spot else _ON_DEMAND).items():
            if not re.match(types, launch.instance_type):
                continue
            running = [instance for instance in self.world.backend("ec2").all_instances() if instance.state in RUNNING]
            instances = [
                instance
                for instance in running
                if re.match(types, instance.instance_type) and (instance.lifecycle or "") == ("spot" if spot else "")
            ]
            usage, maximum = (
                sum(vcpus(instance.instance_type) for instance in instances),
                self.quotas.value("ec2", quota),
            )
            if usage + vcpus(launch.instance_type) > maximum:
                raise LaunchRefused(
                    "MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded",
                    f"You have requested more vCPU capacity than your current vCPU limit of {maximum:g} allows for the "
                    "instance bucket that the specified instance type belongs to.",
                )

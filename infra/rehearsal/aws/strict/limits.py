"""Quotas that are enforced: a request beyond one is refused with its service's error code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from infra.rehearsal.aws.answers import RequestRefused
from infra.rehearsal.aws.ec2.quotas import Quotas
from infra.rehearsal.aws.world import Launch, LaunchRefused, World

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
class Held:
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
    gateways = [one for one in list(ec2.nat_gateways.values()) if one.state not in ("deleted", "failed")]
    return sum(zones.get(one.subnet_id) == zone for one in gateways)


def _group(world: World, params: Params) -> Any:
    return world.backend("ec2").get_security_group_from_id(params.get("GroupId"))


def _asked_rules(world: World, params: Params) -> int:
    """Return the number of requested rules: each source counts, as in moto."""
    sources = ("IpRanges", "Ipv6Ranges", "UserIdGroupPairs", "PrefixListIds")
    return sum(max(1, sum(len(one.get(key) or ()) for key in sources)) for one in params.get("IpPermissions") or [{}])


def _ingress(world: World, params: Params) -> int:
    group = _group(world, params)
    return len(group.ingress_rules) if group else 0


def _egress(world: World, params: Params) -> int:
    group = _group(world, params)
    return len(group.egress_rules) if group else 0


def _routes(world: World, params: Params) -> int:
    table = world.backend("ec2").route_tables.get(params["RouteTableId"])
    return sum(not one.local for one in table.routes) if table else 0


def _endpoints(world: World, params: Params) -> int:
    known = list(world.backend("ec2").vpc_end_points.values())
    return sum(one.vpc_endpoint_type == "Interface" and one.vpc_id == params["VpcId"] for one in known)


def _lustre(world: World, kind: str) -> list[Any]:
    systems = list(world.backend("fsx").file_systems.values())
    return [one for one in systems if one.lustre["DeploymentType"].startswith(kind)]


def _systems_held(kind: str, number: str, capacity: str) -> list[Held]:
    """Return the quotas of deployment types that begin with `kind`."""

    def mine(params: Params) -> bool:
        return str((params.get("LustreConfiguration") or {}).get("DeploymentType") or "SCRATCH_1").startswith(kind)

    return [
        Held(
            "fsx", number, "ServiceLimitExceeded",
            lambda world, _: len(_lustre(world, kind)), lambda _, params: int(mine(params)),
        ),
        Held(
            "fsx", capacity, "ServiceLimitExceeded",
            lambda world, _: sum(one.storage_capacity for one in _lustre(world, kind)),
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
    ("ec2", "CreateVpc"): [Held("vpc", "L-F678F1CE", "VpcLimitExceeded", _vpcs)],
    ("ec2", "CreateInternetGateway"): [Held("vpc", "L-A4707A72", "InternetGatewayLimitExceeded", _gateways)],
    ("ec2", "AllocateAddress"): [Held("ec2", "L-0263D0A3", "AddressLimitExceeded", _addresses)],
    ("ec2", "CreateNatGateway"): [Held("vpc", "L-FE5A380F", "NatGatewayLimitExceeded", _nat_gateways)],
    ("ec2", "CreateRoute"): [Held("vpc", "L-93826ACB", "RouteLimitExceeded", _routes)],
    ("ec2", "CreateVpcEndpoint"): [
        Held("vpc", "L-29B6F2EB", "VpcEndpointLimitExceeded", _endpoints, _is_interface)
    ],
    ("ec2", "AuthorizeSecurityGroupIngress"): [
        Held("vpc", "L-0EA8095F", "RulesPerSecurityGroupLimitExceeded", _ingress, _asked_rules)
    ],
    ("ec2", "AuthorizeSecurityGroupEgress"): [
        Held("vpc", "L-0EA8095F", "RulesPerSecurityGroupLimitExceeded", _egress, _asked_rules)
    ],
    ("eks", "CreateCluster"): [
        Held("eks", "L-1194D53C", "ResourceLimitExceededException", lambda world, _: len(world.clusters))
    ],
    ("eks", "CreateNodegroup"): [Held("eks", "L-6D54EA21", "ResourceLimitExceededException", _node_groups)],
    ("fsx", "CreateFileSystem"): [
        *_systems_held("PERSISTENT_2", "L-FD6F2F22", "L-8F1B9C74"),
        *_systems_held("SCRATCH", "L-C48231E5", "L-AD2FC696"),
    ],
}  # fmt: skip


def vcpus(instance_type: str) -> int:
    known = INSTANCE_TYPES.get(instance_type) or {}
    return int((known.get("VCpuInfo") or {}).get("DefaultVCpus") or 0)


class Limits:
    def __init__(self, world: World) -> None:
        self.world, self.quotas = world, Quotas(world)
        world.launch_hooks.append(self.refuse_launch)

    def refuse_over(self, service: str, operation: str, params: Params) -> None:
        for held in HELD.get((service, operation), ()):
            most, used = self.quotas.value(held.service, held.quota), held.used(self.world, params)
            wanted = held.wanted(self.world, params)
            if wanted and used + wanted > most:
                message = (
                    f"The maximum number of {self.quotas.name(held.service, held.quota)} has been reached: {most:g}"
                )
                raise RequestRefused(held.code, message)

    def refuse_launch(self, launch: Launch) -> None:
        """Refuse a launch beyond its vCPU quota; reservations and blocks were counted at their purchase."""
        reserved = launch.capacity_reservation_id or launch.capacity_reservation_group or launch.reservations_only
        if not self.world.strictness.on or reserved or launch.market == "capacity-block":
            return
        spot = launch.market == "spot"
        for quota, types in (_SPOT if spot else _ON_DEMAND).items():
            if not re.match(types, launch.instance_type):
                continue
            running = [one for one in self.world.backend("ec2").all_instances() if one.state in RUNNING]
            counted = [
                one
                for one in running
                if re.match(types, one.instance_type) and (one.lifecycle or "") == ("spot" if spot else "")
            ]
            used, most = sum(vcpus(one.instance_type) for one in counted), self.quotas.value("ec2", quota)
            if used + vcpus(launch.instance_type) > most:
                raise LaunchRefused(
                    "MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded",
                    f"You have requested more vCPU capacity than your current vCPU limit of {most:g} allows for the "
                    "instance bucket that the specified instance type belongs to.",
                )

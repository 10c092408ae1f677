"""What an EC2 call that changes something is about, as IAM asks for it: each resource by itself, with its own tags.

A call that makes something is asked for the new resource with the tags of the request, for every resource that it names
with the tags that this one has, and for ec2:CreateTags of what it tags. AWS leaves out some that are merely named (the
other group of a rule, the gateway of a route); here all are asked for, so a policy that passes is no wider than needed.
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from infra.rehearsal.aws.ec2.instances import template_version
from infra.rehearsal.aws.world import World

Context = dict[str, list[str]]
KINDS = {
    "ami": "image",
    "cr": "capacity-reservation",
    "eipalloc": "elastic-ip",
    "eni": "network-interface",
    "i": "instance",
    "igw": "internet-gateway",
    "lt": "launch-template",
    "nat": "natgateway",
    "pcx": "vpc-peering-connection",
    "rtb": "route-table",
    "sg": "security-group",
    "sgr": "security-group-rule",
    "snap": "snapshot",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
    "vpce": "vpc-endpoint",
}
"""Prefix of an id -> type in an ARN."""
MADE = {
    "AllocateAddress": "elastic-ip",
    "AuthorizeSecurityGroupEgress": "security-group-rule",
    "AuthorizeSecurityGroupIngress": "security-group-rule",
    "CreateImage": "image",
    "CreateInternetGateway": "internet-gateway",
    "CreateLaunchTemplate": "launch-template",
    "CreateNatGateway": "natgateway",
    "CreatePlacementGroup": "placement-group",
    "CreateRouteTable": "route-table",
    "CreateSecurityGroup": "security-group",
    "CreateSubnet": "subnet",
    "CreateVpc": "vpc",
    "CreateVpcEndpoint": "vpc-endpoint",
    "CreateVpcPeeringConnection": "vpc-peering-connection",
    "PurchaseCapacityBlock": "capacity-reservation",
    "RunInstances": "instance",
}
LAUNCHED = ("instance", "volume", "network-interface")
"""What RunInstances makes, each asked for with the tags that the request gives that kind."""
_LATER = {"CreateLaunchTemplate", "CreateLaunchTemplateVersion"}
"""What a template names is asked for when something is launched from it."""
_ID = re.compile(r"^([a-z]+)-[0-9a-f]{8,32}$")


def made(world: World, operation: str, params: dict[str, Any]) -> list[str]:
    """ARNs of what the call makes; the ids are not known yet."""
    if operation not in MADE:
        return []
    kinds = LAUNCHED if operation == "RunInstances" else (MADE[operation],)
    return [arn(world, kind, params.get("GroupName", "*") if kind == "placement-group" else "*") for kind in kinds]


def whole_launch(world: World, params: dict[str, Any]) -> dict[str, Any]:
    """A RunInstances with what its launch template says; the request's own goes first."""
    try:
        return template_version(world, params.get("LaunchTemplate")) | params
    except EC2ClientError:
        return params  # for the operation itself to refuse


def arn(world: World, kind: str, identifier: str) -> str:
    owner = "" if kind in ("image", "snapshot") else world.account
    return f"arn:aws:ec2:{world.region}:{owner}:{kind}/{identifier}"


def by_resource(operation: str) -> bool:
    """EC2's descriptions know no resource."""
    return not operation.startswith("Describe")


def named(world: World, operation: str, params: dict[str, Any]) -> Iterator[tuple[str, Context]]:
    """Every resource that the call names, with its tags as conditions ask for them."""
    ec2 = world.backend("ec2")
    if operation in _LATER:
        params = {key: value for key, value in params.items() if key != "LaunchTemplateData"}
    if set(params) & {"GroupName"} and not set(params) & {"VpcId", "GroupId", "Description"}:
        yield arn(world, "placement-group", params["GroupName"]), {}
    if placed := (params.get("Placement") or {}).get("GroupName"):
        yield arn(world, "placement-group", placed), _tagged(world.placement_tags(placed))
    if pool := (_target(params) or {}).get("CapacityReservationResourceGroupArn"):
        yield pool, {}
    for identifier in dict.fromkeys(_ids(world, params)):
        kind = KINDS.get(identifier.partition("-")[0])
        if kind is not None:
            yield arn(world, kind, identifier), _tagged(ec2.tags.get(identifier) or {})


def _target(params: dict[str, Any]) -> dict[str, Any] | None:
    return (params.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget")


def _tagged(tags: dict[str, str]) -> Context:
    context = {f"aws:resourcetag/{key.lower()}": [str(value)] for key, value in tags.items()}
    return context | {key.replace("aws:", "ec2:", 1): value for key, value in context.items()}


def _ids(world: World, value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in ("TagSpecifications", "Tags", "Filters"):
                yield from _ids(world, part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _ids(world, part, key)
    elif key == "LaunchTemplateName":
        templates = world.backend("ec2").launch_template_name_to_ids
        yield from [templates[value]] if value in templates else []
    elif isinstance(value, str) and value.startswith("rtbassoc-"):
        tables = world.backend("ec2").route_tables.values()
        yield from (table.id for table in tables if value in table.all_associations_ids)
    elif isinstance(value, str) and _ID.match(value):
        yield value

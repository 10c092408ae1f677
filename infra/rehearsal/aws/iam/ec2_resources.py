"""The resources of a changing EC2 call, as IAM checks them: each one separately, with its own tags.

A creating call needs permission for the new resource with the request's tags, for every resource that it names with
that resource's tags, and for ec2:CreateTags on what it tags. Of a rule both groups are checked: the reference does not
say which AWS asks about.
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from infra.rehearsal.aws.ec2.instances import template_version
from infra.rehearsal.aws.world import World
from infra.tables import table

Context = dict[str, list[str]]
RESOURCES: dict[str, dict[str, str]] = table("infra.rehearsal.aws.ec2", "resources")
"""ID prefix -> what EC2 and IAM call the resource, by `resources.yaml`."""
MADE: dict[str, str] = table("infra.rehearsal.aws.iam", "created")
LAUNCHED = ("instance", "volume", "network-interface")
"""Resources that RunInstances makes, each checked with the request's tags for its kind."""
_ALONE = {
    "CreateRoute": "route-table",
    "ReplaceRoute": "route-table",
    "RevokeSecurityGroupEgress": "security-group",
    "RevokeSecurityGroupIngress": "security-group",
}
"""Operation -> the only type that IAM is asked about, whatever else the call names."""
_LATER = {"CreateLaunchTemplate", "CreateLaunchTemplateVersion"}
"""Operations on templates: the resources in a template are checked at the launch."""
_OF_ONE = {
    f"Describe{kind}Attribute" for kind in ("Image", "Instance", "NetworkInterface", "Snapshot", "Volume", "Vpc")
}
_ID = re.compile(r"^([a-z]+)-[0-9a-f]{8,32}$")


def new_arns(world: World, operation: str, params: dict[str, Any]) -> list[str]:
    """Return the ARNs of what the call makes; their IDs are not known yet."""
    if operation not in MADE:
        return []
    kinds = LAUNCHED if operation == "RunInstances" else (MADE[operation],)
    return [arn(world, kind, params.get("GroupName", "*") if kind == "placement-group" else "*") for kind in kinds]


def whole_launch(world: World, params: dict[str, Any]) -> dict[str, Any]:
    """Complete a RunInstances from its launch template; the request's own parameters take precedence."""
    try:
        return template_version(world, params.get("LaunchTemplate")) | params
    except EC2ClientError:
        return params  # the operation itself will refuse it


def arn(world: World, kind: str, identifier: str) -> str:
    owner = "" if kind in ("image", "snapshot") else world.account
    return f"arn:aws:ec2:{world.region}:{owner}:{kind}/{identifier}"


def by_resource(operation: str) -> bool:
    """Return False for EC2's Describe calls, which have no resource, but for those of one resource's attribute."""
    return not operation.startswith("Describe") or operation in _OF_ONE


def present_arns(world: World, operation: str, params: dict[str, Any]) -> Iterator[tuple[str, Context]]:
    """Yield every resource that the call names, with its tags as condition keys."""
    ec2 = world.backend("ec2")
    if operation in _LATER:
        params = {key: value for key, value in params.items() if key != "LaunchTemplateData"}
    if set(params) & {"GroupName"} and not set(params) & {"VpcId", "GroupId", "Description"}:
        yield arn(world, "placement-group", params["GroupName"]), {}
    if group := (params.get("Placement") or {}).get("GroupName"):
        yield arn(world, "placement-group", group), _resource_tag_context(world.placement_tags(group))
    if pool := (_target(params) or {}).get("CapacityReservationResourceGroupArn"):
        yield pool, {}
    for identifier in dict.fromkeys(_ids(world, params)):
        kind = RESOURCES.get(identifier.partition("-")[0], {}).get("type")
        if kind is not None and kind == _ALONE.get(operation, kind):
            yield arn(world, kind, identifier), _resource_tag_context(ec2.tags.get(identifier) or {})


def _target(params: dict[str, Any]) -> dict[str, Any] | None:
    return (params.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget")


def _resource_tag_context(tags: dict[str, str]) -> Context:
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

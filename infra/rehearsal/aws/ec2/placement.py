"""EC2 placement groups, in use by the instances of launch templates that name them until these are terminated."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instances import InstanceBackend, Reservation
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend, matches, specified_tags, tag_list, wrap
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World

STRATEGIES = ("cluster", "spread", "partition")
PARTITIONS = 2


@dataclass
class PlacementGroup:
    group_id: str
    name: str
    arn: str
    strategy: str
    partitions: int | None
    spread: str | None

    def describe(self, tags: dict[str, str]) -> dict[str, Any]:
        return {
            "GroupId": self.group_id,
            "GroupName": self.name,
            "GroupArn": self.arn,
            "State": "available",
            "Strategy": self.strategy,
            "PartitionCount": self.partitions,
            "SpreadLevel": self.spread,
            "Tags": tag_list(tags),
        }


class Placement:
    def __init__(self, world: World) -> None:
        self.world = world
        self.groups: dict[str, PlacementGroup] = {}

    def tags_of(self, group: PlacementGroup) -> dict[str, str]:
        return dict(self.world.backend("ec2").tags.get(group.group_id, {}))

    def create_placement_group(self, params: Parameters) -> dict[str, Any]:
        name, strategy = params.get("GroupName"), params.get("Strategy") or "cluster"
        if not name:
            raise AwsError("MissingParameter", "The request must contain the parameter groupName")
        if name in self.groups:
            raise AwsError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        if strategy not in STRATEGIES:
            raise AwsError("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
        group_id = f"pg-{secrets.token_hex(9)[:17]}"
        arn = f"arn:aws:ec2:{self.world.region}:{self.world.account}:placement-group/{name}"
        partitions = params.get("PartitionCount") or (PARTITIONS if strategy == "partition" else None)
        spread = params.get("SpreadLevel") or ("rack" if strategy == "spread" else None)
        group = PlacementGroup(group_id, name, arn, strategy, partitions, spread)
        self.groups[name] = group
        self.world.backend("ec2").create_tags([group_id], specified_tags(params))
        return {"PlacementGroup": group.describe(self.tags_of(group))}

    def describe_placement_groups(self, params: Parameters) -> dict[str, Any]:
        names, ids = params.get("GroupNames") or [], params.get("GroupIds") or []
        for name in names:
            self.find(name)
        documents = []
        for group in self.groups.values():
            tags = self.tags_of(group)
            facts = {"group-name": group.name, "group-arn": group.arn, "state": "available", "strategy": group.strategy}
            if (names and group.name not in names) or (ids and group.group_id not in ids):
                continue
            if matches(params.get("Filters"), facts, tags):
                documents.append(group.describe(tags))
        return {"PlacementGroups": documents}

    def find(self, name: str) -> PlacementGroup:
        try:
            return self.groups[name]
        except KeyError:
            raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.") from None

    def delete_placement_group(self, params: Parameters) -> None:
        group = self.find(params["GroupName"])
        users = [
            instance.id
            for instance in self.world.backend("ec2").all_instances()
            if instance.placement.group_name == group.name and instance.state != "terminated"
        ]
        if users:
            message = f"The placement group '{group.name}' is in use and may not be deleted: {', '.join(users)}"
            raise AwsError("InvalidPlacementGroup.InUse", message)
        self.groups.pop(group.name)
        self.world.backend("ec2").tags.pop(group.group_id, None)

    def check(self, launch: InstanceLaunch) -> None:
        if launch.placement_group and launch.placement_group not in self.groups:
            message = f"The Placement Group '{launch.placement_group}' is unknown."
            raise LaunchRefused("InvalidPlacementGroup.Unknown", message)


def install(world: World) -> None:
    EC2_RESOURCE_TO_PREFIX["placement-group"], EC2_PREFIX_TO_RESOURCE["pg"] = "pg", "placement-group"
    placement = Placement(world)
    add_backend(world, EC2Response, placement)
    world.launch_hooks.append(placement.check)
    world.placement_tags = lambda name: placement.tags_of(placement.groups[name]) if name in placement.groups else {}
    _remember_groups(placement)


def _remember_groups(placement: Placement) -> None:
    """Keep Placement.GroupName on the instance: moto drops it from RunInstances and from launch templates."""

    def from_template(moto: Callable[..., Reservation], backend: Any, *args: Any, **kwargs: Any) -> Reservation:
        reservation = moto(backend, *args, **kwargs)
        for instance in reservation.instances:
            data = template_data(backend, instance)
            instance.placement.group_name = (data.get("Placement") or {}).get("GroupName") or ""
        return reservation

    def from_request(moto: Callable[..., ActionResult], response: Any) -> ActionResult:
        name = response._get_param("Placement.GroupName")
        if name:
            placement.find(name)
        answer = moto(response)
        for instance in answer.result.instances if name else []:  # type: ignore[attr-defined]
            instance.placement.group_name = name
        return answer

    wrap(InstanceBackend, "run_instances", from_template)
    wrap(EC2Response, "run_instances", from_request)


def template_data(ec2: Any, instance: Any) -> dict[str, Any]:
    """Return the data of the launch template version that an instance was started from, or an empty dict."""
    tags = ec2.tags.get(instance.id, {})
    template = ec2.launch_templates.get(tags.get("aws:ec2launchtemplate:id"))
    return template.get_version(tags["aws:ec2launchtemplate:version"]).data if template else {}

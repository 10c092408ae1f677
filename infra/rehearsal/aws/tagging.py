"""The tagging API's view of resources that moto does not show it, and no view of tags whose resource is gone.

As on AWS it shows neither IAM roles nor Auto Scaling groups nor single schedules: those must be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from moto.core.resource_tagging import TaggableResourcesMixin, TaggedResource, iter_taggable_backends
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.ec2.utils import get_prefix
from moto.resourcegroupstaggingapi import models as tagging

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

EC2_TYPES = {
    "lt": "launch-template",
    "eipalloc": "elastic-ip",
    "vpce": "vpc-endpoint",
    "acl": "network-acl",
    "sgr": "security-group-rule",
    "pg": "placement-group",
    "cr": "capacity-reservation",
    "key": "key-pair",
}
"""Prefix of an id -> type in an ARN, for what moto's EC2 leaves out."""


class Others(TaggableResourcesMixin):
    """Shows tagged resources of several services; takes no tags."""

    SERVICE_NAMESPACE = "bivouac"

    def __init__(self, world: World) -> None:
        self.world, self.partition = world, "aws"

    def owns_arn(self, arn: str) -> bool:
        return False

    def iter_tagged_resources(self) -> Iterator[TaggedResource]:
        world = self.world
        ec2 = world.backend("ec2")
        alive = living(ec2)
        for resource_id, tags in list(ec2.tags.items()):
            kind = EC2_TYPES.get(str(get_prefix(resource_id)))
            if kind and resource_id in alive:
                arn = f"arn:aws:ec2:{world.region}:{world.account}:{kind}/{resource_id}"
                yield TaggedResource(arn, dict(tags), f"ec2:{kind}")
        ecr = world.backend("ecr")
        for repository in list(ecr.repositories.values()):
            tags = ecr.tagger.get_tag_dict_for_resource(repository.arn)
            yield TaggedResource(repository.arn, tags, "ecr:repository")
        scheduler = world.backend("scheduler")
        for group in list(scheduler.schedule_groups.values()):
            tags = scheduler.tagger.get_tag_dict_for_resource(group.arn)
            yield TaggedResource(group.arn, tags, "scheduler:schedule-group")


def living(ec2: Any) -> set[str]:
    """Ids of the EC2 resources that still are."""
    found: set[str] = set()
    for name in (
        "amis",
        "customer_gateways",
        "dhcp_options_sets",
        "enis",
        "flow_logs",
        "internet_gateways",
        "egress_only_internet_gateways",
        "launch_templates",
        "nat_gateways",
        "network_acls",
        "route_tables",
        "snapshots",
        "volumes",
        "vpc_end_points",
        "vpcs",
    ):
        found |= {resource.id for resource in list(getattr(ec2, name, {}).values())}
    found |= {instance.id for instance in ec2.all_instances()}
    found |= {subnet.id for subnets in list(ec2.subnets.values()) for subnet in list(subnets.values())}
    found |= {address.allocation_id for address in ec2.addresses if address.allocation_id}
    found |= {pair.id for pair in list(ec2.key_pairs.values())}
    for groups in list(ec2.groups.values()):
        for group in list(groups.values()):
            found |= {group.id, *(rule.id for rule in [*group.ingress_rules, *group.egress_rules])}
    # Placement groups and capacity reservations drop their own tags when they go.
    return found | {resource_id for resource_id in list(ec2.tags) if get_prefix(resource_id) in (None, "pg", "cr")}


def install(world: World) -> None:
    others = Others(world)

    def everything(account: str, region: str) -> Iterator[TaggableResourcesMixin]:
        yield from iter_taggable_backends(account, region)
        if (account, region) == (world.account, world.region):
            yield others

    tagging.iter_taggable_backends = everything  # type: ignore[assignment]

    def without_the_dead(moto: Callable[..., ActionResult], response: Any) -> ActionResult:
        answer = moto(response)
        alive = living(response.ec2_backend)
        shown: Any = answer.result
        shown["Tags"] = [tag for tag in shown["Tags"] if tag["resource_id"] in alive]
        return answer

    wrap(EC2Response, "describe_tags", without_the_dead)

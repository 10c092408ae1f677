"""The tagging API, extended by resources that moto does not show it and by stale tags of deleted ones.

As on AWS it shows neither IAM roles nor Auto Scaling groups nor single schedules: those must be listed. As on AWS
GetResources still shows deleted resources ("tagged or previously tagged"; boto3 issue 3341: for hours), here for
`STALE_TAGS_S`, or as POSTed to `/_site/tagging`: `{"stale_tags_s": 60}`. Those of moto's own EC2 are excepted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from moto.core.resource_tagging import TaggableResourcesMixin, TaggedResource, iter_taggable_backends
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.ec2.utils import get_prefix
from moto.resourcegroupstaggingapi import models as tagging

from infra.rehearsal.aws.eks.tags import Tags
from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import Call, World

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
"""ID prefix -> type in an ARN, for resources that moto's EC2 leaves out."""


STALE_TAGS_S = 45.0
"""Time for which a deleted resource is still shown."""
_LOOK_EVERY_S = 0.2
_ENDS = ("Delete", "Revoke", "Disassociate", "Terminate")


class StaleTags(TaggableResourcesMixin):
    """Tagged resources that a deleting call has removed."""

    SERVICE_NAMESPACE = "bivouac-stale-tags"

    def __init__(self, world: World, living: Callable[[], Iterator[TaggedResource]]) -> None:
        self.world, self.living, self.partition, self.seconds = world, living, "aws", STALE_TAGS_S
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, TaggedResource]] = {}
        self._looked = 0.0

    def owns_arn(self, arn: str) -> bool:
        return False

    def hook(self, call: Call) -> None:
        """Look at the resources before a request that deletes."""
        if call.action.startswith(_ENDS) and time.monotonic() - self._looked > _LOOK_EVERY_S:
            with suppress(RuntimeError):  # a resource changes at this moment: the next look sees it
                self._look()

    def _look(self) -> set[str]:
        """Return the ARNs of existing resources; keep the others with the time they were last seen."""
        with self.world.lock, self._lock:
            now = self._looked = time.monotonic()
            present = {
                resource.arn: TaggedResource(resource.arn, dict(resource.tags), resource.resource_type)
                for resource in self.living()
            }
            self._last |= {arn: (now, resource) for arn, resource in present.items() if resource.tags}
            self._last = {arn: row for arn, row in self._last.items() if now - row[0] < self.seconds}
            return set(present)

    def iter_tagged_resources(self) -> Iterator[TaggedResource]:
        present = self._look()
        yield from [resource for arn, (_, resource) in list(self._last.items()) if arn not in present]

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        request = json.loads(body) if body else {}
        self.seconds = float(request.get("stale_tags_s", self.seconds))
        return 200, {
            "stale_tags_s": self.seconds,
            "stale_tags": sorted(resource.arn for resource in self.iter_tagged_resources()),
        }


class Others(TaggableResourcesMixin):
    """Tagged resources of several services; accepts no tags."""

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
    """Return the IDs of the existing EC2 resources."""
    arns: set[str] = set()
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
        "vpc_pcxs",
        "vpcs",
    ):
        arns |= {resource.id for resource in list(getattr(ec2, name, {}).values())}
    arns |= {instance.id for instance in ec2.all_instances()}
    arns |= {subnet.id for subnets in list(ec2.subnets.values()) for subnet in list(subnets.values())}
    arns |= {address.allocation_id for address in ec2.addresses if address.allocation_id}
    arns |= {pair.id for pair in list(ec2.key_pairs.values())}
    for groups in list(ec2.groups.values()):
        for group in list(groups.values()):
            arns |= {group.id, *(rule.id for rule in [*group.ingress_rules, *group.egress_rules])}
    # Placement groups and capacity reservations remove their own tags on deletion.
    return arns | {resource_id for resource_id in list(ec2.tags) if get_prefix(resource_id) in (None, "pg", "cr")}


def install(world: World) -> None:
    other_resources = Others(world)

    def brief() -> Iterator[TaggedResource]:
        """Yield what may leave stale tags, without moto's EC2: its thousands of public images are slow."""
        for backend in (*iter_taggable_backends(world.account, world.region), other_resources):
            if backend.SERVICE_NAMESPACE != "ec2":
                yield from backend.iter_tagged_resources()
        for arn, tags in Tags(world).all_tags().items():
            yield TaggedResource(arn, dict(tags), f"eks:{arn.split(':')[5].split('/')[0]}")

    stale_tags = StaleTags(world, brief)
    world.faults.append(stale_tags.hook)
    world.routes["/_site/tagging"] = stale_tags.route

    def iterate_backends(account: str, region: str) -> Iterator[TaggableResourcesMixin]:
        yield from iter_taggable_backends(account, region)
        if (account, region) == (world.account, world.region):
            yield other_resources
            yield stale_tags

    tagging.iter_taggable_backends = iterate_backends  # type: ignore[assignment]

    def without_the_dead(moto: Callable[..., ActionResult], response: Any) -> ActionResult:
        answer = moto(response)
        alive = living(response.ec2_backend)
        document: Any = answer.result
        document["Tags"] = [tag for tag in document["Tags"] if tag["resource_id"] in alive]
        return answer

    wrap(EC2Response, "describe_tags", without_the_dead)

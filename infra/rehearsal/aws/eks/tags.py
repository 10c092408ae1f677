"""Tags of all EKS resources, for EKS itself and for the tagging API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from moto.core.resource_tagging import TaggedResource, make_tag_matcher, match_resource_type
from moto.resourcegroupstaggingapi.models import ResourceGroupsTaggingAPIBackend

from infra.rehearsal.aws.eks.clusters import EksResponse
from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations, wrap
from infra.rehearsal.aws.world import World


class Tags:
    def __init__(self, world: World) -> None:
        self.world = world

    def everything(self) -> dict[str, dict[str, str]]:
        """Return each ARN's tags, as the same dictionary that the resource shows."""
        tagged: dict[str, dict[str, str]] = {}
        for cluster in self.world.clusters.values():
            tagged[cluster.document["arn"]] = cluster.document["tags"]
            tagged |= {one.document["nodegroupArn"]: one.document["tags"] for one in cluster.nodegroups.values()}
            tagged |= {one["addonArn"]: one["tags"] for one in cluster.addons.values()}
            tagged |= {one["accessEntryArn"]: one["tags"] for one in cluster.entries.values()}
            tagged |= {one["associationArn"]: one["tags"] for one in cluster.associations.values()}
        return tagged

    def _of(self, arn: str) -> dict[str, str]:
        tagged = self.everything()
        if arn not in tagged:
            raise AwsError("NotFoundException", f"The resource {arn} was not found")
        return tagged[arn]

    def tag_resource(self, params: Parameters) -> None:
        self._of(params["resourceArn"]).update(params["tags"])

    def untag_resource(self, params: Parameters) -> None:
        tags = self._of(params["resourceArn"])
        for key in params["tagKeys"]:
            tags.pop(key, None)

    def list_tags_for_resource(self, params: Parameters) -> dict[str, Any]:
        return {"tags": self._of(params["resourceArn"])}

    def shown(
        self,
        original: Callable[..., Iterator[TaggedResource]],
        backend: Any,
        tag_filters: Any = None,
        resource_type_filters: Any = None,
        resource_arn_list: Any = None,
    ) -> Iterator[TaggedResource]:
        """Yield the answer of GetResources: moto's resources, then EKS's."""
        yield from original(backend, tag_filters, resource_type_filters, resource_arn_list)
        matches = make_tag_matcher(tag_filters)
        for arn, found in self.everything().items():
            kind = f"eks:{arn.split(':')[5].split('/')[0]}"
            wanted = not resource_arn_list or arn in resource_arn_list
            if found and wanted and match_resource_type(kind, resource_type_filters) and matches(found):
                yield TaggedResource(arn, dict(found), kind)


def install(world: World) -> None:
    tags = Tags(world)
    names = ("tag_resource", "untag_resource", "list_tags_for_resource")
    add_operations(world, EksResponse, {name: getattr(tags, name) for name in names})
    wrap(ResourceGroupsTaggingAPIBackend, "_get_resources_generator", tags.shown)

"""Tags of all EKS resources, for EKS itself and for the tagging API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from moto.core.resource_tagging import TaggedResource, make_tag_matcher, match_resource_type
from moto.resourcegroupstaggingapi.models import ResourceGroupsTaggingAPIBackend

from infra.rehearsal.aws.eks.clusters import EksResponse
from infra.rehearsal.aws.operations import AwsError, Parameters, ServicePart, add_backend, wrap
from infra.rehearsal.aws.world import World


class Tags(ServicePart):
    def all_tags(self) -> dict[str, dict[str, str]]:
        """Return each ARN's tags, as the same dictionary that the resource shows."""
        tags_by_arn: dict[str, dict[str, str]] = {}
        for cluster in self.world.clusters.values():
            tags_by_arn[cluster.document["arn"]] = cluster.document["tags"]
            tags_by_arn |= {
                group.document["nodegroupArn"]: group.document["tags"] for group in cluster.nodegroups.values()
            }
            tags_by_arn |= {group["addonArn"]: group["tags"] for group in cluster.addons.values()}
            tags_by_arn |= {group["accessEntryArn"]: group["tags"] for group in cluster.entries.values()}
            tags_by_arn |= {group["associationArn"]: group["tags"] for group in cluster.associations.values()}
        return tags_by_arn

    def _tags_of(self, arn: str) -> dict[str, str]:
        tags_by_arn = self.all_tags()
        if arn not in tags_by_arn:
            raise AwsError("NotFoundException", f"The resource {arn} was not found")
        return tags_by_arn[arn]

    def tag_resource(self, params: Parameters) -> None:
        self._tags_of(params["resourceArn"]).update(params["tags"])

    def untag_resource(self, params: Parameters) -> None:
        tags = self._tags_of(params["resourceArn"])
        for key in params["tagKeys"]:
            tags.pop(key, None)

    def list_tags_for_resource(self, params: Parameters) -> dict[str, Any]:
        return {"tags": self._tags_of(params["resourceArn"])}

    def add_tags(
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
        for arn, tags in self.all_tags().items():
            kind = f"eks:{arn.split(':')[5].split('/')[0]}"
            is_selected = not resource_arn_list or arn in resource_arn_list
            if tags and is_selected and match_resource_type(kind, resource_type_filters) and matches(tags):
                yield TaggedResource(arn, dict(tags), kind)


def install(world: World) -> None:
    tags = Tags(world)
    add_backend(world, EksResponse, tags)
    wrap(ResourceGroupsTaggingAPIBackend, "_get_resources_generator", tags.add_tags)

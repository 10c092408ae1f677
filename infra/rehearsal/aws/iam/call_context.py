"""The context of a call for conditions: tags of the request, tags of its resource, and each service's own keys."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.iam import build_context, iam_context, key_context
from infra.rehearsal.aws.s3 import bucket_settings
from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]


def given_tags(params: dict[str, Any]) -> dict[str, str]:
    """Return the tags that the call sets."""
    tags = params.get("tags") or params.get("Tags") or []
    if isinstance(tags, dict):
        return tags
    pairs = list(tags) if isinstance(tags, list) else []
    for specification in params.get("TagSpecifications", []):
        pairs += specification.get("Tags", [])
    return {
        str(pair.get("Key", pair.get("key", pair.get("TagKey")))): str(
            pair.get("Value", pair.get("value", pair.get("TagValue", "")))
        )
        for pair in pairs
        if isinstance(pair, dict)
    }


def taken_tags(params: dict[str, Any]) -> list[str]:
    """Return the keys of the tags that the call removes."""
    keys = params.get("tagKeys") or params.get("TagKeys") or params.get("ResourceTagKeys") or []
    return [str(key) for key in keys]


_IN_CLUSTER = {
    "CreateAccessEntry": "access-entry/{clusterName}/*",
    "CreateAddon": "addon/{clusterName}/{addonName}/*",
    "CreateNodegroup": "nodegroup/{clusterName}/{nodegroupName}/*",
    "CreatePodIdentityAssociation": "podidentityassociation/{clusterName}/*",
}
"""EKS operation on a cluster -> the new resource in it."""


def tagged_at_creation(operation: str, params: dict[str, Any], resources: list[str]) -> str:
    """Return the ARN of the new resource; among the call's own `resources` it is the last one."""
    if kind := _IN_CLUSTER.get(operation):
        return resources[-1].rpartition(":")[0] + ":" + kind.format(**params)
    return resources[-1].removesuffix(":log-stream:")


def call_context(
    world: World, service: str, operation: str, params: Parameters, resources: list[str] | None
) -> dict[str, list[str]]:
    context: dict[str, list[str]] = {}
    tags = given_tags(params)
    if keys := [*tags, *taken_tags(params)]:
        context["aws:tagkeys"] = keys
    if tags:
        context |= {f"aws:requesttag/{key.lower()}": [value] for key, value in tags.items()}
    for key, value in _resource_tags(world, resources or []).items():
        context[f"aws:resourcetag/{key.lower()}"] = context[f"{service}:resourcetag/{key.lower()}"] = [value]
    if service == "s3":
        bucket_tags = bucket_settings.opening_tags(world, params.get("Bucket"))
        context |= {f"s3:buckettag/{key.lower()}": [value] for key, value in bucket_tags.items()}
    if service == "s3" and "Prefix" in params:
        context["s3:prefix"] = [params["Prefix"]]
    context |= build_context.context(params) if service == "codebuild" else {}
    context |= key_context.context(params) if service == "kms" else {}
    if service == "iam":
        context |= iam_context.context(world, operation, params)
    return context


def _resource_tags(world: World, resources: list[str]) -> dict[str, str]:
    """Return the tags of a single resource: instances, Auto Scaling groups, node groups, clusters."""
    if len(resources) != 1 or resources[0] == "*":
        return {}
    if ":iam:" in resources[0]:
        return iam_context.tags(world, resources[0])
    kind = resources[0].split(":", 5)[-1]
    if kind.startswith("instance/"):
        instance = world.backend("ec2").get_instance_by_id(kind.removeprefix("instance/"))
        return {tag["key"]: tag["value"] for tag in instance.get_tags()} if instance else {}
    if kind.startswith("autoScalingGroup:"):
        group = world.backend("autoscaling").autoscaling_groups.get(kind.rpartition("/")[2])
        return {tag["Key"]: tag["Value"] for tag in group.tags} if group else {}
    if ":fsx:" in resources[0]:
        return dict(world.backend("fsx").tagger.get_tag_dict_for_resource(resources[0]))
    if kind.startswith("key/"):
        return dict(world.backend("kms").tagger.get_tag_dict_for_resource(kind.removeprefix("key/")))
    if kind.startswith("nodegroup/"):
        return next((tags for group_arn, tags in list(eks_tags(world).values()) if group_arn == resources[0]), {})
    if kind.startswith("cluster/") and kind.removeprefix("cluster/") in world.clusters:
        return dict(world.clusters[kind.removeprefix("cluster/")].document["tags"])
    return {}


def eks_tags(world: World) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
    """Return the ARN and the tags of each node group, by the names of its cluster and its own."""
    return {
        (str(cluster.name), str(name)): (group.document["nodegroupArn"], group.document["tags"])
        for cluster in list(world.clusters.values())
        for name, group in list(cluster.nodegroups.items())
    }

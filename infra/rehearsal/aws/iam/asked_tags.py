"""Tags in a request, in each service's own spelling."""

from __future__ import annotations

from typing import Any


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

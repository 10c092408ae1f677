"""A resource in a listing: name, tags, creation time, network, and the ids of others that it mentions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_ID = re.compile(
    r"\b(?:vpc|subnet|sg|sgr|i|vol|snap|ami|eni|rtb|igw|nat|eipalloc|vpce|fs|lt|acl|pcx|tgw|cr|fl|dra|backup)"
    r"-[0-9a-f]{8,}\b"
)
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(?:role|instance-profile)/[\w+=,.@/-]+")
_BORN = (
    "CreateTime", "CreationTime", "CreateDate", "CreationDate", "CreatedTime", "StartTime", "LaunchTime", "createdAt",
    "creationTime", "CreationTimestamp", "CreateTimestamp", "LastModifiedDate", "CreatedAt", "Initiated",
)  # fmt: skip
_PLACES = ("VpcId", "VPCId", "SubnetId", "SubnetIds", "Subnets", "VPCZoneIdentifier", "ResourceId")
"""Keys of an item with its network; `ResourceId` is the network that a flow log watches."""
_PLACED_PARTS = {
    "AvailabilityZones": ("SubnetId",),
    "Attachments": ("VpcId",),
    "LaunchSpecification": ("SubnetId",),
    "resourcesVpcConfig": ("vpcId", "subnetIds"),
}
"""Keys of an item whose parts have its network."""
_NETWORK = ("vpc-", "subnet-")
CLUSTER_TAG, OWNED = "kubernetes.io/cluster/", "owned"
"""Value of an owned resource. With the value `shared` a cluster only uses it, which does not tell the owner."""
_GUARDDUTY = re.compile(r"com\.amazonaws\.[a-z0-9-]+\.guardduty-data(-fips)?|GuardDutyManagedSecurityGroup-.+")
"""Service of the endpoint, and name of its group, that GuardDuty puts into a VPC and marks with its tag: AWS's policy
AmazonGuardDutyServiceRolePolicy, and GuardDuty's guide, "Using Infrastructure as Code". It removes both only when its
runtime monitoring ends."""
_OTHERS_RULES = frozenset({"IpPermissions", "IpPermissionsEgress"})
"""Ignored keys: a foreign group that admits ours is not ours."""


@dataclass(frozen=True)
class Thing:
    """A resource from a listing."""

    id: str
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    created: datetime | None = None
    mentions: frozenset[str] = frozenset()
    """Ids and role ARNs anywhere in it: its volume, its role, or what somebody wrote in a tag."""
    inside: frozenset[str] = frozenset()
    """Its VPC and subnets, from fields that only AWS writes."""
    leaving: bool = False
    """It is being deleted."""
    unread: str = ""
    """Error of reading its tags or description; empty if they were read."""
    doubt: str = ""
    """Reason why it may not exist, and how to check; empty if it does."""
    maker: str = ""
    """Service of AWS that made it of its own accord, as AWS documents; empty for what people make."""
    traits: Mapping[str, Any] = field(default_factory=dict)
    """AWS's description, for kinds whose price depends on it; else empty."""

    @property
    def label(self) -> str:
        """Name for people, with the id if that adds information."""
        maker = f", made by {self.maker}" if self.maker else ""
        return (f"{self.name} ({self.id})" if self.name and _ID.fullmatch(self.id) else self.name or self.id) + maker


def thing(item: Mapping[str, Any], id: str, name: str = "", tags: Mapping[str, str] | None = None) -> Thing:
    """Return the resource of a listed item; tags are read in either spelling, unless given."""
    if tags is None:
        raw = item.get("Tags") or item.get("TagSet") or item.get("tags") or item.get("TagList")
        tags = dict(raw) if isinstance(raw, Mapping) else tags_of(raw)
    text = json.dumps({key: value for key, value in item.items() if key not in _OTHERS_RULES}, default=str)
    mentions = frozenset([*_ID.findall(text), *_ROLE.findall(text)]) - {id}
    place_ids, maker = _place_ids(item) - {id}, maker_of(item, tags)
    return Thing(id, name, tags, _born(item), mentions, place_ids, _leaving(item), maker=maker)


def maker_of(item: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """Return the service of AWS that made an item of its own accord; empty for what people make.

    EventBridge names it, as `elasticfilesystem.amazonaws.com` for the rules by which S3 Files follows a bucket.
    """
    text = str(item.get("ServiceName") or item.get("GroupName") or "")
    if tags.get("GuardDutyManaged") == "true" and _GUARDDUTY.fullmatch(text):
        return "GuardDuty"
    if "node.k8s.amazonaws.com/instance_id" in tags:
        return "the VPC CNI"
    return str(item.get("ManagedBy") or "")


def _place_ids(item: Mapping[str, Any]) -> frozenset[str]:
    values = [item.get(key) for key in _PLACES]
    for key, parts in _PLACED_PARTS.items():
        entries = item.get(key) or ()
        for entry in [entries] if isinstance(entries, Mapping) else entries:
            values += [entry.get(part) for part in parts] if isinstance(entry, Mapping) else ()
    texts = [text for entry in values for text in ([entry] if isinstance(entry, str) else entry or ())]
    ids = (id.strip() for text in texts for id in str(text).split(","))
    return frozenset(id for id in ids if id.startswith(_NETWORK))


def _leaving(item: Mapping[str, Any]) -> bool:
    state = item.get("State") or item.get("Status") or item.get("status") or item.get("Lifecycle") or ""
    if isinstance(state, Mapping):
        state = state.get("Name") or state.get("Code") or ""
    return str(state).lower() in ("deleting", "shutting-down", "stopping-delete", "releasing", "delete in progress")


def _born(item: Mapping[str, Any]) -> datetime | None:
    for key in _BORN:
        value = item.get(key)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        if isinstance(value, int | float) and value > 0:
            # CloudWatch Logs uses milliseconds.
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                continue
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def tags_of(pairs: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    """Return tags from either spelling of AWS's lists."""
    return {
        pair.get("Key", pair.get("key", pair.get("TagKey", ""))): pair.get(
            "Value", pair.get("value", pair.get("TagValue", ""))
        )
        for pair in pairs or ()
    }

"""Where a campaign's things can lie: one look per kind of resource, by listing, with the plain AWS client.

A look knows neither Pulumi's state nor what we think we made. What belongs to the campaign shows by its tags or its
name; what it is called when it was kept on purpose is decided by `certify`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.account import Account
from infra.names import CAMPAIGN_TAG, Names


@dataclass(frozen=True)
class Thing:
    """One resource that a listing showed."""

    id: str
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def belongs_to(self, names: Names) -> bool:
        """By campaign tag, by cluster tag, or, where there is no campaign tag, by a name that we would give."""
        if CAMPAIGN_TAG in self.tags:
            return self.tags[CAMPAIGN_TAG] == names.campaign
        if f"kubernetes.io/cluster/{names.cluster}" in self.tags or self.tags.get("eks:cluster-name") == names.cluster:
            return True
        return any(is_ours(text, names) for text in (self.name, self.tags.get("Name", "")))


_PARTS = (
    "cluster",
    "node",
    "nodes",
    "steward",
    "trainer",
    "archive",
    "builder",
    "guard",
    "gpu",
    "system",
    "deadline",
    "shared",
    "lustre",
    "budget",
)


def is_ours(text: str, names: Names) -> bool:
    """Names made from the prefix; `bivouac-train-2` is another campaign's than `train`'s."""
    if text in (names.prefix, names.log_group):
        return True
    bare = text.removeprefix("eks-")
    return any(bare == f"{names.prefix}-{part}" or bare.startswith(f"{names.prefix}-{part}-") for part in _PARTS)


@dataclass(frozen=True)
class Look:
    """A kind of resource and how all of it is listed."""

    service: str
    kind: str
    list: Callable[[Account], Iterator[Thing]]


def tags_of(pairs: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    """Tags from either spelling of AWS's lists."""
    return {pair.get("Key", pair.get("key", "")): pair.get("Value", pair.get("value", "")) for pair in pairs or ()}


def _ec2(operation: str, result: str, id_key: str, **filters: Any) -> Callable[[Account], Iterator[Thing]]:
    """A look through a `describe_*` operation of EC2."""

    def listing(account: Account) -> Iterator[Thing]:
        client = account.client("ec2")
        if client.can_paginate(operation):
            items = (item for page in client.get_paginator(operation).paginate(**filters) for item in page[result])
        else:
            items = iter(getattr(client, operation)(**filters)[result])
        for item in items:
            tags = tags_of(item.get("Tags") or item.get("TagSet"))
            name = item.get("GroupName") or item.get("LaunchTemplateName") or item.get("Description") or ""
            if item.get("State") not in ("deleted", "terminated", "cancelled"):
                yield Thing(item[id_key], str(name), tags)

    return listing


def _instances(account: Account) -> Iterator[Thing]:
    pages = account.client("ec2").get_paginator("describe_instances").paginate()
    for page in pages:
        for reservation in page["Reservations"]:
            for item in reservation["Instances"]:
                if item["State"]["Name"] != "terminated":
                    yield Thing(item["InstanceId"], tags=tags_of(item.get("Tags")))


def _named(service: str, operation: str, result: str, key: str | None) -> Callable[[Account], Iterator[Thing]]:
    """A look through a paginated listing that gives names (`key` None) or items with a name."""

    def listing(account: Account) -> Iterator[Thing]:
        client = account.client(service)
        pages = (
            client.get_paginator(operation).paginate()
            if client.can_paginate(operation)
            else [getattr(client, operation)()]
        )
        for page in pages:
            for item in page[result]:
                name = item if key is None else item[key]
                tags = {} if key is None else tags_of(item.get("Tags") or item.get("tags") or ())
                yield Thing(name, name, tags)

    return listing


def _file_systems(account: Account) -> Iterator[Thing]:
    for page in account.client("fsx").get_paginator("describe_file_systems").paginate():
        for item in page["FileSystems"]:
            yield Thing(item["FileSystemId"], tags=tags_of(item.get("Tags")))


_LINGERING = (":instance/", ":natgateway/", ":network-interface/")
"""The tagging service goes on showing these long after their end; their own looks see their state."""


def _budgets(account: Account) -> Iterator[Thing]:
    owner = account.identity()["Account"]
    for page in account.client("budgets").get_paginator("describe_budgets").paginate(AccountId=owner):
        for item in page.get("Budgets", ()):
            yield Thing(item["BudgetName"], item["BudgetName"])


def _tagged(account: Account) -> Iterator[Thing]:
    """Whatever the tagging service knows, of any kind."""
    for page in account.client("resourcegroupstaggingapi").get_paginator("get_resources").paginate():
        for item in page["ResourceTagMappingList"]:
            if not any(kind in item["ResourceARN"] for kind in _LINGERING):
                yield Thing(item["ResourceARN"], tags=tags_of(item["Tags"]))


LOOKS: tuple[Look, ...] = (
    Look("ec2", "instance", _instances),
    Look("ec2", "volume", _ec2("describe_volumes", "Volumes", "VolumeId")),
    Look("ec2", "snapshot", _ec2("describe_snapshots", "Snapshots", "SnapshotId", OwnerIds=["self"])),
    Look("ec2", "image", _ec2("describe_images", "Images", "ImageId", Owners=["self"])),
    Look("ec2", "network interface", _ec2("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId")),
    Look("ec2", "elastic address", _ec2("describe_addresses", "Addresses", "AllocationId")),
    Look("ec2", "NAT gateway", _ec2("describe_nat_gateways", "NatGateways", "NatGatewayId")),
    Look("ec2", "VPC endpoint", _ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId")),
    Look("ec2", "internet gateway", _ec2("describe_internet_gateways", "InternetGateways", "InternetGatewayId")),
    Look("ec2", "route table", _ec2("describe_route_tables", "RouteTables", "RouteTableId")),
    Look("ec2", "subnet", _ec2("describe_subnets", "Subnets", "SubnetId")),
    Look("ec2", "security group", _ec2("describe_security_groups", "SecurityGroups", "GroupId")),
    Look("ec2", "VPC", _ec2("describe_vpcs", "Vpcs", "VpcId")),
    Look("ec2", "launch template", _ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId")),
    Look("ec2", "placement group", _ec2("describe_placement_groups", "PlacementGroups", "GroupName")),
    Look(
        "ec2",
        "capacity reservation",
        _ec2("describe_capacity_reservations", "CapacityReservations", "CapacityReservationId"),
    ),
    Look(
        "autoscaling",
        "Auto Scaling group",
        _named("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
    ),
    Look(
        "elasticloadbalancing",
        "load balancer",
        _named("elbv2", "describe_load_balancers", "LoadBalancers", "LoadBalancerName"),
    ),
    Look("eks", "cluster", _named("eks", "list_clusters", "clusters", None)),
    Look("fsx", "file system", _file_systems),
    Look("logs", "log group", _named("logs", "describe_log_groups", "logGroups", "logGroupName")),
    Look("iam", "role", _named("iam", "list_roles", "Roles", "RoleName")),
    Look("iam", "instance profile", _named("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName")),
    Look("scheduler", "schedule", _named("scheduler", "list_schedules", "Schedules", "Name")),
    Look("budgets", "budget", _budgets),
    Look("s3", "bucket", _named("s3", "list_buckets", "Buckets", "Name")),
    Look("tagging", "anything tagged", _tagged),
)

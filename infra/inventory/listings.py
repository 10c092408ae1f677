"""How every kind of resource is listed, with the plain AWS client.

A listing knows neither Pulumi's state nor what we think we made; what of it is the campaign's is for `evidence` to say.
What of a thing may not be read is said of that thing, and the listing goes on: one locked bucket hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.inventory.stale_tags import tagged
from infra.inventory.thing import Thing, tags_of, thing
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG, buckets

ANYTHING = "anything tagged"
"""The tagging service's own view: of what has no look of its own."""
_ENDED: Mapping[str, frozenset[str]] = {
    "instance": frozenset({"terminated"}),
    "volume": frozenset({"deleted"}),
    "image": frozenset({"deregistered"}),
    "NAT gateway": frozenset({"deleted", "failed"}),
    "VPC endpoint": frozenset({"deleted"}),
    "VPC peering": frozenset({"deleted", "rejected", "failed", "expired"}),
    "placement group": frozenset({"deleted"}),
    "spot request": frozenset({"closed", "cancelled", "failed"}),
    "capacity reservation": frozenset({"expired", "cancelled", "failed", "payment-failed", "unsupported"}),
}
"""Kind -> states in which AWS still lists what is no more. Elsewhere a failed thing is there, and holds its subnet."""


@dataclass(frozen=True)
class Look:
    """A kind of resource and how all of it is listed."""

    service: str
    kind: str
    list: Callable[[Account], Iterator[Thing]]
    attributable: bool = True
    """Whether something new and untagged of this kind is worth a human's look."""


def _ended(kind: str, item: Mapping[str, Any]) -> bool:
    state = item.get("State") or item.get("Status") or ""
    if isinstance(state, Mapping):
        state = state.get("Name") or state.get("Code") or ""
    return str(state).lower() in _ENDED[kind]


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def _listed(
    service: str,
    operation: str,
    result: str,
    id_key: str,
    name_key: str | None = None,
    kind: str = "",
    **arguments: Any,
) -> Callable[[Account], Iterator[Thing]]:
    """A look through a listing whose items tell all: id, name, tags, state (which `kind` tells how to read)."""

    def listing(account: Account) -> Iterator[Thing]:
        for item in every(account.client(service), operation, result, **arguments):
            if kind not in _ENDED or not _ended(kind, item):
                yield thing(item, str(item[id_key]), str(item.get(name_key or "", "") or ""))

    return listing


def _instances(account: Account) -> Iterator[Thing]:
    for reservation in every(account.client("ec2"), "describe_instances", "Reservations"):
        for item in reservation["Instances"]:
            if not _ended("instance", item):
                yield thing(item, item["InstanceId"])


def _with_tags(
    listing: Callable[[Account], Iterator[Thing]], tags: Callable[[Account, Thing], Mapping[str, str]]
) -> Callable[[Account], Iterator[Thing]]:
    """A listing that tells no tags: they are asked for, one by one. What went away meanwhile is left out; what may not
    be read is judged by all else."""

    def with_them(account: Account) -> Iterator[Thing]:
        for one in listing(account):
            try:
                yield replace(one, tags=tags(account, one))
            except ClientError as error:
                if _code(error) == "NoSuchTagSet":
                    yield one
                elif not says_missing(error):
                    yield replace(one, unread=_code(error))

    return with_them


def _iam_tags(operation: str, parameter: str) -> Callable[[Account, Thing], Mapping[str, str]]:
    return lambda account, one: tags_of(list(every(account.client("iam"), operation, "Tags", **{parameter: one.id})))


def _bucket_tags(account: Account, one: Thing) -> Mapping[str, str]:
    return tags_of(account.client("s3").get_bucket_tagging(Bucket=one.id)["TagSet"])


def _log_group_tags(account: Account, one: Thing) -> Mapping[str, str]:
    return dict(account.client("logs").list_tags_log_group(logGroupName=one.id)["tags"])


def _parameters(account: Account) -> Iterator[Thing]:
    """The account's own: names that begin so are kept for AWS, whose public ones may be listed once they were read."""
    for one in _listed("ssm", "describe_parameters", "Parameters", *["Name"] * 2)(account):
        if not one.id.startswith("/aws/"):
            yield one


def _parameter_tags(account: Account, one: Thing) -> Mapping[str, str]:
    answer = account.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=one.id)
    return tags_of(answer["TagList"])


def _balancer_tags(account: Account, one: Thing) -> Mapping[str, str]:
    described = account.client("elbv2").describe_tags(ResourceArns=[one.id])["TagDescriptions"]
    return tags_of(described[0]["Tags"]) if described else {}


def _classic_tags(account: Account, one: Thing) -> Mapping[str, str]:
    described = account.client("elb").describe_tags(LoadBalancerNames=[one.id])["TagDescriptions"]
    return tags_of(described[0]["Tags"]) if described else {}


def _budgets(account: Account) -> Iterator[Thing]:
    owner = account.identity()["Account"]
    for item in every(account.client("budgets"), "describe_budgets", "Budgets", AccountId=owner):
        yield thing(item, item["BudgetName"], item["BudgetName"], {})


def _topics(account: Account) -> Iterator[Thing]:
    for item in every(account.client("sns"), "list_topics", "Topics"):
        yield Thing(item["TopicArn"], item["TopicArn"].rpartition(":")[2])


def _topic_tags(account: Account, one: Thing) -> Mapping[str, str]:
    return tags_of(account.client("sns").list_tags_for_resource(ResourceArn=one.id)["Tags"])


def _clusters(account: Account) -> Iterator[Thing]:
    eks = account.client("eks")
    for name in every(eks, "list_clusters", "clusters"):
        try:
            yield thing(eks.describe_cluster(name=name)["cluster"], name, name)
        except ClientError as error:
            if not says_missing(error):
                yield Thing(name, name, unread=_code(error))


def _schedules(account: Account) -> Iterator[Thing]:
    """The listing does not tell which role a schedule uses, and schedules carry no tags."""
    client = account.client("scheduler")
    for item in every(client, "list_schedules", "Schedules"):
        try:
            whole = client.get_schedule(Name=item["Name"], GroupName=item.get("GroupName", "default"))
            yield thing({**item, **whole}, item["Name"], item["Name"], {})
        except ClientError as error:
            if not says_missing(error):
                yield replace(thing(item, item["Name"], item["Name"], {}), unread=_code(error))


def _uploads(account: Account) -> Iterator[Thing]:
    """Incomplete multipart uploads bill and are shown nowhere else. Only the buckets of the region's own foundation are
    looked into: into those of another region a campaign of the same name may be archiving.

    A bucket that was there before the campaign holds what it uploaded since: one that is locked blinds this look, once
    the others have been looked into.
    """
    s3, locked = account.client("s3"), list[ClientError]()
    for bucket in vars(buckets(account.identity()["Account"], account.region)).values():
        try:
            for item in every(s3, "list_multipart_uploads", "Uploads", Bucket=bucket):
                part = item["Key"].split("/")[1] if item["Key"].startswith("campaigns/") else ""
                tags = {CAMPAIGN_TAG: part} if part else {FOUNDATION_TAG: "true"}
                yield thing(item, f"{bucket}/{item['Key']}#{item['UploadId']}", item["Key"], tags)
        except ClientError as error:
            if not says_missing(error):
                locked.append(error)
    if locked:
        raise locked[0]


def _ec2(kind: str, operation: str, result: str, id_key: str, name: str | None = None, **arguments: Any) -> Look:
    return Look("ec2", kind, _listed("ec2", operation, result, id_key, name, kind, **arguments))


LOOKS: tuple[Look, ...] = (
    Look("ec2", "instance", _instances),
    _ec2("volume", "describe_volumes", "Volumes", "VolumeId"),
    _ec2("snapshot", "describe_snapshots", "Snapshots", "SnapshotId", OwnerIds=["self"]),
    _ec2("image", "describe_images", "Images", "ImageId", "Name", Owners=["self"]),
    _ec2("network interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    _ec2("elastic address", "describe_addresses", "Addresses", "AllocationId"),
    _ec2("NAT gateway", "describe_nat_gateways", "NatGateways", "NatGatewayId"),
    _ec2("VPC endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    _ec2("VPC peering", "describe_vpc_peering_connections", "VpcPeeringConnections", "VpcPeeringConnectionId"),
    _ec2("internet gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    _ec2("route table", "describe_route_tables", "RouteTables", "RouteTableId"),
    _ec2("subnet", "describe_subnets", "Subnets", "SubnetId"),
    _ec2("security group", "describe_security_groups", "SecurityGroups", "GroupId", "GroupName"),
    _ec2("VPC", "describe_vpcs", "Vpcs", "VpcId"),
    _ec2("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", "LaunchTemplateName"),
    _ec2("placement group", "describe_placement_groups", "PlacementGroups", "GroupName", "GroupName"),
    _ec2("key pair", "describe_key_pairs", "KeyPairs", "KeyName", "KeyName"),
    _ec2("spot request", "describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId"),
    _ec2("flow log", "describe_flow_logs", "FlowLogs", "FlowLogId"),
    _ec2("capacity reservation", "describe_capacity_reservations", "CapacityReservations", "CapacityReservationId"),
    Look(
        "autoscaling",
        "Auto Scaling group",
        _listed("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", *["AutoScalingGroupName"] * 2),
    ),
    Look(
        "autoscaling",
        "launch configuration",
        _listed(
            "autoscaling", "describe_launch_configurations", "LaunchConfigurations", *["LaunchConfigurationName"] * 2
        ),
    ),
    Look(
        "elasticloadbalancing",
        "load balancer",
        _with_tags(
            _listed("elbv2", "describe_load_balancers", "LoadBalancers", "LoadBalancerArn", "LoadBalancerName"),
            _balancer_tags,
        ),
    ),
    Look(
        "elasticloadbalancing",
        "target group",
        _with_tags(
            _listed("elbv2", "describe_target_groups", "TargetGroups", "TargetGroupArn", "TargetGroupName"),
            _balancer_tags,
        ),
    ),
    Look(
        "elasticloadbalancing",
        "classic load balancer",
        _with_tags(
            _listed("elb", "describe_load_balancers", "LoadBalancerDescriptions", *["LoadBalancerName"] * 2),
            _classic_tags,
        ),
    ),
    Look("eks", "cluster", _clusters),
    Look("fsx", "file system", _listed("fsx", "describe_file_systems", "FileSystems", "FileSystemId")),
    Look(
        "logs",
        "log group",
        _with_tags(_listed("logs", "describe_log_groups", "logGroups", *["logGroupName"] * 2), _log_group_tags),
    ),
    Look(
        "iam",
        "role",
        _with_tags(_listed("iam", "list_roles", "Roles", *["RoleName"] * 2), _iam_tags("list_role_tags", "RoleName")),
    ),
    Look(
        "iam",
        "instance profile",
        _with_tags(
            _listed("iam", "list_instance_profiles", "InstanceProfiles", *["InstanceProfileName"] * 2),
            _iam_tags("list_instance_profile_tags", "InstanceProfileName"),
        ),
    ),
    Look(
        "iam",
        "policy",
        _with_tags(
            _listed("iam", "list_policies", "Policies", "Arn", "PolicyName", Scope="Local"),
            _iam_tags("list_policy_tags", "PolicyArn"),
        ),
    ),
    Look("scheduler", "schedule", _schedules),
    Look("events", "rule", _listed("events", "list_rules", "Rules", *["Name"] * 2)),
    Look(
        "ssm",
        "parameter",
        _with_tags(_parameters, _parameter_tags),
    ),
    Look("budgets", "budget", _budgets),
    Look("sns", "topic", _with_tags(_topics, _topic_tags)),
    Look("cloudwatch", "alarm", _listed("cloudwatch", "describe_alarms", "MetricAlarms", *["AlarmName"] * 2)),
    Look("s3", "bucket", _with_tags(_listed("s3", "list_buckets", "Buckets", *["Name"] * 2), _bucket_tags)),
    Look("s3", "incomplete upload", _uploads),
    Look("tagging", ANYTHING, tagged, attributable=False),
)

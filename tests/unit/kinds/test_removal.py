"""How each kind is removed: which calls AWS gets for it, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.inventory import ANYTHING, LOOKS
from infra.kinds import KINDS, Thing, kind_named
from infra.kinds.listed import is_gone
from tests.tables import Table
from tests.unit.kinds.aws_by_model import ByModel

TABLE = Table(__file__)

Call = tuple[str, dict[str, Any]]


def removed(kind: str, id: str = "x-000000001", **answers: Any) -> list[Call]:
    """The calls that change something."""
    service = kind_named(kind).service
    account = ByModel({f"{service}.{operation}": answer for operation, answer in answers.items()})
    kind_named(kind).remove(account, Thing(id))  # type: ignore[misc]
    return account.changes


PLAIN: dict[str, Call] = {
    "schedule": ("scheduler.delete_schedule", {"Name": "x-000000001", "GroupName": "default"}),
    "Auto Scaling group": (
        "autoscaling.delete_auto_scaling_group", {"AutoScalingGroupName": "x-000000001", "ForceDelete": True},
    ),
    "launch configuration": ("autoscaling.delete_launch_configuration", {"LaunchConfigurationName": "x-000000001"}),
    "spot request": ("ec2.cancel_spot_instance_requests", {"SpotInstanceRequestIds": ["x-000000001"]}),
    "instance": ("ec2.terminate_instances", {"InstanceIds": ["x-000000001"]}),
    "load balancer": ("elbv2.delete_load_balancer", {"LoadBalancerArn": "x-000000001"}),
    "classic load balancer": ("elb.delete_load_balancer", {"LoadBalancerName": "x-000000001"}),
    "target group": ("elbv2.delete_target_group", {"TargetGroupArn": "x-000000001"}),
    "file system": ("fsx.delete_file_system", {"FileSystemId": "x-000000001"}),
    "NAT gateway": ("ec2.delete_nat_gateway", {"NatGatewayId": "x-000000001"}),
    "VPC endpoint": ("ec2.delete_vpc_endpoints", {"VpcEndpointIds": ["x-000000001"]}),
    "VPC peering": ("ec2.delete_vpc_peering_connection", {"VpcPeeringConnectionId": "x-000000001"}),
    "flow log": ("ec2.delete_flow_logs", {"FlowLogIds": ["x-000000001"]}),
    "image": ("ec2.deregister_image", {"ImageId": "x-000000001"}),
    "snapshot": ("ec2.delete_snapshot", {"SnapshotId": "x-000000001"}),
    "volume": ("ec2.delete_volume", {"VolumeId": "x-000000001"}),
    "launch template": ("ec2.delete_launch_template", {"LaunchTemplateId": "x-000000001"}),
    "placement group": ("ec2.delete_placement_group", {"GroupName": "x-000000001"}),
    "capacity reservation": ("ec2.cancel_capacity_reservation", {"CapacityReservationId": "x-000000001"}),
    "key pair": ("ec2.delete_key_pair", {"KeyName": "x-000000001"}),
    "subnet": ("ec2.delete_subnet", {"SubnetId": "x-000000001"}),
    "VPC": ("ec2.delete_vpc", {"VpcId": "x-000000001"}),
    "parameter": ("ssm.delete_parameter", {"Name": "x-000000001"}),
    "alarm": ("cloudwatch.delete_alarms", {"AlarmNames": ["x-000000001"]}),
    "log group": ("logs.delete_log_group", {"logGroupName": "x-000000001"}),
    "budget": ("budgets.delete_budget", {"AccountId": "123456789012", "BudgetName": "x-000000001"}),
    "topic": ("sns.delete_topic", {"TopicArn": "x-000000001"}),
    "bucket": ("s3.delete_bucket", {"Bucket": "x-000000001"}),
}  # fmt: skip
"""By AWS's own reference; what is missing here takes more than one call."""
SEVERAL = {
    "rule", "cluster", "network interface", "elastic address", "security group", "route table", "internet gateway",
    "instance profile", "role", "policy", "incomplete upload",
}  # fmt: skip


@pytest.mark.parametrize("kind", list(PLAIN))
def test_one_call_removes_what_nothing_of_its_own_holds(kind: str) -> None:
    assert removed(kind) == [PLAIN[kind]]


def test_a_schedule_is_removed_from_its_own_group() -> None:
    """Names are unique within a group only: without the group AWS deletes the default group's namesake."""
    schedules = {"Schedules": [{"Name": "one", "GroupName": "night"}, {"Name": "one", "GroupName": "default"}]}
    account = ByModel({"scheduler.list_schedules": schedules, "scheduler.get_schedule": {}})
    kind = kind_named("schedule")
    rows = list(kind.things(account))
    assert [(row.id, row.name) for row in rows] == [("night/one", "one"), ("one", "one")]
    for one in rows:
        kind.remove(account, one)  # type: ignore[misc]
    assert account.changes == [
        ("scheduler.delete_schedule", {"Name": "one", "GroupName": "night"}),
        ("scheduler.delete_schedule", {"Name": "one", "GroupName": "default"}),
    ]


def test_whatever_is_listed_can_be_removed() -> None:
    removable = {kind.name for kind in KINDS if kind.remove}
    assert PLAIN.keys() | SEVERAL == removable == {look.name for look in LOOKS} - {ANYTHING.name}


def test_a_cluster_goes_after_all_of_its_node_groups() -> None:
    assert removed("cluster", "c", list_nodegroups={"nodegroups": ["gpu", "system"]}) == [
        ("eks.delete_nodegroup", {"clusterName": "c", "nodegroupName": "gpu"}),
        ("eks.delete_nodegroup", {"clusterName": "c", "nodegroupName": "system"}),
        ("eks.delete_cluster", {"name": "c"}),
    ]


@pytest.mark.parametrize(
    ("attachment", "detached"),
    [
        ({"AttachmentId": "a-1", "DeviceIndex": 1}, True),
        ({"AttachmentId": "a-1", "DeviceIndex": 2}, True),
        ({"AttachmentId": "a-1", "DeviceIndex": 0}, False),
        ({"DeviceIndex": 1}, False),
        (None, False),
    ],
    ids=["second", "third", "an instance's first", "nobody's", "free"],
)
def test_an_interface_is_detached_by_force_unless_it_is_an_instances_first(
    attachment: dict[str, Any] | None, detached: bool
) -> None:
    item = {} if attachment is None else {"Attachment": attachment}
    calls = removed("network interface", describe_network_interfaces={"NetworkInterfaces": [item]})
    assert calls[-1] == ("ec2.delete_network_interface", {"NetworkInterfaceId": "x-000000001"})
    assert calls[:-1] == [("ec2.detach_network_interface", {"AttachmentId": "a-1", "Force": True})] * detached


@pytest.mark.parametrize("used", [True, False])
def test_an_address_is_taken_from_who_uses_it(used: bool) -> None:
    item = {"AssociationId": "as-1"} if used else {}
    calls = removed("elastic address", describe_addresses={"Addresses": [item]})
    assert calls[-1] == ("ec2.release_address", {"AllocationId": "x-000000001"})
    assert calls[:-1] == [("ec2.disassociate_address", {"AssociationId": "as-1"})] * used


def test_an_internet_gateway_is_detached_from_every_network() -> None:
    seen = {"InternetGateways": [{"Attachments": [{"VpcId": "vpc-1"}, {"VpcId": "vpc-2"}]}]}
    assert removed("internet gateway", describe_internet_gateways=seen) == [
        ("ec2.detach_internet_gateway", {"InternetGatewayId": "x-000000001", "VpcId": "vpc-1"}),
        ("ec2.detach_internet_gateway", {"InternetGatewayId": "x-000000001", "VpcId": "vpc-2"}),
        ("ec2.delete_internet_gateway", {"InternetGatewayId": "x-000000001"}),
    ]
    free = removed("internet gateway", describe_internet_gateways={"InternetGateways": [{}]})
    assert free == [("ec2.delete_internet_gateway", {"InternetGatewayId": "x-000000001"})]


def test_a_route_table_lets_go_of_its_subnets_and_a_main_one_is_left_to_its_network() -> None:
    links = [{"RouteTableAssociationId": "a-1", "Main": False}, {"RouteTableAssociationId": "a-2"}]
    assert removed("route table", describe_route_tables={"RouteTables": [{"Associations": links}]}) == [
        ("ec2.disassociate_route_table", {"AssociationId": "a-1"}),
        ("ec2.disassociate_route_table", {"AssociationId": "a-2"}),
        ("ec2.delete_route_table", {"RouteTableId": "x-000000001"}),
    ]
    main = [*links, {"RouteTableAssociationId": "a-3", "Main": True}]
    assert removed("route table", describe_route_tables={"RouteTables": [{"Associations": main}]}) == []


def test_a_security_group_loses_its_rules_first_and_a_default_one_is_left_to_its_network() -> None:
    rules = {"IpPermissions": [{"IpProtocol": "-1"}], "IpPermissionsEgress": [{"IpProtocol": "tcp"}]}
    delete = ("ec2.delete_security_group", {"GroupId": "x-000000001"})

    def calls(**group: Any) -> list[Call]:
        seen = {"SecurityGroups": [{"GroupName": "lustre", **group}]}
        return removed("security group", describe_security_groups=seen)

    assert calls(**rules) == [
        ("ec2.revoke_security_group_ingress", {"GroupId": "x-000000001", "IpPermissions": [{"IpProtocol": "-1"}]}),
        ("ec2.revoke_security_group_egress", {"GroupId": "x-000000001", "IpPermissions": [{"IpProtocol": "tcp"}]}),
        delete,
    ]
    assert calls() == calls(IpPermissions=[], IpPermissionsEgress=[]) == [delete]
    assert calls(GroupName="default", **rules) == []


ATTACHED = ("arn:aws:iam::1:policy/1", "arn:aws:iam::1:policy/2")


def test_a_role_leaves_its_profiles_and_loses_every_policy_first() -> None:
    calls = removed(
        "role", "r",
        list_instance_profiles_for_role={"InstanceProfiles": [{"InstanceProfileName": n} for n in ("p-1", "p-2")]},
        list_attached_role_policies={"AttachedPolicies": [{"PolicyArn": n} for n in ATTACHED]},
        list_role_policies={"PolicyNames": ["in-1", "in-2"]},
    )  # fmt: skip
    assert calls == [
        ("iam.remove_role_from_instance_profile", {"InstanceProfileName": "p-1", "RoleName": "r"}),
        ("iam.remove_role_from_instance_profile", {"InstanceProfileName": "p-2", "RoleName": "r"}),
        *(("iam.detach_role_policy", {"RoleName": "r", "PolicyArn": n}) for n in ATTACHED),
        *(("iam.delete_role_policy", {"RoleName": "r", "PolicyName": n}) for n in ("in-1", "in-2")),
        ("iam.delete_role", {"RoleName": "r"}),
    ]  # fmt: skip


def test_an_instance_profile_lets_go_of_its_roles() -> None:
    seen = {"InstanceProfile": {"Roles": [{"RoleName": "r-1"}, {"RoleName": "r-2"}]}}
    assert removed("instance profile", "p", get_instance_profile=seen) == [
        ("iam.remove_role_from_instance_profile", {"InstanceProfileName": "p", "RoleName": "r-1"}),
        ("iam.remove_role_from_instance_profile", {"InstanceProfileName": "p", "RoleName": "r-2"}),
        ("iam.delete_instance_profile", {"InstanceProfileName": "p"}),
    ]  # fmt: skip


def test_a_policy_leaves_every_role_and_loses_all_versions_but_its_default_one_first() -> None:
    versions = [{"VersionId": f"v{n}", "IsDefaultVersion": n == 2} for n in (1, 2, 3)]
    calls = removed(
        "policy", "arn:aws:iam::1:policy/p",
        list_entities_for_policy={"PolicyRoles": [{"RoleName": "r-1"}, {"RoleName": "r-2"}]},
        list_policy_versions={"Versions": versions},
    )  # fmt: skip
    assert calls == [
        *(("iam.detach_role_policy", {"RoleName": n, "PolicyArn": "arn:aws:iam::1:policy/p"}) for n in ("r-1", "r-2")),
        *(
            ("iam.delete_policy_version", {"PolicyArn": "arn:aws:iam::1:policy/p", "VersionId": n})
            for n in ("v1", "v3")
        ),
        ("iam.delete_policy", {"PolicyArn": "arn:aws:iam::1:policy/p"}),
    ]


def test_a_rule_loses_its_targets_first() -> None:
    targets = {"Targets": [{"Id": "t-1"}, {"Id": "t-2"}]}
    delete = ("events.delete_rule", {"Name": "x-000000001"})
    assert removed("rule", list_targets_by_rule=targets) == [
        ("events.remove_targets", {"Rule": "x-000000001", "Ids": ["t-1", "t-2"]}), delete,
    ]  # fmt: skip
    assert removed("rule", list_targets_by_rule={"Targets": []}) == [delete], "AWS refuses a call without targets"


def test_an_upload_is_ended_in_its_bucket_under_its_whole_key() -> None:
    assert removed("incomplete upload", "bucket/campaigns/train/golden/a#b.bin#u-1") == [
        ("s3.abort_multipart_upload",
         {"Bucket": "bucket", "Key": "campaigns/train/golden/a#b.bin", "UploadId": "u-1"}),
    ]  # fmt: skip


@TABLE.cases
def test_gone_is_what_aws_says_is_not_there_each_service_in_words_of_its_own(
    code: str, message: str, gone: bool
) -> None:
    assert is_gone(ClientError({"Error": {"Code": code, "Message": message}}, "Delete")) is gone

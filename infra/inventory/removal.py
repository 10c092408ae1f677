"""How each kind of resource is removed, in the order in which they let go of each other. Gone already is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.inventory.thing import Thing

Remove = Callable[[Account, Thing], None]


def _call(service: str, operation: str, parameter: str, **more: Any) -> Remove:
    """One call that takes the thing's id."""

    def remove(account: Account, one: Thing) -> None:
        getattr(account.client(service), operation)(**{parameter: one.id}, **more)

    return remove


def _instance(account: Account, one: Thing) -> None:
    account.client("ec2").terminate_instances(InstanceIds=[one.id])


def _cluster(account: Account, one: Thing) -> None:
    """A cluster goes after its node groups, which take their machines with them."""
    eks = account.client("eks")
    for page in eks.get_paginator("list_nodegroups").paginate(clusterName=one.id):
        for group in page["nodegroups"]:
            eks.delete_nodegroup(clusterName=one.id, nodegroupName=group)
    eks.delete_cluster(name=one.id)


def _interface(account: Account, one: Thing) -> None:
    ec2 = account.client("ec2")
    seen = ec2.describe_network_interfaces(NetworkInterfaceIds=[one.id])["NetworkInterfaces"]
    for item in seen:
        attachment = item.get("Attachment") or {}
        if attachment.get("AttachmentId") and attachment.get("DeviceIndex") != 0:
            ec2.detach_network_interface(AttachmentId=attachment["AttachmentId"], Force=True)
    ec2.delete_network_interface(NetworkInterfaceId=one.id)


def _address(account: Account, one: Thing) -> None:
    ec2 = account.client("ec2")
    for item in ec2.describe_addresses(AllocationIds=[one.id])["Addresses"]:
        if item.get("AssociationId"):
            ec2.disassociate_address(AssociationId=item["AssociationId"])
    ec2.release_address(AllocationId=one.id)


def _internet_gateway(account: Account, one: Thing) -> None:
    ec2 = account.client("ec2")
    for item in ec2.describe_internet_gateways(InternetGatewayIds=[one.id])["InternetGateways"]:
        for attachment in item.get("Attachments", ()):
            ec2.detach_internet_gateway(InternetGatewayId=one.id, VpcId=attachment["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=one.id)


def _route_table(account: Account, one: Thing) -> None:
    """The main table of a VPC goes with it."""
    ec2 = account.client("ec2")
    for table in ec2.describe_route_tables(RouteTableIds=[one.id])["RouteTables"]:
        if any(link.get("Main") for link in table["Associations"]):
            return
        for link in table["Associations"]:
            ec2.disassociate_route_table(AssociationId=link["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=one.id)


def _security_group(account: Account, one: Thing) -> None:
    """Rules first: groups that name each other hold each other. The default group goes with its VPC."""
    ec2 = account.client("ec2")
    for group in ec2.describe_security_groups(GroupIds=[one.id])["SecurityGroups"]:
        if group["GroupName"] == "default":
            return
        if group.get("IpPermissions"):
            ec2.revoke_security_group_ingress(GroupId=one.id, IpPermissions=group["IpPermissions"])
        if group.get("IpPermissionsEgress"):
            ec2.revoke_security_group_egress(GroupId=one.id, IpPermissions=group["IpPermissionsEgress"])
    ec2.delete_security_group(GroupId=one.id)


def _role(account: Account, one: Thing) -> None:
    iam, name = account.client("iam"), one.id
    for profile in list(every(iam, "list_instance_profiles_for_role", "InstanceProfiles", RoleName=name)):
        iam.remove_role_from_instance_profile(InstanceProfileName=profile["InstanceProfileName"], RoleName=name)
    for policy in list(every(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=name)):
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for inline in list(every(iam, "list_role_policies", "PolicyNames", RoleName=name)):
        iam.delete_role_policy(RoleName=name, PolicyName=inline)
    iam.delete_role(RoleName=name)


def _instance_profile(account: Account, one: Thing) -> None:
    iam = account.client("iam")
    profile = iam.get_instance_profile(InstanceProfileName=one.id)["InstanceProfile"]
    for role in profile["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=one.id, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=one.id)


def _policy(account: Account, one: Thing) -> None:
    iam = account.client("iam")
    for role in list(every(iam, "list_entities_for_policy", "PolicyRoles", PolicyArn=one.id)):
        iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=one.id)
    for version in list(every(iam, "list_policy_versions", "Versions", PolicyArn=one.id)):
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=one.id, VersionId=version["VersionId"])
    iam.delete_policy(PolicyArn=one.id)


def _schedule(account: Account, one: Thing) -> None:
    account.client("scheduler").delete_schedule(Name=one.id)


def _rule(account: Account, one: Thing) -> None:
    events = account.client("events")
    targets = [target["Id"] for target in every(events, "list_targets_by_rule", "Targets", Rule=one.id)]
    if targets:
        events.remove_targets(Rule=one.id, Ids=targets)
    events.delete_rule(Name=one.id)


def _budget(account: Account, one: Thing) -> None:
    account.client("budgets").delete_budget(AccountId=account.identity()["Account"], BudgetName=one.id)


def _upload(account: Account, one: Thing) -> None:
    where, _, upload = one.id.rpartition("#")
    bucket, _, key = where.partition("/")
    account.client("s3").abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)


REMOVERS: dict[str, Remove] = {
    "schedule": _schedule,
    "rule": _rule,
    "Auto Scaling group": _call("autoscaling", "delete_auto_scaling_group", "AutoScalingGroupName", ForceDelete=True),
    "launch configuration": _call("autoscaling", "delete_launch_configuration", "LaunchConfigurationName"),
    "spot request": lambda account, one: account.client("ec2").cancel_spot_instance_requests(
        SpotInstanceRequestIds=[one.id]
    ),
    "cluster": _cluster,
    "instance": _instance,
    "load balancer": _call("elbv2", "delete_load_balancer", "LoadBalancerArn"),
    "classic load balancer": _call("elb", "delete_load_balancer", "LoadBalancerName"),
    "target group": _call("elbv2", "delete_target_group", "TargetGroupArn"),
    "file system": _call("fsx", "delete_file_system", "FileSystemId"),
    "NAT gateway": _call("ec2", "delete_nat_gateway", "NatGatewayId"),
    "VPC endpoint": lambda account, one: account.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[one.id]),
    "VPC peering": _call("ec2", "delete_vpc_peering_connection", "VpcPeeringConnectionId"),
    "flow log": lambda account, one: account.client("ec2").delete_flow_logs(FlowLogIds=[one.id]),
    "network interface": _interface,
    "elastic address": _address,
    "image": _call("ec2", "deregister_image", "ImageId"),
    "snapshot": _call("ec2", "delete_snapshot", "SnapshotId"),
    "volume": _call("ec2", "delete_volume", "VolumeId"),
    "launch template": _call("ec2", "delete_launch_template", "LaunchTemplateId"),
    "placement group": _call("ec2", "delete_placement_group", "GroupName"),
    "capacity reservation": _call("ec2", "cancel_capacity_reservation", "CapacityReservationId"),
    "key pair": _call("ec2", "delete_key_pair", "KeyName"),
    "security group": _security_group,
    "route table": _route_table,
    "internet gateway": _internet_gateway,
    "subnet": _call("ec2", "delete_subnet", "SubnetId"),
    "VPC": _call("ec2", "delete_vpc", "VpcId"),
    "instance profile": _instance_profile,
    "role": _role,
    "policy": _policy,
    "parameter": _call("ssm", "delete_parameter", "Name"),
    "alarm": lambda account, one: account.client("cloudwatch").delete_alarms(AlarmNames=[one.id]),
    "log group": _call("logs", "delete_log_group", "logGroupName"),
    "budget": _budget,
    "topic": _call("sns", "delete_topic", "TopicArn"),
    "incomplete upload": _upload,
    # Empty ones only: S3 itself refuses to delete what still holds data.
    "bucket": _call("s3", "delete_bucket", "Bucket"),
}
"""In the order of removal: what holds others comes first."""


def is_gone(error: ClientError) -> bool:
    code = error.response.get("Error", {}).get("Code", "")
    return says_missing(error) or "Unknown" in code or (code == "ValidationError" and "not found" in str(error).lower())

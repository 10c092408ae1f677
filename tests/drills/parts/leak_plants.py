"""Leaks to plant: one function per kind, each makes one thing with these tags, in or out of the campaign's place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tags = dict[str, str]


@dataclass(frozen=True)
class Place:
    """Where a leak is planted: the campaign's own network, or somebody else's."""

    vpc: str
    subnet: str
    group: str
    volume: str
    instance_role: str


def listed(tags: Tags) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def specified(kind: str, tags: Tags) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": listed(tags)}]} if tags else {}


def volume(aws: Any, place: Place, name: str, tags: Tags) -> str:
    return aws("ec2").create_volume(AvailabilityZone="us-east-1a", Size=1, **specified("volume", tags))["VolumeId"]


def snapshot(aws: Any, place: Place, name: str, tags: Tags) -> str:
    return aws("ec2").create_snapshot(VolumeId=place.volume, **specified("snapshot", tags))["SnapshotId"]


def image(aws: Any, place: Place, name: str, tags: Tags) -> str:
    mapping = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]
    image_id = aws("ec2").register_image(Name=name, RootDeviceName="/dev/sda1", BlockDeviceMappings=mapping)["ImageId"]
    if tags:
        aws("ec2").create_tags(Resources=[image_id], Tags=listed(tags))
    return image_id


def interface(aws: Any, place: Place, name: str, tags: Tags) -> str:
    made = aws("ec2").create_network_interface(SubnetId=place.subnet, **specified("network-interface", tags))
    return made["NetworkInterface"]["NetworkInterfaceId"]


def group(aws: Any, place: Place, name: str, tags: Tags) -> str:
    return aws("ec2").create_security_group(
        GroupName=name, Description=tags.get("note", "left"), VpcId=place.vpc, **specified("security-group", tags)
    )["GroupId"]


def address(aws: Any, place: Place, name: str, tags: Tags) -> str:
    return aws("ec2").allocate_address(Domain="vpc", **specified("elastic-ip", tags))["AllocationId"]


def template(aws: Any, place: Place, name: str, tags: Tags) -> str:
    return aws("ec2").create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"InstanceType": "m5.large"}, **specified("launch-template", tags)
    )["LaunchTemplate"]["LaunchTemplateId"]


def placement(aws: Any, place: Place, name: str, tags: Tags) -> str:
    aws("ec2").create_placement_group(GroupName=name, Strategy="cluster", **specified("placement-group", tags))
    return name


def balancer(aws: Any, place: Place, name: str, tags: Tags) -> str:
    extra = {"Tags": listed(tags)} if tags else {}
    made = aws("elbv2").create_load_balancer(Name=name, Subnets=[place.subnet], Type="network", **extra)
    return made["LoadBalancers"][0]["LoadBalancerArn"]


def file_system(aws: Any, place: Place, name: str, tags: Tags) -> str:
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125}
    extra = {"Tags": listed(tags)} if tags else {}
    made = aws("fsx").create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[place.subnet], SecurityGroupIds=[place.group],
        LustreConfiguration=lustre, **extra,
    )  # fmt: skip
    return made["FileSystem"]["FileSystemId"]


def reservation(aws: Any, place: Place, name: str, tags: Tags) -> str:
    return aws("ec2").create_capacity_reservation(
        InstanceType="m5.large", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=1,
        **specified("capacity-reservation", tags),
    )["CapacityReservation"]["CapacityReservationId"]  # fmt: skip


def log_group(aws: Any, place: Place, name: str, tags: Tags) -> str:
    aws("logs").create_log_group(logGroupName=name, **({"tags": tags} if tags else {}))
    return name


def role(aws: Any, place: Place, name: str, tags: Tags) -> str:
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    aws("iam").create_role(RoleName=name, AssumeRolePolicyDocument=trust, Tags=listed(tags))
    return name


def policy(aws: Any, place: Place, name: str, tags: Tags) -> str:
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    return aws("iam").create_policy(PolicyName=name, PolicyDocument=document, Tags=listed(tags))["Policy"]["Arn"]


def bucket(aws: Any, place: Place, name: str, tags: Tags) -> str:
    aws("s3").create_bucket(Bucket=name)
    if tags:
        aws("s3").put_bucket_tagging(Bucket=name, Tagging={"TagSet": listed(tags)})
    return name


def parameter(aws: Any, place: Place, name: str, tags: Tags) -> str:
    aws("ssm").put_parameter(Name=name, Value="1", Type="String", **({"Tags": listed(tags)} if tags else {}))
    return name


def schedule(aws: Any, place: Place, name: str, tags: Tags) -> str:
    """Schedules carry no tags of their own: a leaked one is known by the role that it uses."""
    aws("scheduler").create_schedule(
        Name=name, ScheduleExpression="rate(1 days)", FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig", "RoleArn": place.instance_role,
                "Input": json.dumps({"ClusterName": "c", "NodegroupName": "n"})},
    )  # fmt: skip
    return name


def alarm(aws: Any, place: Place, name: str, tags: Tags) -> str:
    """Watches a network, and lies in none."""
    aws("cloudwatch").put_metric_alarm(
        AlarmName=name, Namespace="AWS/NATGateway", MetricName="BytesOutToDestination", Statistic="Sum", Period=60,
        EvaluationPeriods=1, Threshold=1.0, ComparisonOperator="GreaterThanThreshold",
        Dimensions=[{"Name": "VpcId", "Value": place.vpc}],
    )  # fmt: skip
    return name


@dataclass(frozen=True)
class Plant:
    kind: str
    make: Callable[[Any, Place, str, Tags], str]
    tagged: bool = True
    placed: bool = False
    """Whether being tied to the campaign's place shows in its description."""
    inside: bool = False
    """Whether that tie is to lie in the campaign's network, which proves whose it is."""
    retag: str | None = None
    """Service by which it can be tagged later: ec2."""


LOG_GROUP, ROLE = Plant("log group", log_group), Plant("role", role)
PLANTS = (
    Plant("volume", volume, retag="ec2"),
    Plant("snapshot", snapshot, placed=True, retag="ec2"),
    Plant("image", image, retag="ec2"),
    Plant("network interface", interface, placed=True, inside=True, retag="ec2"),
    Plant("security group", group, placed=True, inside=True, retag="ec2"),
    Plant("elastic address", address, retag="ec2"),
    Plant("launch template", template, retag="ec2"),
    Plant("placement group", placement),
    Plant("load balancer", balancer, placed=True, inside=True),
    Plant("file system", file_system, placed=True, inside=True),
    Plant("capacity reservation", reservation, retag="ec2"),
    LOG_GROUP,
    ROLE,
    Plant("policy", policy),
    Plant("bucket", bucket),
    Plant("parameter", parameter),
    Plant("schedule", schedule, tagged=False, placed=True),
    Plant("alarm", alarm, tagged=False, placed=True),
)

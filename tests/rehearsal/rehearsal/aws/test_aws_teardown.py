"""Schedules, capacity, budgets, tags and the teardown of a VPC in the emulated AWS, through boto3 over HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from infra.plan.catalogue import instance_type
from infra.rehearsal.aws.ec2 import residual
from infra.rehearsal.aws.world import World
from infra.spec.campaign import Capacity, Nodes
from infra.stack.cluster.nodes import purchase
from tests.rehearsal.aws_account import Account, code_of, launch, make_role, pitch_lustre, state_of, until


def runs(world: World, name: str) -> list[dict[str, Any]]:
    path = world.work / "aws" / "schedule-runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["schedule"].endswith(f"/{name}")]


def schedule(aws: Account, name: str, role: str, **changes: Any) -> dict[str, Any]:
    when = (datetime.now(UTC) + timedelta(seconds=1)).strftime("at(%Y-%m-%dT%H:%M:%S)")
    scaling = {"AutoScalingGroupName": "nodes", "MinSize": 0, "DesiredCapacity": 0}
    request = {
        "Name": name,
        "ScheduleExpression": when,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": "arn:aws:scheduler:::aws-sdk:autoscaling:updateAutoScalingGroup",
            "RoleArn": role,
            "Input": json.dumps(scaling),
            "RetryPolicy": {"MaximumRetryAttempts": 0},
        },
    }
    return aws.scheduler.create_schedule(**(request | changes))


def test_a_deadline_fires_as_its_role_and_is_gone_afterwards(
    world: World, aws: Account, network: SimpleNamespace
) -> None:
    image = next(image for image in world.backend("ec2").amis if image.startswith("ami-"))
    data = {"ImageId": image, "InstanceType": "m5.large"}
    aws.ec2.create_launch_template(LaunchTemplateName="nodes", LaunchTemplateData=data)
    template = {"LaunchTemplateName": "nodes", "Version": "1"}
    sizes = {"MinSize": 0, "MaxSize": 2, "DesiredCapacity": 0}
    group = {"AutoScalingGroupName": "nodes", "LaunchTemplate": template, "VPCZoneIdentifier": network.subnet}
    aws.autoscaling.create_auto_scaling_group(**group, **sizes)
    allowed = {"Effect": "Allow", "Action": "autoscaling:UpdateAutoScalingGroup", "Resource": "*"}
    may = make_role(aws, "guard", "scheduler.amazonaws.com", allowed)
    may_not = make_role(aws, "weak", "scheduler.amazonaws.com", allowed | {"Action": "autoscaling:Describe*"})
    schedule(aws, "deadline", may)
    schedule(aws, "denied", may_not, ActionAfterCompletion="NONE")
    assert until(lambda: runs(world, "deadline"))[0]["error"] is None
    assert "AccessDenied" in until(lambda: runs(world, "denied"))[0]["error"]
    until(lambda: [one["Name"] for one in aws.scheduler.list_schedules()["Schedules"]] == ["denied"])
    aws.scheduler.delete_schedule(Name="denied")
    aws.autoscaling.delete_auto_scaling_group(AutoScalingGroupName="nodes")


def test_a_schedule_that_could_never_work_is_refused_when_it_is_made(aws: Account) -> None:
    allowed = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    role = make_role(aws, "scaler", "scheduler.amazonaws.com", allowed)
    stranger = make_role(aws, "stranger", "ec2.amazonaws.com", allowed)
    assert code_of(lambda: schedule(aws, "x", stranger)) == "ValidationException"
    assert code_of(lambda: schedule(aws, "x", role, ScheduleExpression="at(tomorrow)")) == "ValidationException"
    camel = {"clusterName": "c", "nodegroupName": "n", "scalingConfig": {"minSize": 0}}
    eks = {"Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig", "RoleArn": role}
    assert code_of(lambda: schedule(aws, "x", role, Target=eks | {"Input": json.dumps(camel)})) == "ValidationException"
    pascal = {"ClusterName": "c", "NodegroupName": "n", "ScalingConfig": {"MinSize": 0, "DesiredSize": 0}}
    schedule(aws, "x", role, Target=eks | {"Input": json.dumps(pascal)}, ScheduleExpression="at(2099-01-01T00:00:00)")
    assert aws.scheduler.get_schedule(Name="x")["ActionAfterCompletion"] == "DELETE"
    aws.scheduler.delete_schedule(Name="x")


def test_a_placement_group_is_in_use_until_its_instances_are_terminated(world: World, aws: Account) -> None:
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "bivouac:campaign", "Value": "k2"}]}]
    aws.ec2.create_placement_group(GroupName="rack", Strategy="cluster", TagSpecifications=tags)
    groups = aws.ec2.describe_placement_groups(Filters=[{"Name": "tag:bivouac:campaign", "Values": ["k2"]}])
    assert [group["GroupName"] for group in groups["PlacementGroups"]] == ["rack"]
    duplicate = code_of(lambda: aws.ec2.create_placement_group(GroupName="rack", Strategy="cluster"))
    assert duplicate == "InvalidPlacementGroup.Duplicate"
    assert code_of(lambda: launch(world, Placement={"GroupName": "none"})) == "InvalidPlacementGroup.Unknown"
    user = launch(world, Placement={"GroupName": "rack"})
    assert code_of(lambda: aws.ec2.delete_placement_group(GroupName="rack")) == "InvalidPlacementGroup.InUse"
    aws.ec2.terminate_instances(InstanceIds=[user])
    until(lambda: state_of(aws, user) == "terminated")
    aws.ec2.delete_placement_group(GroupName="rack")
    gone = code_of(lambda: aws.ec2.describe_placement_groups(GroupNames=["rack"]))
    assert gone == "InvalidPlacementGroup.Unknown"


def test_capacity_can_be_reserved_and_blocks_bought_but_not_cancelled(aws: Account) -> None:
    request = {"InstanceType": "g5.xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    end = datetime.now(UTC) + timedelta(hours=2)
    made = aws.ec2.create_capacity_reservation(**request, InstanceCount=2, EndDateType="limited", EndDate=end)
    reservation_id = made["CapacityReservation"]["CapacityReservationId"]
    reservations = aws.ec2.describe_capacity_reservations(Filters=[{"Name": "state", "Values": ["active"]}])
    assert [
        (reservation["CapacityReservationId"], reservation["AvailableInstanceCount"])
        for reservation in reservations["CapacityReservations"]
    ] == [(reservation_id, 2)]
    aws.ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=1)
    aws.ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    reservations = aws.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])[
        "CapacityReservations"
    ]
    assert reservations[0]["State"] == "cancelled"
    wanted = {"InstanceType": "p5.48xlarge", "InstanceCount": 1, "CapacityDurationHours": 24}
    offering = aws.ec2.describe_capacity_block_offerings(**wanted)["CapacityBlockOfferings"][0]
    assert float(offering["UpfrontFee"]) > 0
    block = aws.ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offering["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    assert (block["State"], block["ReservationType"]) == ("payment-pending", "capacity-block")
    cancel = code_of(lambda: aws.ec2.cancel_capacity_reservation(CapacityReservationId=block["CapacityReservationId"]))
    assert cancel == "UnsupportedOperation"


def test_quotas_and_offerings_can_be_read(world: World, aws: Account) -> None:
    quota = aws.service_quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]
    assert (quota["QuotaName"], quota["Value"]) == ("Running On-Demand P instances", 1536.0)
    (world.work / "aws").mkdir(exist_ok=True)
    (world.work / "aws" / "quotas.json").write_text('{"L-417A185B": 0}')
    assert aws.service_quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]["Value"] == 0.0
    unknown = code_of(lambda: aws.service_quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-00000000"))
    assert unknown == "NoSuchResourceException"
    by_type = [{"Name": "instance-type", "Values": ["p5.48xlarge"]}]
    offered = aws.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=by_type)
    assert offered["InstanceTypeOfferings"]


def test_a_budget_shows_its_subscribers_and_tags(world: World, aws: Account) -> None:
    limit = {"Amount": "100", "Unit": "USD"}
    budget = {"BudgetName": "k2", "BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": limit}
    notification = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 80.0}
    subscriber = {"SubscriptionType": "EMAIL", "Address": "owner@example.org"}
    aws.budgets.create_budget(
        AccountId=world.account,
        Budget=budget,
        NotificationsWithSubscribers=[{"Notification": notification, "Subscribers": [subscriber]}],
        ResourceTags=[{"Key": "bivouac:campaign", "Value": "k2"}],
    )
    key = {"AccountId": world.account, "BudgetName": "k2"}
    seen = aws.budgets.describe_subscribers_for_notification(**key, Notification=notification)
    assert seen["Subscribers"] == [subscriber]
    raised = budget | {"BudgetLimit": {"Amount": "200", "Unit": "USD"}}
    aws.budgets.update_budget(AccountId=world.account, NewBudget=raised)
    assert aws.budgets.describe_budget(**key)["Budget"]["BudgetLimit"]["Amount"].startswith("200")
    arn = f"arn:aws:budgets::{world.account}:budget/k2"
    tags = aws.budgets.list_tags_for_resource(ResourceARN=arn)["ResourceTags"]
    assert tags == [{"Key": "bivouac:campaign", "Value": "k2"}]
    aws.budgets.delete_budget(**key)


def test_a_vpc_goes_only_in_the_order_that_aws_demands(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2 = aws.ec2
    vpc = ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.50.1.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]
    assert nat["State"] == "pending"
    nat_id = nat["NatGatewayId"]

    def nat_state() -> str:
        return ec2.describe_nat_gateways(NatGatewayIds=[nat_id])["NatGateways"][0]["State"]

    until(lambda: nat_state() == "available")
    group = ec2.create_security_group(GroupName="a", Description="a", VpcId=vpc)["GroupId"]
    other = ec2.create_security_group(GroupName="b", Description="b", VpcId=vpc)["GroupId"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[rule])
    endpoint = ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName="com.amazonaws.us-east-1.ecr.api",
        VpcEndpointType="Interface",
        SubnetIds=[subnet],
        SecurityGroupIds=[group],
    )["VpcEndpoint"]["VpcEndpointId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    store = {"VpcId": vpc, "ServiceName": "com.amazonaws.us-east-1.s3", "VpcEndpointType": "Gateway"}
    store_id = ec2.create_vpc_endpoint(**store, RouteTableIds=[table])["VpcEndpoint"]["VpcEndpointId"]
    detach = {"InternetGatewayId": gateway, "VpcId": vpc}
    for refused in (
        lambda: ec2.delete_vpc(VpcId=vpc),
        lambda: ec2.delete_subnet(SubnetId=subnet),
        lambda: ec2.delete_security_group(GroupId=group),
        lambda: ec2.detach_internet_gateway(**detach),
    ):
        assert code_of(refused) == "DependencyViolation"
    assert code_of(lambda: ec2.release_address(AllocationId=address)) == "InvalidIPAddress.InUse"
    for what in ("NAT_DELETION_S", "ENDPOINT_DELETION_S"):
        monkeypatch.setattr(residual, what, 5.0)
    ec2.delete_nat_gateway(NatGatewayId=nat_id)
    assert nat_state() == "deleting"
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint, store_id])
    by_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    assert len(ec2.describe_network_interfaces(Filters=by_vpc)["NetworkInterfaces"]) == 2
    until(lambda: nat_state() == "deleted" and not ec2.describe_network_interfaces(Filters=by_vpc)["NetworkInterfaces"])
    until(lambda: not ec2.describe_vpc_endpoints(Filters=by_vpc)["VpcEndpoints"])
    assert len(ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Routes"]) == 1
    ec2.delete_route_table(RouteTableId=table)
    ec2.release_address(AllocationId=address)
    ec2.detach_internet_gateway(**detach)
    ec2.delete_internet_gateway(InternetGatewayId=gateway)
    assert code_of(lambda: ec2.delete_security_group(GroupId=group)) == "DependencyViolation"
    ec2.delete_security_group(GroupId=other)
    ec2.delete_security_group(GroupId=group)
    ec2.delete_subnet(SubnetId=subnet)
    ec2.delete_vpc(VpcId=vpc)


def test_an_instance_takes_its_interface_along_and_an_interface_in_use_stays(
    world: World, aws: Account, network: SimpleNamespace
) -> None:
    instance = launch(world, SubnetId=network.subnet)
    by_instance = [{"Name": "attachment.instance-id", "Values": [instance]}]
    interface = aws.ec2.describe_network_interfaces(Filters=by_instance)["NetworkInterfaces"][0]
    in_use = code_of(lambda: aws.ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"]))
    assert in_use == "InvalidParameterValue"
    aws.ec2.terminate_instances(InstanceIds=[instance])
    until(lambda: not aws.ec2.describe_network_interfaces(Filters=by_instance)["NetworkInterfaces"])


CAMPAIGN = {"bivouac:campaign": "tagged"}


def test_the_tagging_api_shows_what_carries_the_campaign_s_tag(
    world: World, aws: Account, network: SimpleNamespace
) -> None:
    tags = [{"Key": key, "Value": value} for key, value in CAMPAIGN.items()]
    ec2 = aws.ec2

    def spec(kind: str) -> dict[str, Any]:
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags}]}

    vpc = ec2.create_vpc(CidrBlock="10.60.0.0/16", **spec("vpc"))["Vpc"]["VpcId"]
    place = {"VpcId": vpc, "CidrBlock": "10.60.1.0/24", "AvailabilityZone": "us-east-1a"}
    subnet = ec2.create_subnet(**place, **spec("subnet"))["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="t", Description="t", VpcId=vpc, **spec("security-group"))["GroupId"]
    ec2.create_network_interface(SubnetId=subnet, Groups=[group], **spec("network-interface"))
    ec2.create_volume(Size=1, AvailabilityZone="us-east-1a", **spec("volume"))
    address = ec2.allocate_address(Domain="vpc", **spec("elastic-ip"))["AllocationId"]
    ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, **spec("natgateway"))
    data = {"ImageId": "ami-12345678", "InstanceType": "m5.large"}
    ec2.create_launch_template(LaunchTemplateName="tagged", LaunchTemplateData=data, **spec("launch-template"))
    ec2.create_placement_group(GroupName="t", Strategy="cluster", **spec("placement-group"))
    launch(world, SubnetId=subnet, **spec("instance"))
    aws.logs.create_log_group(logGroupName="/aws/eks/t/cluster", tags=CAMPAIGN)
    aws.ecr.create_repository(repositoryName="tagged", tags=tags)
    aws.s3.create_bucket(Bucket="tagged")
    aws.s3.put_bucket_tagging(Bucket="tagged", Tagging={"TagSet": tags})
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 1023, "IpRanges": [{"CidrIp": "10.60.0.0/16"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    made = {"SubnetIds": [subnet], "SecurityGroupIds": [group], "Tags": tags}
    pitch_lustre(aws, network, **made)
    filters = [{"Key": key, "Values": [value]} for key, value in CAMPAIGN.items()]
    pages = aws.resourcegroupstaggingapi.get_paginator("get_resources").paginate(TagFilters=filters)
    arns = [one["ResourceARN"] for page in pages for one in page["ResourceTagMappingList"]]
    seen = {arn.split(":")[2] + ":" + arn.split(":", 5)[5].split("/")[0].split(":")[0] for arn in arns}
    kinds = "vpc subnet security-group network-interface volume elastic-ip natgateway launch-template placement-group"
    expected = {f"ec2:{kind}" for kind in [*kinds.split(), "instance"]}
    assert seen == expected | {"fsx:file-system", "logs:log-group", "ecr:repository", "s3:tagged"}
    ec2.delete_launch_template(LaunchTemplateName="tagged")
    asked = {"TagFilters": filters, "ResourceTypeFilters": ["ec2:launch-template"]}
    assert len(aws.resourcegroupstaggingapi.get_resources(**asked)["ResourceTagMappingList"]) == 1, "for a while yet"
    world.routes["/_site/tagging"]("", b'{"stale_tags_s": 0}')
    assert aws.resourcegroupstaggingapi.get_resources(**asked)["ResourceTagMappingList"] == []
    described = ec2.describe_tags(Filters=[{"Name": "key", "Values": ["bivouac:campaign"]}])["Tags"]
    assert not [tag for tag in described if tag["ResourceId"].startswith("lt-")]


def test_a_launch_that_targets_a_reservation_needs_a_place_in_it(
    world: World, aws: Account, network: SimpleNamespace
) -> None:
    request = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a", "InstanceCount": 1}
    reservation = aws.ec2.create_capacity_reservation(InstanceType="m5.large", **request)["CapacityReservation"]
    target = {"CapacityReservationTarget": {"CapacityReservationId": reservation["CapacityReservationId"]}}
    image = next(image for image in world.backend("ec2").amis if image.startswith("ami-"))
    data = {"ImageId": image, "InstanceType": "m5.large", "CapacityReservationSpecification": target}
    aws.ec2.create_launch_template(LaunchTemplateName="reserved", LaunchTemplateData=data)
    template = {"LaunchTemplateName": "reserved", "Version": "$Latest"}
    start = {"MinCount": 1, "MaxCount": 1, "LaunchTemplate": template, "SubnetId": network.subnet}
    first = aws.ec2.run_instances(**start)["Instances"][0]["InstanceId"]
    reservations = aws.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation["CapacityReservationId"]])
    assert reservations["CapacityReservations"][0]["AvailableInstanceCount"] == 0
    assert code_of(lambda: aws.ec2.run_instances(**start)) == "ReservationCapacityExceeded"
    aws.ec2.terminate_instances(InstanceIds=[first])
    until(lambda: state_of(aws, first) == "terminated")
    again = aws.ec2.run_instances(**start)["Instances"][0]["InstanceId"]
    aws.ec2.terminate_instances(InstanceIds=[again])


GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/training"


def test_nodes_beyond_a_groups_places_run_on_demand_unless_only_reservations_count(
    world: World, aws: Account, network: SimpleNamespace
) -> None:
    request = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a", "InstanceCount": 1}
    made = aws.ec2.create_capacity_reservation(InstanceType="p5.48xlarge", InstanceMatchCriteria="targeted", **request)[
        "CapacityReservation"
    ]["CapacityReservationId"]
    with urlopen(f"{world.endpoint_url}/_site/blocks", data=json.dumps({"groups": {GROUP: [made]}}).encode()):
        pass
    item = instance_type("p5.48xlarge")
    nodes = Nodes(count=2, instance_type=item.name, capacity=Capacity.RESERVATION, reservation_id=GROUP)
    reservation = purchase(nodes, item).reservation
    assert reservation is not None
    ours = {
        "CapacityReservationPreference": reservation["capacity_reservation_preference"],
        "CapacityReservationTarget": {
            "CapacityReservationResourceGroupArn": reservation["capacity_reservation_target"][
                "capacity_reservation_resource_group_arn"
            ]
        },
    }
    image = next(image for image in world.backend("ec2").amis if image.startswith("ami-"))

    def start(name: str, specification: dict[str, Any]) -> str:
        data = {"ImageId": image, "InstanceType": item.name, "CapacityReservationSpecification": specification}
        aws.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        template = {"LaunchTemplateName": name, "Version": "$Latest"}
        run = {"MinCount": 1, "MaxCount": 1, "LaunchTemplate": template, "SubnetId": network.subnet}
        return str(aws.ec2.run_instances(**run)["Instances"][0]["InstanceId"])

    def places() -> int:
        (held,) = aws.ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"]
        return int(held["AvailableInstanceCount"])

    first = start("program", ours)
    assert places() == 0
    assert code_of(lambda: start("program-again", ours)) == "ReservationCapacityExceeded"
    target_alone = {"CapacityReservationTarget": ours["CapacityReservationTarget"]}
    second = start("target-alone", target_alone)
    assert places() == 0, "the second runs beside the reservation"
    aws.ec2.terminate_instances(InstanceIds=[first, second])
    aws.ec2.cancel_capacity_reservation(CapacityReservationId=made)

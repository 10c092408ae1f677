"""Listings of EC2's kinds, written out by hand: what AWS answers, page by page, and what is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.unit.kinds.aws_by_model import OTHER, TRAIN, pairs

BORN = datetime(2026, 11, 1, 10, 30, tzinfo=UTC)
OURS, THEIRS = pairs(TRAIN), pairs(OTHER)
Row = tuple[str, str, Mapping[str, str], Decimal | None, bool, datetime | None]
"""Id, name, tags, USD per hour, whether it is being deleted, when it was made."""


@dataclass(frozen=True)
class Case:
    """One kind: the listing's request, its items (and what else AWS answers), and what is seen."""

    kind: str
    operation: str
    result: str
    items: list[Any]
    rows: list[Row]
    asked: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


def row(
    id: str,
    name: str = "",
    tags: Mapping[str, str] | None = None,
    usd: str | None = "0",
    leaving: bool = False,
    born: datetime | None = BORN,
) -> Row:
    return id, name, tags or {}, None if usd is None else Decimal(usd), leaving, born


EC2 = [
    Case(
        "spot request", "ec2.describe_spot_instance_requests", "SpotInstanceRequests",
        [
            {"SpotInstanceRequestId": "sir-1", "State": "active", "CreateTime": BORN, "Tags": OURS},
            {"SpotInstanceRequestId": "sir-2", "State": "cancelled", "CreateTime": BORN, "Tags": OURS},
            {"SpotInstanceRequestId": "sir-3", "State": "open", "CreateTime": BORN},
        ],
        [row("sir-1", tags=TRAIN), row("sir-3")],
    ),
    Case(
        "instance", "ec2.describe_instances", "Reservations",
        [
            {"Instances": [
                {"InstanceId": "i-1", "InstanceType": "m7i.large", "State": {"Name": "running"},
                 "LaunchTime": BORN, "Tags": OURS},
                {"InstanceId": "i-2", "InstanceType": "m7i.large", "State": {"Name": "terminated"}},
                {"InstanceId": "i-3", "InstanceType": "p5.48xlarge", "State": {"Name": "shutting-down"},
                 "LaunchTime": BORN, "Tags": THEIRS},
            ]},
            {"Instances": [
                {"InstanceId": "i-4", "InstanceType": "p5.48xlarge", "State": {"Name": "pending"}, "LaunchTime": BORN},
            ]},
        ],
        [row("i-1", tags=TRAIN, usd="0.1008"), row("i-3", tags=OTHER, leaving=True), row("i-4", usd="55.04")],
    ),
    Case(
        "image", "ec2.describe_images", "Images",
        [
            {"ImageId": "ami-1", "Name": "node 1", "CreationDate": "2026-11-01T10:30:00.000Z", "Tags": OURS},
            {"ImageId": "ami-2", "Name": "node 2", "State": "deregistered"},
            {"ImageId": "ami-3", "CreationDate": "2026-11-01T10:30:00.000Z", "State": "available"},
        ],
        [row("ami-1", "node 1", TRAIN, None), row("ami-3", usd=None)],
        {"Owners": ["self"]},
    ),
    Case(
        "snapshot", "ec2.describe_snapshots", "Snapshots",
        [
            {"SnapshotId": "snap-1", "StartTime": BORN, "Tags": OURS, "State": "completed"},
            {"SnapshotId": "snap-2", "StartTime": BORN, "Tags": THEIRS, "State": "pending"},
        ],
        [row("snap-1", tags=TRAIN, usd=None), row("snap-2", tags=OTHER, usd=None)],
        {"OwnerIds": ["self"]},
    ),
    Case(
        "volume", "ec2.describe_volumes", "Volumes",
        [
            {"VolumeId": "vol-1", "CreateTime": BORN, "Tags": OURS, "State": "in-use"},
            {"VolumeId": "vol-2", "CreateTime": BORN, "Tags": THEIRS, "State": "deleting"},
            {"VolumeId": "vol-3", "CreateTime": BORN, "State": "deleted"},
            {"VolumeId": "vol-4", "CreateTime": BORN, "State": "available"},
        ],
        [row("vol-1", tags=TRAIN, usd=None), row("vol-2", tags=OTHER, usd=None, leaving=True), row("vol-4", usd=None)],
    ),
    Case(
        "launch template", "ec2.describe_launch_templates", "LaunchTemplates",
        [
            {"LaunchTemplateId": "lt-1", "LaunchTemplateName": "gpu", "CreateTime": BORN, "Tags": OURS},
            {"LaunchTemplateId": "lt-2", "LaunchTemplateName": "web", "CreateTime": BORN},
        ],
        [row("lt-1", "gpu", TRAIN), row("lt-2", "web")],
    ),
    Case(
        "placement group", "ec2.describe_placement_groups", "PlacementGroups",
        [
            {"GroupName": "one", "GroupId": "pg-1", "State": "available", "Tags": OURS},
            {"GroupName": "two", "GroupId": "pg-2", "State": "deleted"},
            {"GroupName": "three", "GroupId": "pg-3", "State": "deleting"},
        ],
        [row("one", "one", TRAIN, born=None), row("three", "three", leaving=True, born=None)],
    ),
    Case(
        "capacity reservation", "ec2.describe_capacity_reservations", "CapacityReservations",
        [
            {"CapacityReservationId": "cr-1", "InstanceType": "p5.48xlarge", "TotalInstanceCount": 3,
             "State": "active", "CreateDate": BORN, "Tags": OURS},
            {"CapacityReservationId": "cr-2", "InstanceType": "p5.48xlarge", "State": "expired"},
            {"CapacityReservationId": "cr-3", "InstanceType": "x9.huge", "TotalInstanceCount": 3,
             "State": "active", "CreateDate": BORN},
        ],
        [row("cr-1", tags=TRAIN, usd="165.12"), row("cr-3", usd=None)],
    ),
    Case(
        "key pair", "ec2.describe_key_pairs", "KeyPairs",
        [
            {"KeyName": "one", "KeyPairId": "key-1", "CreateTime": BORN, "Tags": OURS},
            {"KeyName": "two", "KeyPairId": "key-2", "CreateTime": BORN},
        ],
        [row("one", "one", TRAIN), row("two", "two")],
    ),
    Case(
        "NAT gateway", "ec2.describe_nat_gateways", "NatGateways",
        [
            {"NatGatewayId": "nat-1", "State": "available", "CreateTime": BORN, "Tags": OURS},
            {"NatGatewayId": "nat-2", "State": "deleted", "CreateTime": BORN, "Tags": OURS},
            {"NatGatewayId": "nat-3", "State": "deleting", "CreateTime": BORN},
        ],
        [row("nat-1", tags=TRAIN, usd="0.045"), row("nat-3", usd="0.045", leaving=True)],
    ),
    Case(
        "VPC endpoint", "ec2.describe_vpc_endpoints", "VpcEndpoints",
        [
            {"VpcEndpointId": "vpce-1", "VpcEndpointType": "Interface", "State": "available", "Tags": OURS,
             "SubnetIds": ["subnet-1", "subnet-2", "subnet-3"], "CreationTimestamp": BORN},
            {"VpcEndpointId": "vpce-2", "State": "deleted"},
            {"VpcEndpointId": "vpce-3", "VpcEndpointType": "Gateway", "State": "deleting",
             "CreationTimestamp": BORN, "Tags": THEIRS},
        ],
        [row("vpce-1", tags=TRAIN, usd="0.03"), row("vpce-3", tags=OTHER, leaving=True)],
    ),
    Case(
        "VPC peering", "ec2.describe_vpc_peering_connections", "VpcPeeringConnections",
        [
            {"VpcPeeringConnectionId": "pcx-1", "Status": {"Code": "active"}, "Tags": OURS},
            {"VpcPeeringConnectionId": "pcx-2", "Status": {"Code": "expired"}},
            {"VpcPeeringConnectionId": "pcx-3", "Status": {"Code": "deleting"}},
        ],
        [row("pcx-1", tags=TRAIN, usd=None, born=None), row("pcx-3", usd=None, leaving=True, born=None)],
    ),
    Case(
        "flow log", "ec2.describe_flow_logs", "FlowLogs",
        [
            {"FlowLogId": "fl-1", "CreationTime": BORN, "Tags": OURS},
            {"FlowLogId": "fl-2", "CreationTime": BORN},
        ],
        [row("fl-1", tags=TRAIN), row("fl-2")],
    ),
    Case(
        "network interface", "ec2.describe_network_interfaces", "NetworkInterfaces",
        [
            {"NetworkInterfaceId": "eni-1", "Status": "in-use", "TagSet": OURS},
            {"NetworkInterfaceId": "eni-2", "Status": "available", "TagSet": THEIRS},
            {"NetworkInterfaceId": "eni-3", "Status": "available", "TagSet": []},
        ],
        [row("eni-1", tags=TRAIN, born=None), row("eni-2", tags=OTHER, born=None), row("eni-3", born=None)],
    ),
    Case(
        "elastic address", "ec2.describe_addresses", "Addresses",
        [{"AllocationId": "eipalloc-1", "Tags": OURS}, {"AllocationId": "eipalloc-2"}],
        [row("eipalloc-1", tags=TRAIN, usd="0.005", born=None), row("eipalloc-2", usd="0.005", born=None)],
    ),
    Case(
        "route table", "ec2.describe_route_tables", "RouteTables",
        [{"RouteTableId": "rtb-1", "Tags": OURS}, {"RouteTableId": "rtb-2"}],
        [row("rtb-1", tags=TRAIN, born=None), row("rtb-2", born=None)],
    ),
    Case(
        "internet gateway", "ec2.describe_internet_gateways", "InternetGateways",
        [{"InternetGatewayId": "igw-1", "Tags": OURS}, {"InternetGatewayId": "igw-2"}],
        [row("igw-1", tags=TRAIN, born=None), row("igw-2", born=None)],
    ),
    Case(
        "subnet", "ec2.describe_subnets", "Subnets",
        [{"SubnetId": "subnet-1", "State": "available", "Tags": OURS}, {"SubnetId": "subnet-2"}],
        [row("subnet-1", tags=TRAIN, born=None), row("subnet-2", born=None)],
    ),
    Case(
        "VPC", "ec2.describe_vpcs", "Vpcs",
        [{"VpcId": "vpc-1", "State": "available", "Tags": OURS}, {"VpcId": "vpc-2"}],
        [row("vpc-1", tags=TRAIN, born=None), row("vpc-2", born=None)],
    ),
    Case(
        "security group", "ec2.describe_security_groups", "SecurityGroups",
        [{"GroupId": "sg-1", "GroupName": "nodes", "Tags": OURS}, {"GroupId": "sg-2", "GroupName": "default"}],
        [row("sg-1", "nodes", TRAIN, born=None), row("sg-2", "default", born=None)],
    ),
]  # fmt: skip

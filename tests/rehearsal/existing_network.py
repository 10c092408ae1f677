"""A company's own VPC in the emulated account, as its administrators made it, before any campaign."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from infra.spec.services import ENDPOINT_SERVICES

MARK = [{"Key": "bivouac:network", "Value": "true"}]


@dataclass
class Existing:
    vpc: str
    gpu: str
    control_plane: list[str]
    table: str
    """Route table of all three subnets."""
    parts: dict[str, str] = field(default_factory=dict)
    """Gateways and other things beside them."""

    @property
    def section(self) -> dict[str, Any]:
        """The spec's `network`."""
        return {"vpc_id": self.vpc, "subnet_ids": {"gpu": self.gpu, "control_plane": self.control_plane}}


def build(ec2: Any, *, nat: bool = True, cidr: str = "10.9") -> Existing:
    """A VPC with all that a campaign needs: a way out by NAT, or interface endpoints."""
    vpc = ec2.create_vpc(CidrBlock=f"{cidr}.0.0/16")["Vpc"]["VpcId"]
    for option in ("EnableDnsSupport", "EnableDnsHostnames"):
        ec2.modify_vpc_attribute(VpcId=vpc, **{option: {"Value": True}})

    def subnet(number: int, zone: str) -> str:
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=f"{cidr}.{number}.0/24", AvailabilityZone=f"us-east-1{zone}")
        return str(made["Subnet"]["SubnetId"])

    gpu, control = subnet(1, "a"), [subnet(2, "a"), subnet(3, "b")]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    for one in (gpu, *control):
        ec2.associate_route_table(RouteTableId=table, SubnetId=one)
    place = Existing(vpc, gpu, control, table)
    s3 = {"VpcId": vpc, "ServiceName": "com.amazonaws.us-east-1.s3", "VpcEndpointType": "Gateway"}
    place.parts["s3"] = ec2.create_vpc_endpoint(**s3, RouteTableIds=[table])["VpcEndpoint"]["VpcEndpointId"]
    if nat:
        way_out(ec2, place, subnet(0, "a"))
    else:
        endpoints(ec2, place, f"{cidr}.0.0/16")
    ec2.create_tags(Resources=[vpc, gpu, *control], Tags=MARK)
    return place


def way_out(ec2: Any, place: Existing, public: str) -> None:
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=place.vpc)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=public, AllocationId=address)["NatGateway"]["NatGatewayId"]
    ec2.create_route(RouteTableId=place.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    place.parts |= {"internet gateway": gateway, "address": address, "nat": nat, "public": public}


def endpoints(ec2: Any, place: Existing, cidr: str) -> None:
    group = ec2.create_security_group(GroupName="endpoints", Description="endpoints", VpcId=place.vpc)["GroupId"]
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": cidr}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[https])
    place.parts["group"] = group
    for service in ENDPOINT_SERVICES:
        made = ec2.create_vpc_endpoint(
            VpcId=place.vpc, ServiceName=f"com.amazonaws.us-east-1.{service}", VpcEndpointType="Interface",
            SubnetIds=place.control_plane[:1], SecurityGroupIds=[group], PrivateDnsEnabled=True,
        )  # fmt: skip
        place.parts[service] = made["VpcEndpoint"]["VpcEndpointId"]

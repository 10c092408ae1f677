"""VPCs, subnets, internet gateways."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Input
from infra.rehearsal.plugins.wire import Props

VPC, SUBNET, GATEWAY = Ec2Kind("vpc"), Ec2Kind("subnet"), Ec2Kind("internet_gateway")
_VPC_SWITCHES = ("enableDnsSupport", "enableDnsHostnames")


def create_vpc(call: Call) -> str:
    VPC.create(call, **call.request("cidrBlock", "instanceTenancy"))
    call.wait(lambda: _is(VPC, call, "available"), f"VPC {call.id} to become available")
    _switch_vpc(call, {"enableDnsSupport": True, "enableDnsHostnames": False})
    return call.id


def update_vpc(call: Call) -> None:
    _switch_vpc(call, call.old)


def _switch_vpc(call: Call, before: Props) -> None:
    for name in _VPC_SWITCHES:
        if call.new.get(name) is not None and call.new[name] != before.get(name):
            field = name[0].upper() + name[1:]
            call.client().modify_vpc_attribute(VpcId=call.id, **{field: {"Value": call.new[name]}})


def read_vpc(call: Call) -> Props | None:
    found = VPC.describe(call)
    if not found:
        return None
    client = call.client()
    switches = {}
    for name in _VPC_SWITCHES:
        field = name[0].upper() + name[1:]
        switches[name] = client.describe_vpc_attribute(VpcId=call.id, Attribute=name)[field]["Value"]
    mine = [{"Name": "vpc-id", "Values": [call.id]}]
    by_name, is_main = {"Name": "group-name", "Values": ["default"]}, {"Name": "association.main", "Values": ["true"]}
    is_default = {"Name": "default", "Values": ["true"]}
    groups = call.listed("describe_security_groups", "SecurityGroups", Filters=[*mine, by_name])
    tables = call.listed("describe_route_tables", "RouteTables", Filters=[*mine, is_main])
    acls = call.listed("describe_network_acls", "NetworkAcls", Filters=[*mine, is_default])
    table = next((item["RouteTableId"] for item in tables), None)
    return {
        **call.observed(found),
        **switches,
        "arn": call.arn("ec2", f"vpc/{call.id}"),
        "defaultSecurityGroupId": next((item["GroupId"] for item in groups), None),
        "defaultRouteTableId": table,
        "mainRouteTableId": table,
        "defaultNetworkAclId": next((item["NetworkAclId"] for item in acls), None),
        "tags": found["Tags"],
    }


def create_subnet(call: Call) -> str:
    SUBNET.create(call, **call.request("vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId"))
    call.wait(lambda: _is(SUBNET, call, "available"), f"subnet {call.id} to become available")
    if call.new.get("mapPublicIpOnLaunch"):
        update_subnet(call)
    return call.id


def update_subnet(call: Call) -> None:
    public = bool(call.new.get("mapPublicIpOnLaunch"))
    call.client().modify_subnet_attribute(SubnetId=call.id, MapPublicIpOnLaunch={"Value": public})


def read_subnet(call: Call) -> Props | None:
    found = SUBNET.describe(call)
    return {**call.observed(found), "tags": found["Tags"]} if found else None


def create_gateway(call: Call) -> str:
    GATEWAY.create(call)
    if call.new.get("vpcId"):
        attach, vpc = call.client().attach_internet_gateway, call.new["vpcId"]
        # AWS may not know a new gateway everywhere yet.
        call.retry(lambda: attach(InternetGatewayId=call.id, VpcId=vpc), "InvalidInternetGatewayID.NotFound")
    return call.id


def update_gateway(call: Call) -> None:
    if call.changed("vpcId"):
        _detach(call, call.old.get("vpcId"))
        if call.new.get("vpcId"):
            call.client().attach_internet_gateway(InternetGatewayId=call.id, VpcId=call.new["vpcId"])


def read_gateway(call: Call) -> Props | None:
    found = GATEWAY.describe(call)
    if not found:
        return None
    vpc = next((item["VpcId"] for item in found.get("Attachments", [])), None)
    arn = call.arn("ec2", f"internet-gateway/{call.id}")
    return {**call.observed(found), "vpcId": vpc, "arn": arn, "tags": found["Tags"]}


def delete_gateway(call: Call) -> None:
    _detach(call, call.state.get("vpcId") or call.new.get("vpcId"))
    GATEWAY.delete(call)


def _detach(call: Call, vpc: str | None) -> None:
    if vpc:
        detach = call.client().detach_internet_gateway
        call.destroy(lambda: detach(InternetGatewayId=call.id, VpcId=vpc), "Gateway.NotAttached")


def _is(kind: Ec2Kind, call: Call, state: str) -> dict[str, Any] | None:
    found = kind.describe(call)
    return found if found and found["State"] == state else None


RESOURCES = (
    Resource(
        token="aws:ec2/vpc:Vpc",
        service="ec2",
        inputs={
            "cidrBlock": Input(required=True, replaces=True),
            "instanceTenancy": Input(default="default"),
            "enableDnsSupport": Input(api=LOCAL, default=True),
            "enableDnsHostnames": Input(api=LOCAL, computed=True),
        },
        outputs={
            "arn": LOCAL,
            "ownerId": None,
            "dhcpOptionsId": None,
            "defaultSecurityGroupId": LOCAL,
            "defaultRouteTableId": LOCAL,
            "mainRouteTableId": LOCAL,
            "defaultNetworkAclId": LOCAL,
        },
        create=create_vpc,
        read=read_vpc,
        update=update_vpc,
        delete=VPC.delete,
        tagger=retag,
    ),
    Resource(
        token="aws:ec2/subnet:Subnet",
        service="ec2",
        inputs={
            "vpcId": Input(required=True, replaces=True),
            "cidrBlock": Input(required=True, replaces=True),
            "availabilityZone": Input(replaces=True, computed=True),
            "availabilityZoneId": Input(replaces=True, computed=True),
            "mapPublicIpOnLaunch": Input(default=False),
        },
        outputs={"arn": "SubnetArn", "ownerId": None},
        create=create_subnet,
        read=read_subnet,
        update=update_subnet,
        delete=SUBNET.delete,
        identity=("cidrBlock", "vpcId"),
        tagger=retag,
    ),
    Resource(
        token="aws:ec2/internetGateway:InternetGateway",
        service="ec2",
        inputs={"vpcId": Input(api=LOCAL, computed=True)},
        outputs={"arn": LOCAL, "ownerId": None},
        create=create_gateway,
        read=read_gateway,
        update=update_gateway,
        delete=delete_gateway,
        tagger=retag,
    ),
)

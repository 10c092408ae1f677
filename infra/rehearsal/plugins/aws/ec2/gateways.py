"""Elastic IP addresses and NAT gateways: a subnet's connection to the internet."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, NotReady, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Input
from infra.rehearsal.plugins.aws.tags import tag_list, tag_map
from infra.rehearsal.plugins.wire import Props

NAT = Ec2Kind("nat_gateway", tag_type="natgateway")


def create_address(call: Call) -> str:
    tags = tag_list(call.tags)
    tagged = {"TagSpecifications": [{"ResourceType": "elastic-ip", "Tags": tags}]} if tags else {}
    answer = call.client().allocate_address(**{"Domain": "vpc", **call.request("domain")}, **tagged)
    return str(answer["AllocationId"])


def read_address(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().describe_addresses(AllocationIds=[call.id]))
    if not answer or not answer["Addresses"]:
        return None
    found = answer["Addresses"][0]
    return {
        **call.observed(found),
        "arn": call.arn("ec2", f"elastic-ip/{call.id}"),
        "tags": tag_map(found.get("Tags") or []),
    }


def delete_address(call: Call) -> None:
    release = call.client().release_address
    # A NAT gateway deleted a moment ago may still hold its address.
    call.destroy(lambda: release(AllocationId=call.id), "InvalidIPAddress.InUse", "AuthFailure")


def create_nat(call: Call) -> str:
    NAT.create(call, **call.request("allocationId", "subnetId", "connectivityType", "privateIp"))

    def available() -> bool:
        found = NAT.describe(call) or {}
        if found.get("State") == "failed":
            raise NotReady(f"NAT gateway {call.id} failed: {found.get('FailureCode')}: {found.get('FailureMessage')}")
        return found.get("State") == "available"

    call.wait(available, f"NAT gateway {call.id} to become available")
    return call.id


def read_nat(call: Call) -> Props | None:
    found = NAT.describe(call)
    if not found or found["State"] == "deleted":
        return None
    address = (found.get("NatGatewayAddresses") or [{}])[0]
    return {
        **call.observed(found),
        "allocationId": address.get("AllocationId"),
        "associationId": address.get("AssociationId"),
        "networkInterfaceId": address.get("NetworkInterfaceId"),
        "privateIp": address.get("PrivateIp"),
        "publicIp": address.get("PublicIp"),
        "tags": found["Tags"],
    }


def delete_nat(call: Call) -> None:
    client = call.client()
    call.destroy(lambda: client.delete_nat_gateway(NatGatewayId=call.id))

    def gone() -> bool:
        found = NAT.describe(call)
        return not found or found["State"] == "deleted"

    call.wait(gone, f"NAT gateway {call.id} to be deleted")


RESOURCES = (
    Resource(
        token="aws:ec2/eip:Eip",
        service="ec2",
        inputs={"domain": Input(replaces=True, computed=True)},
        outputs={
            "allocationId": None,
            "associationId": None,
            "arn": LOCAL,
            "instance": "InstanceId",
            "networkInterface": "NetworkInterfaceId",
            "networkBorderGroup": None,
            "privateIp": "PrivateIpAddress",
            "publicIp": None,
            "publicIpv4Pool": None,
        },
        create=create_address,
        read=read_address,
        delete=delete_address,
        tagger=retag,
    ),
    Resource(
        token="aws:ec2/natGateway:NatGateway",
        service="ec2",
        inputs={
            "allocationId": Input(replaces=True),
            "subnetId": Input(replaces=True, required=True),
            "connectivityType": Input(replaces=True, default="public"),
            "privateIp": Input(replaces=True, computed=True),
        },
        outputs={"associationId": LOCAL, "networkInterfaceId": LOCAL, "publicIp": LOCAL, "vpcId": None},
        # One address serves one gateway at a time.
        identity=("allocationId",),
        create=create_nat,
        read=read_nat,
        delete=delete_nat,
        tagger=retag,
    ),
)

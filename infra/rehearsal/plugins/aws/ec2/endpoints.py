"""VPC endpoints: private connections to S3 (gateway) and other services (interface)."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input
from infra.rehearsal.plugins.wire import Props

ENDPOINT = Ec2Kind("vpc_endpoint")
_MEMBERS = {"routeTableIds": "RouteTableIds", "subnetIds": "SubnetIds", "securityGroupIds": "SecurityGroupIds"}


def create_endpoint(call: Call) -> str:
    ENDPOINT.create(call, **call.whole_request())
    call.wait(
        lambda: (ENDPOINT.describe(call) or {}).get("State", "").lower() == "available",
        f"VPC endpoint {call.id} to become available",
    )
    return call.id


def update_endpoint(call: Call) -> None:
    request = call.request("policy", "privateDnsEnabled") if call.changed("policy", "privateDnsEnabled") else {}
    for name, field in _MEMBERS.items():
        before, after = set(call.old.get(name) or []), set(call.new.get(name) or [])
        request |= {f"Add{field}": sorted(after - before)} if after - before else {}
        request |= {f"Remove{field}": sorted(before - after)} if before - after else {}
    if request:
        call.client().modify_vpc_endpoint(VpcEndpointId=call.id, **request)


def read_endpoint(call: Call) -> Props | None:
    found = ENDPOINT.describe(call)
    if not found or found.get("State", "").lower() == "deleted":
        return None
    groups = [group["GroupId"] for group in found.get("Groups") or []]
    return {
        **call.observed(found),
        "securityGroupIds": groups or call.new.get("securityGroupIds"),
        "arn": call.arn("ec2", f"vpc-endpoint/{call.id}"),
        "prefixListId": _prefix_list(call, found.get("ServiceName", "")),
        "tags": found["Tags"],
    }


def _prefix_list(call: Call, service: str) -> str | None:
    if call.new.get("vpcEndpointType", "Gateway") != "Gateway":
        return None
    wanted = [{"Name": "prefix-list-name", "Values": [service]}]
    found = call.listed("describe_prefix_lists", "PrefixLists", Filters=wanted)
    return next((item["PrefixListId"] for item in found if item["PrefixListName"] == service), None)


def delete_endpoint(call: Call) -> None:
    client = call.client()
    call.destroy(lambda: client.delete_vpc_endpoints(VpcEndpointIds=[call.id]))
    call.wait(
        lambda: (ENDPOINT.describe(call) or {"State": "deleted"})["State"].lower() == "deleted",
        f"VPC endpoint {call.id} to go",
    )


RESOURCES = (
    Resource(
        token="aws:ec2/vpcEndpoint:VpcEndpoint",
        service="ec2",
        inputs={
            "vpcId": Input(required=True, replaces=True),
            "serviceName": Input(required=True, replaces=True),
            "vpcEndpointType": Input(replaces=True, default="Gateway"),
            "policy": Input(api="PolicyDocument", kind=Conversion.JSON, computed=True),
            "privateDnsEnabled": Input(computed=True),
            "routeTableIds": Input(kind=Conversion.SET, computed=True),
            "subnetIds": Input(kind=Conversion.SET, computed=True),
            "securityGroupIds": Input(kind=Conversion.SET, computed=True),
        },
        outputs={"arn": LOCAL, "state": None, "ownerId": None, "networkInterfaceIds": None, "prefixListId": LOCAL},
        create=create_endpoint,
        read=read_endpoint,
        update=update_endpoint,
        delete=delete_endpoint,
        tagger=retag,
    ),
)

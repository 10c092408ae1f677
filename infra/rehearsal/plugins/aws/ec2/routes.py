"""Route tables, routes, associations."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Input
from infra.rehearsal.plugins.wire import Props

TABLE = Ec2Kind("route_table")
_DESTINATIONS = {
    "destinationCidrBlock": Input(replaces=True),
    "destinationIpv6CidrBlock": Input(replaces=True),
    "destinationPrefixListId": Input(replaces=True),
}
_TARGETS = {
    "gatewayId": Input(),
    "natGatewayId": Input(),
    "networkInterfaceId": Input(computed=True),
    "vpcPeeringConnectionId": Input(),
    "egressOnlyGatewayId": Input(api="EgressOnlyInternetGatewayId"),
}
_INLINE = {"cidrBlock": Input(api="DestinationCidrBlock"), **_TARGETS}


def create_table(call: Call) -> str:
    TABLE.create(call, VpcId=call.new["vpcId"])
    for route in call.request("routes").get("Routes", []):
        call.client().create_route(RouteTableId=call.id, **route)
    return call.id


def update_table(call: Call) -> None:
    client = call.client()
    before = {route["cidrBlock"] for route in call.old.get("routes") or []}
    wanted = {route["DestinationCidrBlock"]: route for route in call.request("routes").get("Routes", [])}
    for destination in before - set(wanted):
        client.delete_route(RouteTableId=call.id, DestinationCidrBlock=destination)
    for destination, route in wanted.items():
        act = client.replace_route if destination in before else client.create_route
        act(RouteTableId=call.id, **route)


def read_table(call: Call) -> Props | None:
    found = TABLE.describe(call)
    if not found:
        return None
    own = [route for route in found["Routes"] if route.get("Origin") != "CreateRouteTable"]
    return {
        **call.observed({**found, "Routes": own}),
        "arn": call.arn("ec2", f"route-table/{call.id}"),
        "tags": found["Tags"],
    }


def create_route(call: Call) -> str:
    client, request = call.client(), call.whole_request()
    # AWS may not know a new gateway everywhere yet.
    call.retry(lambda: client.create_route(**request), "InvalidRouteTableID.NotFound", "InvalidNatGatewayID.NotFound")
    call.id = f"r-{call.new['routeTableId']}-{_destination(call.new)}"
    call.wait(lambda: _route(call), f"route {call.id} to exist")
    return call.id


def update_route(call: Call) -> None:
    call.client().replace_route(**call.whole_request())


def read_route(call: Call) -> Props | None:
    found = _route(call)
    return {**call.observed(found), "routeTableId": call.new["routeTableId"]} if found else None


def delete_route(call: Call) -> None:
    request = call.request("routeTableId", *_DESTINATIONS)
    call.destroy(lambda: call.client().delete_route(**request))


def _destination(values: Props) -> str:
    return next(str(values[name]) for name in _DESTINATIONS if values.get(name))


def _route(call: Call) -> dict[str, Any] | None:
    client = call.client()
    answer = call.or_none(lambda: client.describe_route_tables(RouteTableIds=[call.new["routeTableId"]]))
    wanted = call.request(*_DESTINATIONS)
    for table in answer["RouteTables"] if answer else []:
        for route in table["Routes"]:
            if all(route.get(field) == value for field, value in wanted.items()):
                return dict(route)
    return None


def create_association(call: Call) -> str:
    request = call.whole_request()
    return str(call.client().associate_route_table(**request)["AssociationId"])


def read_association(call: Call) -> Props | None:
    wanted = [{"Name": "association.route-table-association-id", "Values": [call.id]}]
    for table in call.listed("describe_route_tables", "RouteTables", Filters=wanted):
        for found in table["Associations"]:
            if found["RouteTableAssociationId"] == call.id:
                return call.observed(found)
    return None


def delete_association(call: Call) -> None:
    call.destroy(lambda: call.client().disassociate_route_table(AssociationId=call.id))


RESOURCES = (
    Resource(
        token="aws:ec2/routeTable:RouteTable",
        service="ec2",
        inputs={"vpcId": Input(required=True, replaces=True), "routes": Input(fields=_INLINE, computed=True)},
        outputs={"arn": LOCAL, "ownerId": None},
        create=create_table,
        read=read_table,
        update=update_table,
        delete=TABLE.delete,
        tagger=retag,
    ),
    Resource(
        token="aws:ec2/route:Route",
        service="ec2",
        inputs={"routeTableId": Input(required=True, replaces=True), **_DESTINATIONS, **_TARGETS},
        outputs={"origin": None, "state": None, "instanceId": None, "instanceOwnerId": None},
        identity=("routeTableId", *_DESTINATIONS),
        create=create_route,
        read=read_route,
        update=update_route,
        delete=delete_route,
    ),
    Resource(
        token="aws:ec2/routeTableAssociation:RouteTableAssociation",
        service="ec2",
        inputs={
            "routeTableId": Input(required=True, replaces=True),
            "subnetId": Input(replaces=True),
            "gatewayId": Input(replaces=True),
        },
        identity=("subnetId", "gatewayId"),
        create=create_association,
        read=read_association,
        delete=delete_association,
    ),
)

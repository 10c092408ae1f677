"""The network: VPC, subnets, routes, gateways, addresses, endpoints, interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from infra.aws.account import Account, every
from infra.kinds.ec2 import HOLDERS, asked_by, by_tags, delete_if_present, ec2, in_its_vpc, its_groups, put_into_vpc
from infra.kinds.finding import status_of, tagged_as
from infra.kinds.kind import Checkpoints, Inputs, Remain, ResourceKind, Step, no_price
from infra.kinds.listed import arn_of, call
from infra.kinds.thing import Thing, tags_of
from infra.plan.catalogue import service_prices
from infra.spec.names import CAMPAIGN_TAG, Names

_CNI = ("aws-K8S-", "aws-k8s-trunk-eni", "aws-k8s-branch-eni")
_SERVICES = {
    "ELB ": "load balancer",
    "Interface for NAT Gateway": "NAT gateway",
    "VPC Endpoint Interface": "VPC endpoint",
    "ENI for FSx": "FSx file system",
    "Amazon EKS": "EKS control plane",
    "AWS Lambda VPC ENI": "Lambda function",
    "EFS mount target": "EFS mount target",
    "RDSNetworkInterface": "RDS database",
}
"""Beginning of an interface's description -> the service that created it."""
_OWN = ("NAT gateway", "VPC endpoint", "FSx file system", "EKS control plane")


def _remove_interface(account: Account, thing: Thing) -> None:
    ec2 = account.client("ec2")
    for item in ec2.describe_network_interfaces(NetworkInterfaceIds=[thing.id])["NetworkInterfaces"]:
        attachment = item.get("Attachment") or {}
        if attachment.get("AttachmentId") and attachment.get("DeviceIndex") != 0:
            ec2.detach_network_interface(AttachmentId=attachment["AttachmentId"], Force=True)
    ec2.delete_network_interface(NetworkInterfaceId=thing.id)


def _interfaces(account: Account, names: Names) -> Iterator[dict[str, Any]]:
    """Yield the interfaces in the campaign's VPC and, in a VPC of others, those that hold its security groups."""
    listing = ("describe_network_interfaces", "NetworkInterfaces")
    interfaces = {item["NetworkInterfaceId"]: item for item in in_its_vpc(account, names, *listing)}
    if groups := sorted({group["GroupId"] for group in its_groups(account, names)}):
        holding = every(account.client("ec2"), *listing, Filters=[{"Name": "group-id", "Values": groups}])
        interfaces |= {item["NetworkInterfaceId"]: item for item in holding}
    yield from interfaces.values()


def _interfaces_left(account: Account, names: Names) -> Iterator[Remain]:
    for item in _interfaces(account, names):
        text, tags = str(item.get("Description") or ""), tags_of(item.get("TagSet"))
        description = f"network interface {item['NetworkInterfaceId']} in {item['SubnetId']}"
        service = next((name for start, name in _SERVICES.items() if text.startswith(start)), None)
        holder = (item.get("Attachment") or {}).get("InstanceId")
        if text.startswith(_CNI) or "node.k8s.amazonaws.com/instance_id" in tags:
            reason = f"left by the cluster's network plugin ({text}), {item['Status']}"
            yield Remain(description, reason, f"`bivouac sweep {names.campaign}` removes it", ours=True)
        elif service in _OWN:
            yield Remain(description, f"of the {service} ({text})", "it goes with that", ours=True, waits=True)
        elif service is not None:
            balancer = text.removeprefix("ELB ")
            yield Remain(
                description, f"of the {service} {balancer}", f"the owner of that {service} removes it, then it goes"
            )
        elif holder:
            yield Remain(description, f"of instance {holder}", "it goes with the instance", ours=True, waits=True)
        else:
            maker = f"made by {item.get('RequesterId') or item.get('OwnerId')}: {text or 'no description'}"
            command = f"aws ec2 delete-network-interface --network-interface-id {item['NetworkInterfaceId']}"
            yield Remain(description, f"{maker}, {item['Status']}", f"`{command}`, if nobody needs it")


def _remove_address(account: Account, thing: Thing) -> None:
    ec2 = account.client("ec2")
    for item in ec2.describe_addresses(AllocationIds=[thing.id])["Addresses"]:
        if item.get("AssociationId"):
            ec2.disassociate_address(AssociationId=item["AssociationId"])
    ec2.release_address(AllocationId=thing.id)


def _remove_internet_gateway(account: Account, thing: Thing) -> None:
    ec2 = account.client("ec2")
    for item in ec2.describe_internet_gateways(InternetGatewayIds=[thing.id])["InternetGateways"]:
        for attachment in item.get("Attachments", ()):
            ec2.detach_internet_gateway(InternetGatewayId=thing.id, VpcId=attachment["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=thing.id)


def _remove_route_table(account: Account, thing: Thing) -> None:
    """Delete a route table, except a VPC's main table, which is deleted with the VPC."""
    ec2 = account.client("ec2")
    for table in ec2.describe_route_tables(RouteTableIds=[thing.id])["RouteTables"]:
        if any(link.get("Main") for link in table["Associations"]):
            return
        for link in table["Associations"]:
            ec2.disassociate_route_table(AssociationId=link["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=thing.id)


def _remake_route(account: Account, inputs: Inputs) -> bool:
    return delete_if_present(
        account,
        "delete_route",
        RouteTableId=inputs["routeTableId"],
        DestinationCidrBlock=inputs["destinationCidrBlock"],
    )


def _remake_association(account: Account, inputs: Inputs) -> bool:
    tables = account.client("ec2").describe_route_tables(RouteTableIds=[inputs["routeTableId"]])["RouteTables"]
    links = [link for table in tables for link in table["Associations"] if link.get("SubnetId") == inputs["subnetId"]]
    return any(
        [
            delete_if_present(account, "disassociate_route_table", AssociationId=link["RouteTableAssociationId"])
            for link in links
        ]
    )


def _peerings(account: Account, inputs: Inputs) -> list[str]:
    client = account.client("ec2")
    peerings = every(client, "describe_vpc_peering_connections", "VpcPeeringConnections", Filters=tagged_as(inputs))
    return [
        peering["VpcPeeringConnectionId"]
        for peering in peerings
        if peering["Status"]["Code"] in ("active", "pending-acceptance")
    ]


def _endpoint_price(item: Mapping[str, Any]) -> Decimal | None:
    """Return an interface's price in each zone; of the other types only gateways are free."""
    type = str(item.get("VpcEndpointType", "Gateway")).lower()
    if type != "interface":
        return Decimal(0) if type == "gateway" else None
    return service_prices().interface_endpoint_usd_per_hour * max(1, len(item.get("SubnetIds") or ()))


def _foreign_endpoints(account: Account, names: Names) -> Iterator[Remain]:
    for item in in_its_vpc(account, names, "describe_vpc_endpoints", "VpcEndpoints"):
        if tags_of(item.get("Tags")).get(CAMPAIGN_TAG) != names.campaign:
            name = f"VPC endpoint {item['VpcEndpointId']} ({item['ServiceName']})"
            yield put_into_vpc(name, item, names)


KINDS = (
    ec2(
        "NAT gateway", Step.SERVICES, "describe_nat_gateways", "NatGateways", "NatGatewayId",
        arn="natgateway", ended_states=("deleted", "failed"), remove="delete_nat_gateway",
        price=lambda item: service_prices().nat_gateway_usd_per_hour, checkpoints=Checkpoints.FREE,
        type="aws:ec2/natGateway:NatGateway",
        status=status_of("ec2", "describe_nat_gateways", "NatGateways", "State", "NatGatewayIds"),
        find=by_tags("describe_nat_gateways", "NatGateways", "NatGatewayId",
                    {"subnet-id": "subnetId"}, {"state": ["pending", "available"]}),
    ),
    ec2(
        "VPC endpoint", Step.SERVICES, "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId",
        arn="vpc-endpoint", ended_states=("deleted",), remove=call("ec2", "delete_vpc_endpoints", "VpcEndpointIds"),
        price=_endpoint_price, remains=_foreign_endpoints,
        type="aws:ec2/vpcEndpoint:VpcEndpoint", filters={"vpc-id": "vpcId", "service-name": "serviceName"},
    ),
    ec2(
        "VPC peering", Step.SERVICES,
        "describe_vpc_peering_connections", "VpcPeeringConnections", "VpcPeeringConnectionId",
        arn="vpc-peering-connection", ended_states=("deleted", "rejected", "failed", "expired"),
        remove="delete_vpc_peering_connection", price=no_price,
        type="aws:ec2/vpcPeeringConnection:VpcPeeringConnection", find=_peerings,
    ),
    ec2(
        "flow log", Step.SERVICES, "describe_flow_logs", "FlowLogs", "FlowLogId",
        arn="vpc-flow-log", remove=call("ec2", "delete_flow_logs", "FlowLogIds"),
    ),
    ec2(
        "network interface", Step.INTERFACES, "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId",
        arn="network-interface", remove=_remove_interface, remains=_interfaces_left,
    ),
    ec2(
        "elastic address", Step.ADDRESSES, "describe_addresses", "Addresses", "AllocationId",
        arn="elastic-ip", remove=_remove_address,
        price=lambda item: service_prices().public_ipv4_usd_per_hour, checkpoints=Checkpoints.FREE,
        type="aws:ec2/eip:Eip",
    ),
    ec2(
        "route table", Step.ROUTES, "describe_route_tables", "RouteTables", "RouteTableId",
        arn="route-table", remove=_remove_route_table,
        type="aws:ec2/routeTable:RouteTable", filters={"vpc-id": "vpcId"},
    ),
    ec2(
        "internet gateway", Step.ROUTES, "describe_internet_gateways", "InternetGateways", "InternetGatewayId",
        arn="internet-gateway", remove=_remove_internet_gateway,
        type="aws:ec2/internetGateway:InternetGateway", held_by=HOLDERS,
    ),
    ec2(
        "subnet", Step.SUBNETS, "describe_subnets", "Subnets", "SubnetId",
        arn="subnet", remove="delete_subnet", network=True, holds_state=True,
        type="aws:ec2/subnet:Subnet", filters={"vpc-id": "vpcId"}, held_by=HOLDERS,
    ),
    ec2(
        "VPC", Step.NETWORKS, "describe_vpcs", "Vpcs", "VpcId",
        arn="vpc", remove="delete_vpc", network=True, holds_state=True,
        type="aws:ec2/vpc:Vpc", held_by=HOLDERS,
    ),
    ResourceKind("route", type="aws:ec2/route:Route", remake=_remake_route),
    ResourceKind(
        "route table association",
        type="aws:ec2/routeTableAssociation:RouteTableAssociation",
        remake=_remake_association,
    ),
    ResourceKind(
        "network ACL", "ec2", arn_of("ec2", "network-acl/"), batch=100,
        ask=asked_by("describe_network_acls", "NetworkAcls", "NetworkAclId", "network-acl-id"),
    ),
)  # fmt: skip

"""An existing VPC, as AWS describes it: what `infra.plan.checks.network` judges. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.aws.account import Account, every
from infra.plan.facts import AclEntry, SeenNetwork, SeenSubnet
from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG

_ANYWHERE = "0.0.0.0/0"
_TARGETS = (
    "NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId", "GatewayId", "VpcPeeringConnectionId",
    "LocalGatewayId", "CarrierGatewayId", "CoreNetworkArn", "OdbNetworkArn",
)  # fmt: skip
_ALL_PORTS = {"From": 0, "To": 65535}
HTTPS = 443


def seen_network(account: Account, spec: Spec) -> SeenNetwork | None:
    """Return the existing VPC that the spec names; None if it names none."""
    vpc_id, subnet_ids = spec.network.vpc_id, spec.network.subnet_ids
    if vpc_id is None:
        return None
    look = VpcLook(account, vpc_id)
    vpcs = look.listing("describe_vpcs", "Vpcs")
    if not vpcs:
        return SeenNetwork(exists=False)
    vpc = vpcs[0]
    tags = {tag["Key"]: tag["Value"] for tag in vpc.get("Tags", ())}
    ids = () if subnet_ids is None else (subnet_ids.gpu, *subnet_ids.control_plane)
    return SeenNetwork(
        exists=True,
        owner=vpc["OwnerId"],
        mark=next((f"{key}={tags[key]}" for key in (CAMPAIGN_TAG, FOUNDATION_TAG) if key in tags), ""),
        cidrs=tuple(block["CidrBlock"] for block in vpc["CidrBlockAssociationSet"]),
        dns_support=look.attribute("enableDnsSupport"),
        dns_hostnames=look.attribute("enableDnsHostnames"),
        name_servers=look.name_servers(vpc["DhcpOptionsId"]),
        subnets=tuple(look.subnets(ids)),
        endpoints=look.endpoints(spec.region),
    )


class VpcLook:
    """Questions about one VPC."""

    def __init__(self, account: Account, vpc_id: str) -> None:
        self._ec2, self._vpc_id = account.client("ec2"), vpc_id

    def listing(self, operation: str, member: str, **filters: Sequence[str]) -> list[dict[str, Any]]:
        """Return a listing in the VPC; a filter finds nothing where an id would raise. `filters`: _ for -."""
        values_by_filter = {"vpc_id": [self._vpc_id], **filters}
        request_filters = [
            {"Name": name.replace("_", "-"), "Values": list(values)} for name, values in values_by_filter.items()
        ]
        return list(every(self._ec2, operation, member, Filters=request_filters))

    def attribute(self, name: str) -> bool:
        answer = self._ec2.describe_vpc_attribute(VpcId=self._vpc_id, Attribute=name)
        return bool(answer[name[0].upper() + name[1:]]["Value"])

    def name_servers(self, options_id: str) -> tuple[str, ...]:
        """Return the servers of the DHCP options; none for options that do not exist, which `default` stands for."""
        by_id = [{"Name": "dhcp-options-id", "Values": [options_id]}]
        options = every(self._ec2, "describe_dhcp_options", "DhcpOptions", Filters=by_id)
        settings = [setting for entry in options for setting in entry["DhcpConfigurations"]]
        return tuple(
            value["Value"] for entry in settings if entry["Key"] == "domain-name-servers" for value in entry["Values"]
        )

    def subnets(self, ids: Sequence[str]) -> Iterator[SeenSubnet]:
        tables = self.listing("describe_route_tables", "RouteTables")
        acls = self.listing("describe_network_acls", "NetworkAcls")
        gateways = [endpoint for endpoint in self._endpoints() if endpoint["VpcEndpointType"] == "Gateway"]
        s3 = {
            table
            for endpoint in gateways
            if endpoint["ServiceName"].endswith(".s3")
            for table in endpoint["RouteTableIds"]
        }
        for item in self.listing("describe_subnets", "Subnets", subnet_id=ids) if ids else ():
            subnet_table, main = _tables_of(tables, item["SubnetId"])
            table, acl = subnet_table or main, _tables_of(acls, item["SubnetId"])[0]
            yield SeenSubnet(
                id=item["SubnetId"],
                zone=item["AvailabilityZone"],
                cidr=item["CidrBlock"],
                free_addresses=item["AvailableIpAddressCount"],
                public_addresses=item["MapPublicIpOnLaunch"],
                default_route=_default_route(table),
                s3_gateway=table.get("RouteTableId") in s3,
                acl_id=acl.get("NetworkAclId", ""),
                acl=tuple(_entries(acl)),
            )

    def endpoints(self, region: str) -> dict[str, tuple[str, ...]]:
        """Return the services whose usual names lead to a working interface endpoint, and the ranges let in to it."""
        groups_by_id = {
            endpoint["GroupId"]: endpoint for endpoint in self.listing("describe_security_groups", "SecurityGroups")
        }
        ranges: dict[str, tuple[str, ...]] = {}
        for endpoint in self._endpoints():
            if endpoint["VpcEndpointType"] != "Interface" or not endpoint.get("PrivateDnsEnabled"):
                continue
            service = endpoint["ServiceName"].removeprefix(f"com.amazonaws.{region}.")
            groups = [
                groups_by_id[group["GroupId"]]
                for group in endpoint.get("Groups", ())
                if group["GroupId"] in groups_by_id
            ]
            ranges[service] = (*ranges.get(service, ()), *(cidr for group in groups for cidr in _let_in(group)))
        return ranges

    def _endpoints(self) -> list[dict[str, Any]]:
        return [item for item in self.listing("describe_vpc_endpoints", "VpcEndpoints") if item["State"] == "available"]


def _tables_of(tables: Sequence[Mapping[str, Any]], subnet_id: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the route table or ACL of a subnet, and the VPC's main one; empty where there is none."""
    linked_table, main = dict[str, Any](), dict[str, Any]()
    for table in tables:
        for link in table.get("Associations", ()):
            if link.get("SubnetId") == subnet_id:
                linked_table = dict(table)
            if link.get("Main"):
                main = dict(table)
    return linked_table, main


def _default_route(table: Mapping[str, Any]) -> str:
    for route in table.get("Routes", ()):
        if route.get("DestinationCidrBlock") == _ANYWHERE and route.get("State") != "blackhole":
            return next((str(route[key]) for key in _TARGETS if route.get(key)), "")
    return ""


def _entries(acl: Mapping[str, Any]) -> Iterator[AclEntry]:
    for item in acl.get("Entries", ()):
        if "CidrBlock" not in item:  # IPv6, which a campaign does not use
            continue
        ports = item.get("PortRange") or _ALL_PORTS
        yield AclEntry(
            egress=item["Egress"],
            number=item["RuleNumber"],
            allow=item["RuleAction"] == "allow",
            protocol=str(item["Protocol"]),
            first=ports["From"],
            last=ports["To"],
            cidr=item["CidrBlock"],
        )


def _let_in(group: Mapping[str, Any]) -> Iterator[str]:
    for rule in group.get("IpPermissions", ()):
        every_port = str(rule["IpProtocol"]) == "-1"
        https = str(rule["IpProtocol"]) == "tcp" and rule.get("FromPort", 0) <= HTTPS <= rule.get("ToPort", 65535)
        if every_port or https:
            yield from (item["CidrIp"] for item in rule.get("IpRanges", ()))

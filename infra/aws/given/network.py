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
    vpc_id, named = spec.network.vpc_id, spec.network.subnet_ids
    if vpc_id is None:
        return None
    look = Look(account, vpc_id)
    found = look.all("describe_vpcs", "Vpcs")
    if not found:
        return SeenNetwork(exists=False)
    vpc = found[0]
    tags = {tag["Key"]: tag["Value"] for tag in vpc.get("Tags", ())}
    wanted = () if named is None else (named.gpu, *named.control_plane)
    return SeenNetwork(
        exists=True,
        owner=vpc["OwnerId"],
        mark=next((f"{key}={tags[key]}" for key in (CAMPAIGN_TAG, FOUNDATION_TAG) if key in tags), ""),
        cidrs=tuple(one["CidrBlock"] for one in vpc["CidrBlockAssociationSet"]),
        dns_support=look.attribute("enableDnsSupport"),
        dns_hostnames=look.attribute("enableDnsHostnames"),
        name_servers=look.name_servers(vpc["DhcpOptionsId"]),
        subnets=tuple(look.subnets(wanted)),
        endpoints=look.endpoints(spec.region),
    )


class Look:
    """Questions about one VPC."""

    def __init__(self, account: Account, vpc_id: str) -> None:
        self._ec2, self._vpc_id = account.client("ec2"), vpc_id

    def all(self, operation: str, member: str, **filters: Sequence[str]) -> list[dict[str, Any]]:
        """Return a listing in the VPC; a filter finds nothing where an id would raise. `filters`: _ for -."""
        chosen = {"vpc_id": [self._vpc_id], **filters}
        asked = [{"Name": name.replace("_", "-"), "Values": list(values)} for name, values in chosen.items()]
        return list(every(self._ec2, operation, member, Filters=asked))

    def attribute(self, name: str) -> bool:
        answer = self._ec2.describe_vpc_attribute(VpcId=self._vpc_id, Attribute=name)
        return bool(answer[name[0].upper() + name[1:]]["Value"])

    def name_servers(self, options_id: str) -> tuple[str, ...]:
        """Return the servers of the DHCP options; none for options that do not exist, which `default` stands for."""
        by_id = [{"Name": "dhcp-options-id", "Values": [options_id]}]
        options = every(self._ec2, "describe_dhcp_options", "DhcpOptions", Filters=by_id)
        settings = [setting for one in options for setting in one["DhcpConfigurations"]]
        return tuple(
            value["Value"] for one in settings if one["Key"] == "domain-name-servers" for value in one["Values"]
        )

    def subnets(self, wanted: Sequence[str]) -> Iterator[SeenSubnet]:
        tables = self.all("describe_route_tables", "RouteTables")
        acls = self.all("describe_network_acls", "NetworkAcls")
        gateways = [one for one in self._endpoints() if one["VpcEndpointType"] == "Gateway"]
        s3 = {table for one in gateways if one["ServiceName"].endswith(".s3") for table in one["RouteTableIds"]}
        for item in self.all("describe_subnets", "Subnets", subnet_id=wanted) if wanted else ():
            own, main = _linked(tables, item["SubnetId"])
            table, acl = own or main, _linked(acls, item["SubnetId"])[0]
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
        known = {one["GroupId"]: one for one in self.all("describe_security_groups", "SecurityGroups")}
        found: dict[str, tuple[str, ...]] = {}
        for one in self._endpoints():
            if one["VpcEndpointType"] != "Interface" or not one.get("PrivateDnsEnabled"):
                continue
            service = one["ServiceName"].removeprefix(f"com.amazonaws.{region}.")
            groups = [known[group["GroupId"]] for group in one.get("Groups", ()) if group["GroupId"] in known]
            found[service] = (*found.get(service, ()), *(cidr for group in groups for cidr in _let_in(group)))
        return found

    def _endpoints(self) -> list[dict[str, Any]]:
        return [one for one in self.all("describe_vpc_endpoints", "VpcEndpoints") if one["State"] == "available"]


def _linked(several: Sequence[Mapping[str, Any]], subnet_id: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the route table or ACL of a subnet, and the VPC's main one; empty where there is none."""
    own, main = dict[str, Any](), dict[str, Any]()
    for one in several:
        for link in one.get("Associations", ()):
            if link.get("SubnetId") == subnet_id:
                own = dict(one)
            if link.get("Main"):
                main = dict(one)
    return own, main


def _default_route(table: Mapping[str, Any]) -> str:
    for route in table.get("Routes", ()):
        if route.get("DestinationCidrBlock") == _ANYWHERE and route.get("State") != "blackhole":
            return next((str(route[key]) for key in _TARGETS if route.get(key)), "")
    return ""


def _entries(acl: Mapping[str, Any]) -> Iterator[AclEntry]:
    for one in acl.get("Entries", ()):
        if "CidrBlock" not in one:  # IPv6, which a campaign does not use
            continue
        ports = one.get("PortRange") or _ALL_PORTS
        yield AclEntry(
            egress=one["Egress"],
            number=one["RuleNumber"],
            allow=one["RuleAction"] == "allow",
            protocol=str(one["Protocol"]),
            first=ports["From"],
            last=ports["To"],
            cidr=one["CidrBlock"],
        )


def _let_in(group: Mapping[str, Any]) -> Iterator[str]:
    for rule in group.get("IpPermissions", ()):
        every_port = str(rule["IpProtocol"]) == "-1"
        https = str(rule["IpProtocol"]) == "tcp" and rule.get("FromPort", 0) <= HTTPS <= rule.get("ToPort", 65535)
        if every_port or https:
            yield from (one["CidrIp"] for one in rule.get("IpRanges", ()))

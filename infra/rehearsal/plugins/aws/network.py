"""What rows cannot say about networks: inline routes, peering, endpoints, security groups, launch templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.rehearsal.plugins.aws.call import NotReady, ResourceCall
from infra.rehearsal.plugins.aws.resource import ResourceType

_EVERYWHERE = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


class PeeringType(ResourceType):
    def create(self, call: ResourceCall) -> str:
        super().create(call)
        if call.new.get("autoAccept"):
            accept = call.client().accept_vpc_peering_connection
            unknown = {"InvalidVpcPeeringConnectionID.NotFound": ""}
            call.retry(lambda: accept(VpcPeeringConnectionId=call.id), unknown)
            call.wait(lambda: self._is_active(call), f"VPC peering {call.id} to become active")
        return call.id

    def _is_active(self, call: ResourceCall) -> bool:
        answer = self.find(call)
        return bool(answer and answer["Status"]["Code"] == "active")


class RouteTableType(ResourceType):
    def update(self, call: ResourceCall) -> None:
        client = call.client()
        destinations = {route["cidrBlock"] for route in call.old.get("routes") or []}
        routes = {route["DestinationCidrBlock"]: route for route in call.request("routes").get("Routes", [])}
        for destination in destinations - set(routes):
            client.delete_route(RouteTableId=call.id, DestinationCidrBlock=destination)
        for destination, route in routes.items():
            act = client.replace_route if destination in destinations else client.create_route
            act(RouteTableId=call.id, **route)


class EndpointType(ResourceType):
    _MEMBERS = {"routeTableIds": "RouteTableIds", "subnetIds": "SubnetIds", "securityGroupIds": "SecurityGroupIds"}

    def update(self, call: ResourceCall) -> None:
        request = call.request("policy", "privateDnsEnabled") if call.differs("policy", "privateDnsEnabled") else {}
        for name, field in self._MEMBERS.items():
            old_ids, new_ids = set(call.old.get(name) or []), set(call.new.get(name) or [])
            request |= {f"Add{field}": sorted(new_ids - old_ids)} if new_ids - old_ids else {}
            request |= {f"Remove{field}": sorted(old_ids - new_ids)} if old_ids - new_ids else {}
        if request:
            call.client().modify_vpc_endpoint(VpcEndpointId=call.id, **request)


class SecurityGroupType(ResourceType):
    def await_ready(self, call: ResourceCall) -> None:
        """Remove the rule that allows all egress: as in the real plugin, it exists only if the program sets it."""
        call.wait(lambda: self.find(call), f"security group {call.id} to exist")
        call.client().revoke_security_group_egress(GroupId=call.id, IpPermissions=[_EVERYWHERE])

    def delete(self, call: ResourceCall) -> None:
        answer = self.find(call)
        if answer and call.state.get("revokeRulesOnDelete"):
            for side, field in (("ingress", "IpPermissions"), ("egress", "IpPermissionsEgress")):
                if answer[field]:
                    revoke = getattr(call.client(), f"revoke_security_group_{side}")
                    revoke(GroupId=call.id, IpPermissions=answer[field])
        super().delete(call)


_SOURCES = {
    "cidrIpv4": ("IpRanges", "CidrIp"),
    "cidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
    "prefixListId": ("PrefixListIds", "PrefixListId"),
    "referencedSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
}


def _permission(call: ResourceCall) -> dict[str, Any]:
    rule = call.state or call.new
    note = {"Description": rule["description"]} if rule.get("description") else {}
    permission: dict[str, Any] = {"IpProtocol": str(rule["ipProtocol"])}
    if rule.get("fromPort") is not None:
        permission |= {"FromPort": rule["fromPort"], "ToPort": rule["toPort"]}
    for name, (field, member) in _SOURCES.items():
        if rule.get(name):
            permission[field] = [{member: rule[name], **note}]
    return permission


def _rule(call: ResourceCall) -> dict[str, Any]:
    return call.request(*(name for name in call.row.inputs if name != "securityGroupId"))


class SecurityGroupRuleType(ResourceType):
    names = {"permission": _permission, "rule": _rule}


class LaunchTemplateType(ResourceType):
    def find(self, call: ResourceCall) -> dict[str, Any] | None:
        template = super().find(call)
        if not template:
            return None
        latest = str(template["LatestVersionNumber"])
        answer = call.client().describe_launch_template_versions(LaunchTemplateId=call.id, Versions=[latest])
        data: Mapping[str, Any] = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        return {**data, **template}

    def update(self, call: ResourceCall) -> None:
        client, version = call.client(), call.new.get("defaultVersion")
        request = self.request(call, self.row.create)
        data = [name for name in call.row.inputs if name not in ("defaultVersion", "updateDefaultVersion")]
        if call.differs(*data):
            answer = client.create_launch_template_version(
                LaunchTemplateId=call.id, **{key: part for key, part in request.items() if key != "LaunchTemplateName"}
            )
            if call.new.get("updateDefaultVersion"):
                version = answer["LaunchTemplateVersion"]["VersionNumber"]
        if version:
            client.modify_launch_template(LaunchTemplateId=call.id, DefaultVersion=str(version))


class PlacementGroupType(ResourceType):
    def delete(self, call: ResourceCall) -> None:
        try:
            super().delete(call)
        except NotReady as error:
            raise NotReady(f"{error}: instances in it may still be shutting down") from error


CLASSES: dict[str, type[ResourceType]] = {
    "aws:ec2/vpcPeeringConnection:VpcPeeringConnection": PeeringType,
    "aws:ec2/routeTable:RouteTable": RouteTableType,
    "aws:ec2/vpcEndpoint:VpcEndpoint": EndpointType,
    "aws:ec2/securityGroup:SecurityGroup": SecurityGroupType,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": SecurityGroupRuleType,
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": SecurityGroupRuleType,
    "aws:ec2/launchTemplate:LaunchTemplate": LaunchTemplateType,
    "aws:ec2/placementGroup:PlacementGroup": PlacementGroupType,
}

"""What rows cannot say about networks: routes and rules inline, peering, endpoints, launch templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady
from infra.rehearsal.plugins.aws.resource import Resource
from infra.rehearsal.plugins.wire import Props

_EVERYWHERE = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


class Peering(Resource):
    def create(self, call: Call) -> str:
        super().create(call)
        if call.new.get("autoAccept"):
            accept = call.client().accept_vpc_peering_connection
            unknown = {"InvalidVpcPeeringConnectionID.NotFound": ""}
            call.retry(lambda: accept(VpcPeeringConnectionId=call.id), unknown)
            call.wait(lambda: self._is_active(call), f"VPC peering {call.id} to become active")
        return call.id

    def _is_active(self, call: Call) -> bool:
        answer = self.find(call)
        return bool(answer and answer["Status"]["Code"] == "active")


class RouteTable(Resource):
    def update(self, call: Call) -> None:
        client = call.client()
        before = {route["cidrBlock"] for route in call.old.get("routes") or []}
        wanted = {route["DestinationCidrBlock"]: route for route in call.request("routes").get("Routes", [])}
        for destination in before - set(wanted):
            client.delete_route(RouteTableId=call.id, DestinationCidrBlock=destination)
        for destination, route in wanted.items():
            act = client.replace_route if destination in before else client.create_route
            act(RouteTableId=call.id, **route)


class Endpoint(Resource):
    _MEMBERS = {"routeTableIds": "RouteTableIds", "subnetIds": "SubnetIds", "securityGroupIds": "SecurityGroupIds"}

    def update(self, call: Call) -> None:
        request = call.request("policy", "privateDnsEnabled") if call.changed("policy", "privateDnsEnabled") else {}
        for name, field in self._MEMBERS.items():
            before, after = set(call.old.get(name) or []), set(call.new.get(name) or [])
            request |= {f"Add{field}": sorted(after - before)} if after - before else {}
            request |= {f"Remove{field}": sorted(before - after)} if before - after else {}
        if request:
            call.client().modify_vpc_endpoint(VpcEndpointId=call.id, **request)


class SecurityGroup(Resource):
    def await_ready(self, call: Call) -> None:
        """Remove the rule that allows all egress: as in the real plugin, it exists only if the program sets it."""
        call.wait(lambda: self.find(call), f"security group {call.id} to exist")
        call.client().revoke_security_group_egress(GroupId=call.id, IpPermissions=[_EVERYWHERE])

    def update(self, call: Call) -> None:
        client = call.client()
        for side in ("ingress", "egress"):
            before = _permissions(call.id, call.old.get(side) or [])
            after = _permissions(call.id, call.new.get(side) or [])
            stale = [permission for permission in before if permission not in after]
            fresh = [permission for permission in after if permission not in before]
            if stale:
                getattr(client, f"revoke_security_group_{side}")(GroupId=call.id, IpPermissions=stale)
            if fresh:
                getattr(client, f"authorize_security_group_{side}")(GroupId=call.id, IpPermissions=fresh)

    def delete(self, call: Call) -> None:
        answer = self.find(call)
        if answer and call.state.get("revokeRulesOnDelete"):
            for side, field in (("ingress", "IpPermissions"), ("egress", "IpPermissionsEgress")):
                if answer[field]:
                    revoke = getattr(call.client(), f"revoke_security_group_{side}")
                    revoke(GroupId=call.id, IpPermissions=answer[field])
        super().delete(call)


def _permissions(group: str, rules: list[Props]) -> list[dict[str, Any]]:
    permissions = []
    for rule in rules:
        note = {"Description": rule["description"]} if rule.get("description") else {}
        pairs = [*(rule.get("securityGroups") or []), *([group] if rule.get("self") else [])]
        permission = {"IpProtocol": rule["protocol"]}
        if rule["protocol"] != "-1":
            permission |= {"FromPort": rule["fromPort"], "ToPort": rule["toPort"]}
        if rule.get("cidrBlocks"):
            permission["IpRanges"] = [{"CidrIp": cidr, **note} for cidr in rule["cidrBlocks"]]
        if pairs:
            permission["UserIdGroupPairs"] = [{"GroupId": pair, **note} for pair in pairs]
        permissions.append(permission)
    return permissions


_SOURCES = {
    "cidrIpv4": ("IpRanges", "CidrIp"),
    "cidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
    "prefixListId": ("PrefixListIds", "PrefixListId"),
    "referencedSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
}


def _permission(call: Call) -> dict[str, Any]:
    rule = call.state or call.new
    note = {"Description": rule["description"]} if rule.get("description") else {}
    permission: dict[str, Any] = {"IpProtocol": str(rule["ipProtocol"])}
    if rule.get("fromPort") is not None:
        permission |= {"FromPort": rule["fromPort"], "ToPort": rule["toPort"]}
    for name, (field, member) in _SOURCES.items():
        if rule.get(name):
            permission[field] = [{member: rule[name], **note}]
    return permission


def _rule(call: Call) -> dict[str, Any]:
    return call.request(*(name for name in call.row.inputs if name != "securityGroupId"))


class SecurityGroupRule(Resource):
    names = {"permission": _permission, "rule": _rule}


class LaunchTemplate(Resource):
    def find(self, call: Call) -> dict[str, Any] | None:
        template = super().find(call)
        if not template:
            return None
        latest = str(template["LatestVersionNumber"])
        answer = call.client().describe_launch_template_versions(LaunchTemplateId=call.id, Versions=[latest])
        data: Mapping[str, Any] = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        return {**data, **template}

    def update(self, call: Call) -> None:
        client, version = call.client(), call.new.get("defaultVersion")
        request = self.request(call, self.row.create)
        data = [name for name in call.row.inputs if name not in ("defaultVersion", "updateDefaultVersion")]
        if call.changed(*data):
            answer = client.create_launch_template_version(
                LaunchTemplateId=call.id, **{key: part for key, part in request.items() if key != "LaunchTemplateName"}
            )
            if call.new.get("updateDefaultVersion"):
                version = answer["LaunchTemplateVersion"]["VersionNumber"]
        if version:
            client.modify_launch_template(LaunchTemplateId=call.id, DefaultVersion=str(version))


class PlacementGroup(Resource):
    def delete(self, call: Call) -> None:
        try:
            super().delete(call)
        except NotReady as error:
            raise NotReady(f"{error}: instances in it may still be shutting down") from error


CLASSES: dict[str, type[Resource]] = {
    "aws:ec2/vpcPeeringConnection:VpcPeeringConnection": Peering,
    "aws:ec2/routeTable:RouteTable": RouteTable,
    "aws:ec2/vpcEndpoint:VpcEndpoint": Endpoint,
    "aws:ec2/securityGroup:SecurityGroup": SecurityGroup,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": SecurityGroupRule,
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": SecurityGroupRule,
    "aws:ec2/launchTemplate:LaunchTemplate": LaunchTemplate,
    "aws:ec2/placementGroup:PlacementGroup": PlacementGroup,
}

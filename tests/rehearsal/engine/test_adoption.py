"""Creations that a killed engine left pending: found without the whole ground, doubted, or removed to be made anew."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws.account import Account as Own
from infra.engine import adoption
from infra.engine.engine import Engine
from infra.errors import LeaseLost, PermanentError
from infra.inventory import survey
from infra.kinds import KINDS
from infra.rehearsal.aws.world import World
from infra.rehearsal.plugins.aws.package import AwsPackage
from infra.rehearsal.plugins.package import Request
from infra.spec.names import CAMPAIGN_TAG
from tests.rehearsal.aws_account import Account, make_user, signed_in

TAGS = {"Name": "bivouac-cut", CAMPAIGN_TAG: "cut", "bivouac:region": "us-east-1"}
EIP, NAT = "aws:ec2/eip:Eip", "aws:ec2/natGateway:NatGateway"
GROUP, TABLE = "aws:ec2/securityGroup:SecurityGroup", "aws:ec2/routeTable:RouteTable"
ROUTE, LINK = "aws:ec2/route:Route", "aws:ec2/routeTableAssociation:RouteTableAssociation"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
GATEWAY = "aws:ec2/internetGateway:InternetGateway"


class Plugin:
    """The emulated plugin, as an engine would call it."""

    def __init__(self) -> None:
        self.package = AwsPackage()
        self.package.configure({"region": "us-east-1", "defaultTags": json.dumps({"tags": TAGS})})

    def make(self, kind: str, **given: Any) -> tuple[str, dict[str, Any]]:
        """The new thing's id, and its creation as a state holds it while it is under way."""
        request = Request(f"urn:pulumi:c::b::{kind}::one", kind, "one", inputs=given, random_seed=kind.encode())
        inputs, failures = self.package.check(request)
        assert not failures
        id, _ = self.package.create(Request(request.urn, kind, "one", inputs=inputs))
        return id, {"type": "creating", "resource": {"urn": request.urn, "type": kind, "inputs": inputs}}


@pytest.fixture(scope="module")
def plugin(here: Own) -> Plugin:
    return Plugin()


def cut(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"resources": [], "pending_operations": list(operations)}


def test_a_gateway_and_its_address_are_found_by_tags_that_hold_the_plugins_notes(
    plugin: Plugin, here: Own, network: SimpleNamespace
) -> None:
    address, first = plugin.make(EIP, domain="vpc")
    gateway, second = plugin.make(NAT, allocationId=address, subnetId=network.subnet)
    assert first["resource"]["inputs"]["tags"]["__defaults"] == []
    urns = [one["resource"]["urn"] for one in (first, second)]
    deployment = cut(first, second)
    found = adoption.adoptable(here, "no-cluster", deployment)
    assert found == dict(zip(urns, (address, gateway), strict=True))
    resolved, look = adoption.resolve_pending(deployment, found)
    assert [resource["id"] for resource in resolved["resources"]] == [address, gateway] and look == urns
    outputs = resolved["resources"][1]["outputs"]
    assert outputs["subnetId"] == network.subnet and "__defaults" not in outputs["tags"], "a refresh, not an import"


def test_rules_and_routes_are_removed_to_be_made_anew(plugin: Plugin, here: Own, network: SimpleNamespace) -> None:
    group, _ = plugin.make(GROUP, vpcId=network.vpc)
    table, _ = plugin.make(TABLE, vpcId=network.vpc)
    gateway, _ = plugin.make(GATEWAY, vpcId=network.vpc)
    made = [
        plugin.make(INGRESS, securityGroupId=group, ipProtocol="-1", referencedSecurityGroupId=group),
        plugin.make(EGRESS, securityGroupId=group, ipProtocol="tcp", fromPort=443, toPort=443, cidrIpv4="10.0.0.0/8"),
        plugin.make(ROUTE, routeTableId=table, destinationCidrBlock="10.9.0.0/16", gatewayId=gateway),
        plugin.make(LINK, routeTableId=table, subnetId=network.subnet),
    ]
    pending = cut(*(operation for _, operation in made))
    assert {operation["resource"]["type"] for operation in pending["pending_operations"]} == {
        kind.type for kind in KINDS if kind.remake
    }
    assert len(adoption.remove_rules(here, pending, lambda: None)) == 4
    assert adoption.remove_rules(here, pending, lambda: None) == []


@pytest.mark.parametrize("kind", ["aws:ec2/vpc:Vpc", "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:kms/key:Key"])
def test_what_has_no_tag_is_never_taken_for_just_any(here: Own, kind: str) -> None:
    bare = {
        "type": "creating",
        "resource": {"urn": "urn:a::b::c::net", "type": kind, "inputs": {"tags": {"__defaults": []}}},
    }
    with pytest.raises(PermanentError, match=f"nobody can say whether AWS made {kind.rpartition(':')[2]} net"):
        adoption.adoptable(here, "no-cluster", cut(bare))


def test_a_denied_finder_stops_an_up_by_its_name_and_is_only_told_of_in_a_teardown(
    plugin: Plugin, world: World, network: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pending = plugin.make(EIP, domain="vpc")
    key = make_user(world, "blind", {"Effect": "Allow", "Action": "sts:GetCallerIdentity", "Resource": "*"})
    blind = signed_in(monkeypatch, world, key)
    with pytest.raises(PermanentError, match=r"Eip one .*UnauthorizedOperation"):
        adoption.adoptable(blind, "no-cluster", cut(pending))
    said: list[str] = []
    engine = Engine.__new__(Engine)
    engine.context = SimpleNamespace(progress=SimpleNamespace(note=said.append))  # type: ignore[assignment]
    assert adoption.adoptable(blind, "no-cluster", cut(pending), engine._note_unsure) == {}
    assert "Eip one" in said[0] and "UnauthorizedOperation" in said[0]


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow"}}, "DescribeVpcs"), True),
        (ClientError({"Error": {"Code": "ExpiredToken", "Message": "renew"}}, "DescribeVpcs"), True),
        (LeaseLost("another drives"), True),
        (ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "DescribeVpcs"), False),
        (KeyError("groupName"), False),
        (TypeError("unhashable type: 'list'"), False),
    ],
)
def test_what_passes_by_itself_is_tried_again_and_all_else_is_named(error: Exception, passing: bool) -> None:
    assert adoption.passes(error) == passing


def test_a_deleted_rule_is_left_out_and_an_unanswerable_one_says_what_it_may_be(
    plugin: Plugin, here: Own, aws: Account, world: World, network: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = plugin.make(GROUP, vpcId=network.vpc, name="ghostly")
    rule, _ = plugin.make(INGRESS, securityGroupId=group, ipProtocol="tcp", fromPort=1, toPort=1, cidrIpv4="10.0.0.0/8")
    aws.ecr.create_repository(repositoryName="cut", tags=[{"Key": CAMPAIGN_TAG, "Value": "cut"}])

    def shown() -> dict[str, str]:
        return {thing.id.rpartition("/")[2]: thing.doubt for thing in survey.tagged_things(here)}

    assert shown()[rule] == "" and "console of ecr" in shown()["cut"]
    aws.ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=[rule])
    pages = aws.resourcegroupstaggingapi.get_paginator("get_resources").paginate()
    assert [one for page in pages for one in page["ResourceTagMappingList"] if one["ResourceARN"].endswith(rule)]
    assert rule not in shown()
    key = make_user(world, "half", {"Effect": "Allow", "Action": "tag:GetResources", "Resource": "*"})
    denied = signed_in(monkeypatch, world, key)
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        list(survey.tagged_things(denied))

"""What is made again after a kill is removed first: exactly that one, and AWS's word tells whether it was there."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.kinds import kind_named
from tests.unit.kinds.aws_by_model import ByModel, Refused

UNREACHED = EndpointConnectionError(endpoint_url="https://x")
RULES, TABLES = "ec2.describe_security_group_rules", "ec2.describe_route_tables"


def remade(kind: str, given: dict[str, Any], account: Any) -> bool:
    remake = kind_named(kind).remake
    assert remake is not None
    return remake(account, given)


def test_a_route_is_deleted_by_its_table_and_destination() -> None:
    given, operation = (
        {"routeTableId": "rtb-1", "destinationCidrBlock": "0.0.0.0/0", "gatewayId": "x"},
        "ec2.delete_route",
    )
    account = ByModel()
    assert remade("route", given, account) is True
    assert account.calls == [(operation, {"RouteTableId": "rtb-1", "DestinationCidrBlock": "0.0.0.0/0"})]
    assert remade("route", given, ByModel({operation: Refused("InvalidRoute.NotFound")})) is False
    for refused, error in ((Refused("UnauthorizedOperation", 403), ClientError), (UNREACHED, EndpointConnectionError)):
        with pytest.raises(error):
            remade("route", given, ByModel({operation: refused}))


def test_an_association_is_ended_for_its_subnet_only_and_every_one_of_them() -> None:
    links = [
        {"RouteTableAssociationId": f"a-{number}", "SubnetId": subnet}
        for number, subnet in enumerate(("subnet-2", "subnet-1", "subnet-1"))
    ]
    table = {"RouteTables": [{"Associations": [{"RouteTableAssociationId": "main", "Main": True}, *links]}]}
    given, end = {"routeTableId": "rtb-1", "subnetId": "subnet-1"}, "ec2.disassociate_route_table"
    account = ByModel({TABLES: table})
    assert remade("route table association", given, account) is True
    assert account.calls == [
        (TABLES, {"RouteTableIds": ["rtb-1"]}), (end, {"AssociationId": "a-1"}), (end, {"AssociationId": "a-2"}),
    ]  # fmt: skip
    gone = Refused("InvalidAssociationID.NotFound")
    account = ByModel({TABLES: table, end: lambda told: gone if told["AssociationId"] == "a-1" else {}})
    assert remade("route table association", given, account) is True and len(account.changes) == 2
    assert remade("route table association", given, ByModel({TABLES: table, end: gone})) is False
    assert remade("route table association", {**given, "subnetId": "subnet-9"}, ByModel({TABLES: table})) is False


GIVEN = {"securityGroupId": "sg-1", "ipProtocol": "tcp", "fromPort": 988, "toPort": 1023, "cidrIpv4": "10.0.0.0/16"}
SAME = {"IsEgress": False, "IpProtocol": "tcp", "FromPort": 988, "ToPort": 1023, "CidrIpv4": "10.0.0.0/16"}
BY_GROUP = {key: value for key, value in GIVEN.items() if key != "cidrIpv4"} | {"referencedSecurityGroupId": "sg-2"}
FROM_GROUP = {key: value for key, value in SAME.items() if key != "CidrIpv4"}
ALL = {"securityGroupId": "sg-1", "ipProtocol": "-1", "cidrIpv4": "10.0.0.0/16"}
COMPARED: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("the same", GIVEN, SAME, True),
    ("ports as text", {**GIVEN, "fromPort": "988"}, SAME, True),
    ("outwards", GIVEN, {**SAME, "IsEgress": True}, False),
    ("another protocol", GIVEN, {**SAME, "IpProtocol": "udp"}, False),
    ("another first port", GIVEN, {**SAME, "FromPort": 989}, False),
    ("another last port", GIVEN, {**SAME, "ToPort": 1024}, False),
    ("another range", GIVEN, {**SAME, "CidrIpv4": "10.1.0.0/16"}, False),
    ("also a group", GIVEN, {**SAME, "ReferencedGroupInfo": {"GroupId": "sg-2"}}, False),
    ("a group", BY_GROUP, {**FROM_GROUP, "ReferencedGroupInfo": {"GroupId": "sg-2"}}, True),
    ("another group", BY_GROUP, {**FROM_GROUP, "ReferencedGroupInfo": {"GroupId": "sg-3"}}, False),
    ("no group", BY_GROUP, FROM_GROUP, False),
    ("all traffic", ALL, {"IsEgress": False, "IpProtocol": "-1", "FromPort": -1, "ToPort": -1,
                          "CidrIpv4": "10.0.0.0/16"}, True),
    ("no ports", ALL, {"IsEgress": False, "IpProtocol": "-1", "CidrIpv4": "10.0.0.0/16"}, True),
    ("port 0", ALL, {"IsEgress": False, "IpProtocol": "-1", "FromPort": 0, "ToPort": 0,
                     "CidrIpv4": "10.0.0.0/16"}, False),
    ("port 1", ALL, {"IsEgress": False, "IpProtocol": "-1", "FromPort": 1, "ToPort": 1,
                     "CidrIpv4": "10.0.0.0/16"}, False),
]  # fmt: skip


@pytest.mark.parametrize("way", ["ingress", "egress"])
@pytest.mark.parametrize(("given", "rule", "same"), [case[1:] for case in COMPARED], ids=[case[0] for case in COMPARED])
def test_a_rule_is_revoked_if_it_is_the_same_in_every_part(
    given: dict[str, Any], rule: dict[str, Any], same: bool, way: str
) -> None:
    turned = {**rule, "IsEgress": rule["IsEgress"] is (way == "ingress"), "SecurityGroupRuleId": "sgr-1"}
    account = ByModel({RULES: {"SecurityGroupRules": [turned]}})
    assert remade(f"{way} rule", given, account) is same
    assert account.calls[0] == (RULES, {"Filters": [{"Name": "group-id", "Values": ["sg-1"]}]})
    revoked = (f"ec2.revoke_security_group_{way}", {"GroupId": "sg-1", "SecurityGroupRuleIds": ["sgr-1"]})
    assert account.changes == [revoked] * same


def test_all_equal_rules_go_at_once_and_none_that_is_gone_is_told_as_removed() -> None:
    rules = [{**SAME, "SecurityGroupRuleId": f"sgr-{number}"} for number in (1, 2)]
    rules.insert(1, {**SAME, "CidrIpv4": "10.9.0.0/16", "SecurityGroupRuleId": "sgr-9"})
    account = ByModel({RULES: {"SecurityGroupRules": rules}})
    assert remade("ingress rule", GIVEN, account) is True
    assert account.changes[0][1]["SecurityGroupRuleIds"] == ["sgr-1", "sgr-2"]
    gone = {"ec2.revoke_security_group_ingress": Refused("InvalidSecurityGroupRuleId.NotFound")}
    assert remade("ingress rule", GIVEN, ByModel({RULES: {"SecurityGroupRules": rules}, **gone})) is False

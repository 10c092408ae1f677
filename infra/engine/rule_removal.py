"""Small rules that lie inside a route table or a security group: removed, so that they can be made anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.engine.finders import Inputs


def _remove_route(account: Account, given: Inputs) -> bool:
    return _gone(
        account, "delete_route", RouteTableId=given["routeTableId"], DestinationCidrBlock=given["destinationCidrBlock"]
    )


def _remove_association(account: Account, given: Inputs) -> bool:
    tables = account.client("ec2").describe_route_tables(RouteTableIds=[given["routeTableId"]])["RouteTables"]
    links = [link for table in tables for link in table["Associations"] if link.get("SubnetId") == given["subnetId"]]
    return any(
        [_gone(account, "disassociate_route_table", AssociationId=link["RouteTableAssociationId"]) for link in links]
    )


def _remove_group_rule(egress: bool) -> Callable[[Account, Inputs], bool]:
    def remove(account: Account, given: Inputs) -> bool:
        by_group = [{"Name": "group-id", "Values": [given["securityGroupId"]]}]
        ec2 = account.client("ec2")
        seen = list(every(ec2, "describe_security_group_rules", "SecurityGroupRules", Filters=by_group))
        same = [one["SecurityGroupRuleId"] for one in seen if one["IsEgress"] == egress and _same_rule(one, given)]
        operation = f"revoke_security_group_{'egress' if egress else 'ingress'}"
        return bool(same) and _gone(account, operation, GroupId=given["securityGroupId"], SecurityGroupRuleIds=same)

    return remove


def _same_rule(rule: Mapping[str, Any], given: Inputs) -> bool:
    """A rule without ports is told from one with all of them by -1."""

    def port(value: Any) -> int:
        return -1 if value is None else int(value)

    return (
        str(rule["IpProtocol"]) == str(given["ipProtocol"])
        and port(rule.get("FromPort")) == port(given.get("fromPort"))
        and port(rule.get("ToPort")) == port(given.get("toPort"))
        and rule.get("CidrIpv4") == given.get("cidrIpv4")
        and (rule.get("ReferencedGroupInfo") or {}).get("GroupId") == given.get("referencedSecurityGroupId")
    )


def _gone(account: Account, operation: str, **arguments: Any) -> bool:
    """Whether there was something to remove."""
    try:
        getattr(account.client("ec2"), operation)(**arguments)
    except ClientError as error:
        if says_missing(error):
            return False
        raise
    return True


RULE_REMOVERS: dict[str, Callable[[Account, Inputs], bool]] = {
    "aws:ec2/route:Route": _remove_route,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _remove_association,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _remove_group_rule(egress=False),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _remove_group_rule(egress=True),
}
"""Type -> how it is removed, so that it can be made anew: AWS refuses a second one."""

"""Security groups and their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from infra.aws.account import Account, every
from infra.kinds.ec2 import HOLDERS, asked_by, ec2, gone, in_its_vpc, its_groups, put_into_vpc
from infra.kinds.kind import Inputs, Remain, ResourceKind, Step
from infra.kinds.listed import arn_of
from infra.kinds.thing import Thing
from infra.spec.names import Names


def _remove(account: Account, one: Thing) -> None:
    """Delete a group after its rules, since groups may refer to each other. The default group goes with its VPC."""
    ec2 = account.client("ec2")
    for group in ec2.describe_security_groups(GroupIds=[one.id])["SecurityGroups"]:
        if group["GroupName"] == "default":
            return
        if group.get("IpPermissions"):
            ec2.revoke_security_group_ingress(GroupId=one.id, IpPermissions=group["IpPermissions"])
        if group.get("IpPermissionsEgress"):
            ec2.revoke_security_group_egress(GroupId=one.id, IpPermissions=group["IpPermissionsEgress"])
    ec2.delete_security_group(GroupId=one.id)


def _left(account: Account, names: Names) -> Iterator[Remain]:
    """Yield our groups if a rule elsewhere refers to them, then other people's in the campaign's VPC."""
    ours = {group["GroupId"]: group for group in its_groups(account, names)}
    if ours:
        yield from _named_elsewhere(account, ours)
    for group in in_its_vpc(account, names, "describe_security_groups", "SecurityGroups"):
        if group["GroupId"] not in ours and group["GroupName"] != "default":
            yield put_into_vpc(f"security group {group['GroupId']} ({group['GroupName']})", group, names)


def _named_elsewhere(account: Account, ours: Mapping[str, Mapping[str, Any]]) -> Iterator[Remain]:
    everywhere = every(account.client("ec2"), "describe_security_groups", "SecurityGroups")
    for other in (group for group in everywhere if group["GroupId"] not in ours):
        rules = [*other.get("IpPermissions", ()), *other.get("IpPermissionsEgress", ())]
        named = {pair.get("GroupId") for rule in rules for pair in rule.get("UserIdGroupPairs", ())}
        for group_id in sorted(named & set(ours)):
            yield Remain(
                f"security group {group_id} ({ours[group_id]['GroupName']})",
                f"a rule of {other['GroupId']} ({other['GroupName']}) names it",
                f"the owner of {other['GroupId']} revokes that rule",
            )


def _remake_rule(egress: bool) -> Callable[[Account, Inputs], bool]:
    def remake(account: Account, given: Inputs) -> bool:
        by_group = [{"Name": "group-id", "Values": [given["securityGroupId"]]}]
        seen = every(account.client("ec2"), "describe_security_group_rules", "SecurityGroupRules", Filters=by_group)
        same = [one["SecurityGroupRuleId"] for one in seen if one["IsEgress"] == egress and _same_rule(one, given)]
        operation = f"revoke_security_group_{'egress' if egress else 'ingress'}"
        return bool(same) and gone(account, operation, GroupId=given["securityGroupId"], SecurityGroupRuleIds=same)

    return remake


def _same_rule(rule: Mapping[str, Any], given: Inputs) -> bool:
    """Compare two rules; -1 stands for no port, which differs from all ports."""

    def port(value: Any) -> int:
        return -1 if value is None else int(value)

    return (
        str(rule["IpProtocol"]) == str(given["ipProtocol"])
        and port(rule.get("FromPort")) == port(given.get("fromPort"))
        and port(rule.get("ToPort")) == port(given.get("toPort"))
        and rule.get("CidrIpv4") == given.get("cidrIpv4")
        and (rule.get("ReferencedGroupInfo") or {}).get("GroupId") == given.get("referencedSecurityGroupId")
    )


KINDS = (
    ec2(
        "security group", Step.FIREWALLS, "describe_security_groups", "SecurityGroups", "GroupId", "GroupName",
        arn="security-group", remove=_remove, remains=_left, 
        eks_names=("cluster", "eks-cluster-sg-", r"-\d+"),
        type="aws:ec2/securityGroup:SecurityGroup", within={"vpc-id": "vpcId", "group-name": "name"},
        held_by=HOLDERS,
    ),
    ResourceKind(
        "security group rule", "ec2", arn_of("ec2", "security-group-rule/"), batch=100,
        ask=asked_by("describe_security_group_rules", "SecurityGroupRules", "SecurityGroupRuleId",
                     "security-group-rule-id"),
    ),
    ResourceKind(
        "ingress rule",
        type="aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        remake=_remake_rule(egress=False),
    ),
    ResourceKind(
        "egress rule",
        type="aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
        remake=_remake_rule(egress=True),
    ),
)  # fmt: skip

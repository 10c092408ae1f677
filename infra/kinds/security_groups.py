"""Security groups and their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from infra.aws.account import Account, every
from infra.kinds.ec2 import HOLDERS, asked_by, delete_if_present, ec2, in_its_vpc, its_groups, put_into_vpc
from infra.kinds.kind import Inputs, Remain, ResourceKind, Step
from infra.kinds.listed import arn_of
from infra.kinds.thing import Thing
from infra.spec.names import Names


def _remove(account: Account, thing: Thing) -> None:
    """Delete a group after its rules, since groups may refer to each other. The default group goes with its VPC."""
    ec2 = account.client("ec2")
    for group in ec2.describe_security_groups(GroupIds=[thing.id])["SecurityGroups"]:
        if group["GroupName"] == "default":
            return
        if group.get("IpPermissions"):
            ec2.revoke_security_group_ingress(GroupId=thing.id, IpPermissions=group["IpPermissions"])
        if group.get("IpPermissionsEgress"):
            ec2.revoke_security_group_egress(GroupId=thing.id, IpPermissions=group["IpPermissionsEgress"])
    ec2.delete_security_group(GroupId=thing.id)


def _left(account: Account, names: Names) -> Iterator[Remain]:
    """Yield our groups if a rule elsewhere refers to them, then other people's in the campaign's VPC."""
    own_groups = {group["GroupId"]: group for group in its_groups(account, names)}
    if own_groups:
        yield from _named_elsewhere(account, own_groups)
    for group in in_its_vpc(account, names, "describe_security_groups", "SecurityGroups"):
        if group["GroupId"] not in own_groups and group["GroupName"] != "default":
            yield put_into_vpc(f"security group {group['GroupId']} ({group['GroupName']})", group, names)


def _named_elsewhere(account: Account, own_groups: Mapping[str, Mapping[str, Any]]) -> Iterator[Remain]:
    everywhere = every(account.client("ec2"), "describe_security_groups", "SecurityGroups")
    for foreign_group in (group for group in everywhere if group["GroupId"] not in own_groups):
        rules = [*foreign_group.get("IpPermissions", ()), *foreign_group.get("IpPermissionsEgress", ())]
        group_ids = {pair.get("GroupId") for rule in rules for pair in rule.get("UserIdGroupPairs", ())}
        for group_id in sorted(group_ids & set(own_groups)):
            yield Remain(
                f"security group {group_id} ({own_groups[group_id]['GroupName']})",
                f"a rule of {foreign_group['GroupId']} ({foreign_group['GroupName']}) names it",
                f"the owner of {foreign_group['GroupId']} revokes that rule",
            )


def _remake_rule(egress: bool) -> Callable[[Account, Inputs], bool]:
    def remake(account: Account, inputs: Inputs) -> bool:
        by_group = [{"Name": "group-id", "Values": [inputs["securityGroupId"]]}]
        rules = every(account.client("ec2"), "describe_security_group_rules", "SecurityGroupRules", Filters=by_group)
        rule_ids = [
            rule["SecurityGroupRuleId"] for rule in rules if rule["IsEgress"] == egress and _same_rule(rule, inputs)
        ]
        operation = f"revoke_security_group_{'egress' if egress else 'ingress'}"
        return bool(rule_ids) and delete_if_present(
            account, operation, GroupId=inputs["securityGroupId"], SecurityGroupRuleIds=rule_ids
        )

    return remake


def _same_rule(rule: Mapping[str, Any], inputs: Inputs) -> bool:
    """Compare two rules; -1 stands for no port, which differs from all ports."""

    def port(value: Any) -> int:
        return -1 if value is None else int(value)

    return (
        str(rule["IpProtocol"]) == str(inputs["ipProtocol"])
        and port(rule.get("FromPort")) == port(inputs.get("fromPort"))
        and port(rule.get("ToPort")) == port(inputs.get("toPort"))
        and rule.get("CidrIpv4") == inputs.get("cidrIpv4")
        and (rule.get("ReferencedGroupInfo") or {}).get("GroupId") == inputs.get("referencedSecurityGroupId")
    )


KINDS = (
    ec2(
        "security group", Step.FIREWALLS, "describe_security_groups", "SecurityGroups", "GroupId", "GroupName",
        arn="security-group", remove=_remove, remains=_left, 
        eks_names=("cluster", "eks-cluster-sg-", r"-\d+"),
        type="aws:ec2/securityGroup:SecurityGroup", filters={"vpc-id": "vpcId", "group-name": "name"},
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

"""A security group rule as a separate resource."""

from __future__ import annotations

from functools import partial
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.ec2.kind import retag
from infra.rehearsal.plugins.aws.table import LOCAL, Input
from infra.rehearsal.plugins.aws.tags import tag_list, tag_map
from infra.rehearsal.plugins.wire import Props


def create(side: str, call: Call) -> str:
    tags = tag_list(call.tags)
    tagged = {"TagSpecifications": [{"ResourceType": "security-group-rule", "Tags": tags}]} if tags else {}
    authorize = getattr(call.client(), f"authorize_security_group_{side}")
    answer = authorize(GroupId=call.new["securityGroupId"], IpPermissions=[_permission(call.new)], **tagged)
    return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])


def _permission(values: Props) -> dict[str, Any]:
    note = {"Description": values["description"]} if values.get("description") else {}
    item: dict[str, Any] = {"IpProtocol": str(values["ipProtocol"])}
    if values.get("fromPort") is not None:
        item |= {"FromPort": values["fromPort"], "ToPort": values["toPort"]}
    if values.get("cidrIpv4"):
        item["IpRanges"] = [{"CidrIp": values["cidrIpv4"], **note}]
    if values.get("cidrIpv6"):
        item["Ipv6Ranges"] = [{"CidrIpv6": values["cidrIpv6"], **note}]
    if values.get("prefixListId"):
        item["PrefixListIds"] = [{"PrefixListId": values["prefixListId"], **note}]
    if values.get("referencedSecurityGroupId"):
        item["UserIdGroupPairs"] = [{"GroupId": values["referencedSecurityGroupId"], **note}]
    return item


def read(call: Call) -> Props | None:
    client = call.client()
    answer = call.or_none(lambda: client.describe_security_group_rules(SecurityGroupRuleIds=[call.id]))
    if not answer or not answer["SecurityGroupRules"]:
        return None
    found = answer["SecurityGroupRules"][0]
    observed = call.observed(found)
    if found.get("IpProtocol") == "-1":
        # AWS shows the ports of a rule for all protocols as -1; the program leaves them out.
        observed = {name: value for name, value in observed.items() if name not in ("fromPort", "toPort")}
    return {
        **observed,
        "referencedSecurityGroupId": (found.get("ReferencedGroupInfo") or {}).get("GroupId"),
        "securityGroupRuleId": call.id,
        "arn": call.arn("ec2", f"security-group-rule/{call.id}"),
        "tags": tag_map(found.get("Tags") or []),
    }


def update(call: Call) -> None:
    table = call.resource.table()
    rule = call.request(*(name for name in table if name not in ("securityGroupId", "tags", "region")))
    call.client().modify_security_group_rules(
        GroupId=call.new["securityGroupId"],
        SecurityGroupRules=[{"SecurityGroupRuleId": call.id, "SecurityGroupRule": rule}],
    )


def delete(side: str, call: Call) -> None:
    revoke = getattr(call.client(), f"revoke_security_group_{side}")
    permission = _permission(call.state)
    call.destroy(lambda: revoke(GroupId=call.state["securityGroupId"], IpPermissions=[permission]))


def _rule(side: str) -> Resource:
    return Resource(
        token=f"aws:vpc/securityGroup{side.title()}Rule:SecurityGroup{side.title()}Rule",
        service="ec2",
        inputs={
            "securityGroupId": Input(api="GroupId", required=True, replaces=True),
            "ipProtocol": Input(required=True),
            "fromPort": Input(),
            "toPort": Input(),
            "cidrIpv4": Input(),
            "cidrIpv6": Input(),
            "prefixListId": Input(),
            "referencedSecurityGroupId": Input(api="ReferencedGroupId"),
            "description": Input(),
        },
        outputs={"arn": LOCAL, "securityGroupRuleId": None},
        create=partial(create, side),
        read=read,
        update=update,
        delete=partial(delete, side),
        tagger=retag,
    )


RESOURCES = (_rule("ingress"), _rule("egress"))

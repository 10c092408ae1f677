"""Security groups, with rules inline or as separate resources."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input, Naming
from infra.rehearsal.plugins.wire import Props

GROUP = Ec2Kind("security_group", id_field="GroupId")
_INLINE = {
    "fromPort": Input(required=True),
    "toPort": Input(required=True),
    "protocol": Input(required=True),
    "cidrBlocks": Input(kind=Conversion.SET),
    "securityGroups": Input(kind=Conversion.SET),
    "self": Input(),
    "description": Input(),
}
_EVERYWHERE = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


def create_group(call: Call) -> str:
    client = call.client()
    answer = client.create_security_group(
        GroupName=call.new["name"], **call.request("description", "vpcId"), **GROUP.tagged(call)
    )
    call.id = answer["GroupId"]
    call.wait(lambda: GROUP.describe(call), f"security group {call.id} to exist")
    # As in the real plugin, the rule that allows all egress exists only if the program sets it.
    client.revoke_security_group_egress(GroupId=call.id, IpPermissions=[_EVERYWHERE])
    update_group(call)
    return call.id


def update_group(call: Call) -> None:
    client = call.client()
    for side in ("ingress", "egress"):
        before = _permissions(call.id, call.old.get(side) or [])
        after = _permissions(call.id, call.new.get(side) or [])
        stale = [item for item in before if item not in after]
        fresh = [item for item in after if item not in before]
        if stale:
            getattr(client, f"revoke_security_group_{side}")(GroupId=call.id, IpPermissions=stale)
        if fresh:
            getattr(client, f"authorize_security_group_{side}")(GroupId=call.id, IpPermissions=fresh)


def _permissions(group: str, rules: list[Props]) -> list[dict[str, Any]]:
    result = []
    for rule in rules:
        note = {"Description": rule["description"]} if rule.get("description") else {}
        pairs = [*(rule.get("securityGroups") or []), *([group] if rule.get("self") else [])]
        item = {"IpProtocol": rule["protocol"]}
        if rule["protocol"] != "-1":
            item |= {"FromPort": rule["fromPort"], "ToPort": rule["toPort"]}
        if rule.get("cidrBlocks"):
            item["IpRanges"] = [{"CidrIp": cidr, **note} for cidr in rule["cidrBlocks"]]
        if pairs:
            item["UserIdGroupPairs"] = [{"GroupId": pair, **note} for pair in pairs]
        result.append(item)
    return result


def read_group(call: Call) -> Props | None:
    found = GROUP.describe(call)
    if not found:
        return None
    arn = call.arn("ec2", f"security-group/{call.id}")
    return {**call.observed(found), "name": found["GroupName"], "arn": arn, "tags": found["Tags"]}


def delete_group(call: Call) -> None:
    found = GROUP.describe(call)
    client = call.client()
    if found and call.state.get("revokeRulesOnDelete"):
        if found["IpPermissions"]:
            client.revoke_security_group_ingress(GroupId=call.id, IpPermissions=found["IpPermissions"])
        if found["IpPermissionsEgress"]:
            client.revoke_security_group_egress(GroupId=call.id, IpPermissions=found["IpPermissionsEgress"])
    call.destroy(lambda: client.delete_security_group(GroupId=call.id), "InvalidGroup.InUse", "CannotDelete")
    call.wait_gone(lambda: GROUP.describe(call), f"security group {call.id} to go")


RESOURCES = (
    Resource(
        token="aws:ec2/securityGroup:SecurityGroup",
        service="ec2",
        inputs={
            "description": Input(replaces=True, default="Managed by Pulumi"),
            "vpcId": Input(replaces=True, computed=True),
            "revokeRulesOnDelete": Input(api=LOCAL, default=False),
            "ingress": Input(api=LOCAL, fields=_INLINE),
            "egress": Input(api=LOCAL, fields=_INLINE),
        },
        outputs={"arn": LOCAL, "ownerId": None},
        naming=Naming(),
        identity=("name", "vpcId"),
        create=create_group,
        read=read_group,
        update=update_group,
        delete=delete_group,
        tagger=retag,
    ),
)

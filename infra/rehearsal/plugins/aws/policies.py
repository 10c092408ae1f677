"""Managed policies: a new text becomes a new version; AWS keeps five."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_id, retagging, tag_list, tag_map
from infra.rehearsal.plugins.wire import Props

_KEPT = 5


def create(call: Call) -> str:
    request = call.request("policy", "description", "path")
    answer = call.client().create_policy(PolicyName=call.new["name"], Tags=tag_list(call.tags), **request)
    return str(answer["Policy"]["Arn"])


def read(call: Call) -> Props | None:
    client = call.client()
    answer = call.or_none(lambda: client.get_policy(PolicyArn=call.id))
    if not answer:
        return None
    found = answer["Policy"]
    version = client.get_policy_version(PolicyArn=call.id, VersionId=found["DefaultVersionId"])["PolicyVersion"]
    tags = tag_map(call.listed("list_policy_tags", "Tags", PolicyArn=call.id))
    return {
        **call.observed({**found, "PolicyDocument": version["Document"]}),
        "name": found["PolicyName"],
        "tags": tags,
    }


def update(call: Call) -> None:
    client = call.client()
    if call.changed("policy"):
        old = [item for item in _versions(call) if not item["IsDefaultVersion"]]
        if len(old) >= _KEPT - 1:
            client.delete_policy_version(PolicyArn=call.id, VersionId=old[-1]["VersionId"])
        client.create_policy_version(PolicyArn=call.id, PolicyDocument=call.new["policy"], SetAsDefault=True)


def delete(call: Call) -> None:
    client = call.client()
    for version in call.or_none(lambda: _versions(call)) or []:
        if not version["IsDefaultVersion"]:
            client.delete_policy_version(PolicyArn=call.id, VersionId=version["VersionId"])
    call.destroy(lambda: client.delete_policy(PolicyArn=call.id), "DeleteConflict")


def _versions(call: Call) -> list[Props]:
    found = call.listed("list_policy_versions", "Versions", PolicyArn=call.id)
    return sorted(found, key=lambda item: item["CreateDate"], reverse=True)


retag = retagging("PolicyArn", by_id, noun="policy")


RESOURCES = (
    Resource(
        token="aws:iam/policy:Policy",
        service="iam",
        regional=False,
        inputs={
            "policy": Input(api="PolicyDocument", required=True, kind=Conversion.JSON),
            "description": Input(replaces=True),
            "path": Input(default="/", replaces=True),
        },
        outputs={"arn": None, "policyId": None, "attachmentCount": None},
        naming=Naming(longest=128),
        identity=("name", "path"),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)

"""KMS keys and their aliases."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_id, retagging
from infra.rehearsal.plugins.wire import Props

_WINDOW_DAYS = 30


def _pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"TagKey": key, "TagValue": value} for key, value in sorted(tags.items())]


def create_key(call: Call) -> str:
    client = call.client()
    tags = {"Tags": _pairs(call.tags)} if call.tags else {}
    call.id = str(
        client.create_key(**call.request("description", "policy", "keyUsage"), **tags)["KeyMetadata"]["KeyId"]
    )
    if call.new.get("enableKeyRotation"):
        client.enable_key_rotation(KeyId=call.id)
    return call.id


def read_key(call: Call) -> Props | None:
    client = call.client()
    answer = call.or_none(lambda: client.describe_key(KeyId=call.id))
    if not answer or answer["KeyMetadata"]["KeyState"] == "PendingDeletion":
        return None
    found = answer["KeyMetadata"]
    tags = call.listed("list_resource_tags", "Tags", KeyId=call.id)
    return {
        **call.observed(found),
        "policy": client.get_key_policy(KeyId=call.id, PolicyName="default")["Policy"],
        "enableKeyRotation": client.get_key_rotation_status(KeyId=call.id)["KeyRotationEnabled"],
        "isEnabled": found["Enabled"],
        "tags": {tag["TagKey"]: tag["TagValue"] for tag in tags},
    }


def update_key(call: Call) -> None:
    client = call.client()
    if call.changed("description"):
        client.update_key_description(KeyId=call.id, Description=call.new.get("description") or "")
    if call.changed("policy"):
        client.put_key_policy(KeyId=call.id, PolicyName="default", Policy=call.new["policy"])
    if call.changed("enableKeyRotation"):
        act = client.enable_key_rotation if call.new.get("enableKeyRotation") else client.disable_key_rotation
        act(KeyId=call.id)


def delete_key(call: Call) -> None:
    """Schedule the deletion: AWS deletes keys only after a waiting period."""
    days = int(call.state.get("deletionWindowInDays") or _WINDOW_DAYS)
    call.destroy(lambda: call.client().schedule_key_deletion(KeyId=call.id, PendingWindowInDays=days))


retag = retagging("KeyId", by_id, form=_pairs)


def create_alias(call: Call) -> str:
    call.client().create_alias(AliasName=call.new["name"], TargetKeyId=call.new["targetKeyId"])
    return str(call.new["name"])


def read_alias(call: Call) -> Props | None:
    pages = call.client().get_paginator("list_aliases").paginate()
    found = next((one for page in pages for one in page["Aliases"] if one["AliasName"] == call.id), None)
    if not found or not found.get("TargetKeyId"):
        return None
    key = found["TargetKeyId"]
    return {
        "name": call.id,
        "targetKeyId": key,
        "arn": found["AliasArn"],
        "targetKeyArn": call.arn("kms", f"key/{key}"),
    }


def update_alias(call: Call) -> None:
    call.client().update_alias(AliasName=call.id, TargetKeyId=call.new["targetKeyId"])


def delete_alias(call: Call) -> None:
    call.destroy(lambda: call.client().delete_alias(AliasName=call.id))


RESOURCES = (
    Resource(
        token="aws:kms/key:Key",
        service="kms",
        inputs={
            "description": Input(computed=True),
            "policy": Input(kind=Conversion.JSON, computed=True),
            "keyUsage": Input(replaces=True, default="ENCRYPT_DECRYPT"),
            "enableKeyRotation": Input(api=LOCAL),
            "deletionWindowInDays": Input(api=LOCAL),
        },
        outputs={"arn": None, "keyId": None},
        create=create_key,
        read=read_key,
        update=update_key,
        delete=delete_key,
        tagger=retag,
    ),
    Resource(
        token="aws:kms/alias:Alias",
        service="kms",
        inputs={"targetKeyId": Input(api=LOCAL, required=True)},
        outputs={"arn": LOCAL, "targetKeyArn": LOCAL},
        naming=Naming(longest=256),
        identity=("name",),
        create=create_alias,
        read=read_alias,
        update=update_alias,
        delete=delete_alias,
    ),
)

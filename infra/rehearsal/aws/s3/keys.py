"""Customers' keys: what S3 asks of KMS in a caller's name, and what a key's own policy says to it.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html
https://docs.aws.amazon.com/kms/latest/developerguide/key-policies.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from moto.s3.exceptions import S3ClientError

from infra.rehearsal.aws.iam.policies import Question, applies, listed
from infra.rehearsal.aws.world import World

_MAKES = ("kms:GenerateDataKey",)
_READS = ("kms:Decrypt",)
ASKS = {
    "PutObject": _MAKES,
    "CopyObject": _MAKES,
    "CreateMultipartUpload": _MAKES,
    # A part is put to what came before it, so that is opened first.
    "UploadPart": (*_MAKES, *_READS),
    "CompleteMultipartUpload": (*_MAKES, *_READS),
    "GetObject": _READS,
}
"""Operation of S3 -> what it needs of the key."""


def through_s3(world: World, operation: str, params: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Action, key and conditions: of its own for an object that is read, of the asked or the bucket's for a write."""
    bucket = world.backend("s3").buckets.get(params.get("Bucket"))
    if bucket is None or operation not in ASKS:
        return
    key, by_bucket = _of_object(world, params) if operation == "GetObject" else _default(bucket)
    if asked := params.get("SSEKMSKeyId"):
        key, by_bucket = asked, False
    if key:
        # With a key per bucket the context of the encryption is the bucket, else the object.
        about = f"arn:aws:s3:::{params['Bucket']}" + ("" if by_bucket else f"/{params['Key']}")
        via = {"kms:viaservice": [f"s3.{world.region}.amazonaws.com"], "kms:encryptioncontext:aws:s3:arn": [about]}
        for action in ASKS[operation]:
            yield action, key, via


def _default(bucket: Any) -> tuple[str | None, bool]:
    if not bucket.encryption:
        return None, False
    rule = listed(bucket.encryption["Rule"])[0]
    default = rule.get("ApplyServerSideEncryptionByDefault") or {}
    return default.get("KMSMasterKeyID"), str(rule.get("BucketKeyEnabled")).lower() == "true"


def _of_object(world: World, params: dict[str, Any]) -> tuple[str | None, bool]:
    """What it was written under, whatever the bucket says by now."""
    try:
        found = world.backend("s3").get_object(params["Bucket"], params["Key"], params.get("VersionId"))
    except S3ClientError:
        return None, False
    if found is None:
        return None, False
    return getattr(found, "kms_key_id", None), str(getattr(found, "bucket_key_enabled", False)).lower() == "true"


def key_lets(world: World, names: list[str], question: Question, by_identity: bool) -> bool:
    """Whether the key's policy agrees: it names the caller (`names`: its ARNs), or the account, which leaves it to IAM.

    `by_identity`: what IAM says. A key that is not here is judged by IAM alone.
    """
    key = world.backend("kms").keys.get(str(question.resource).rpartition("/")[2])
    if key is None:
        return by_identity
    account = f"arn:aws:iam::{world.account}:root"
    question = Question(question.action, "*", {**question.context, "kms:calleraccount": [world.account]})
    said = set[tuple[str, bool]]()
    for statement in listed(json.loads(key.policy)["Statement"]):
        principal = statement.get("Principal", {})
        # Services do not sign requests here.
        who = set(listed(principal.get("AWS", []) if isinstance(principal, dict) else principal))
        if applies({**statement, "Resource": "*"}, question):
            direct = bool(who & {"*", *names})
            if direct or who & {account, world.account}:
                said.add((statement["Effect"], direct))
    if any(effect == "Deny" for effect, _ in said):
        return False
    return ("Allow", True) in said or (("Allow", False) in said and by_identity)

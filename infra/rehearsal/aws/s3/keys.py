"""Customer-managed keys: the use of KMS by S3 and SNS on a caller's behalf, and the verdict of a key's own policy.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html
https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html
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
    # A part extends earlier ones, which S3 decrypts first.
    "UploadPart": (*_MAKES, *_READS),
    "CompleteMultipartUpload": (*_MAKES, *_READS),
    "GetObject": _READS,
}
"""S3 operation -> the permissions it needs on the key."""


Asked = Iterator[tuple[str, str, dict[str, list[str]]]]
"""Action, key and conditions of a call to KMS on the caller's behalf."""


def key_needs(world: World, service: str, operation: str, params: dict[str, Any]) -> Asked:
    """Yield what a service asks of KMS for this call."""
    if service == "s3":
        yield from _through_s3(world, operation, params)
    elif (service, operation) == ("sns", "Publish"):
        topic = world.backend("sns").topics.get(params.get("TopicArn"))
        for action in (*_MAKES, *_READS) if topic is not None and topic.kms_master_key_id else ():
            yield action, topic.kms_master_key_id, {"kms:viaservice": [f"sns.{world.region}.amazonaws.com"]}


def _through_s3(world: World, operation: str, params: dict[str, Any]) -> Asked:
    """A read uses the object's key, a write the requested or the bucket's."""
    bucket = world.backend("s3").buckets.get(params.get("Bucket"))
    if bucket is None or operation not in ASKS:
        return
    key, by_bucket = _of_object(world, params) if operation == "GetObject" else _default(bucket)
    if key_id := params.get("SSEKMSKeyId"):
        key, by_bucket = key_id, False
    if key:
        # With a bucket key the encryption context is the bucket, otherwise the object.
        arn = f"arn:aws:s3:::{params['Bucket']}" + ("" if by_bucket else f"/{params['Key']}")
        via = {"kms:viaservice": [f"s3.{world.region}.amazonaws.com"], "kms:encryptioncontext:aws:s3:arn": [arn]}
        for action in ASKS[operation]:
            yield action, key, via


def _default(bucket: Any) -> tuple[str | None, bool]:
    if not bucket.encryption:
        return None, False
    rule = listed(bucket.encryption["Rule"])[0]
    default = rule.get("ApplyServerSideEncryptionByDefault") or {}
    return default.get("KMSMasterKeyID"), str(rule.get("BucketKeyEnabled")).lower() == "true"


def _of_object(world: World, params: dict[str, Any]) -> tuple[str | None, bool]:
    """Return the key that the object was written with, whatever the bucket's key is now."""
    try:
        stored_object = world.backend("s3").get_object(params["Bucket"], params["Key"], params.get("VersionId"))
    except S3ClientError:
        return None, False
    if stored_object is None:
        return None, False
    return getattr(stored_object, "kms_key_id", None), str(
        getattr(stored_object, "bucket_key_enabled", False)
    ).lower() == "true"


def key_lets(world: World, names: list[str], question: Question, by_identity: bool) -> bool:
    """Return True if the key's policy names the caller (`names`: its ARNs), or the account, which defers to IAM.

    `by_identity` is IAM's verdict. It alone decides for an unknown key.
    """
    key = world.backend("kms").keys.get(str(question.resource).rpartition("/")[2])
    if key is None:
        return by_identity
    account = f"arn:aws:iam::{world.account}:root"
    question = Question(question.action, "*", {**question.context, "kms:calleraccount": [world.account]})
    verdicts = set[tuple[str, bool]]()
    for statement in listed(json.loads(key.policy)["Statement"]):
        principal = statement.get("Principal", {})
        # Only AWS principals: services do not sign requests here.
        principals = set(listed(principal.get("AWS", []) if isinstance(principal, dict) else principal))
        if applies({**statement, "Resource": "*"}, question):
            direct = bool(principals & {"*", *names})
            if direct or principals & {account, world.account}:
                verdicts.add((statement["Effect"], direct))
    if any(effect == "Deny" for effect, _ in verdicts):
        return False
    return ("Allow", True) in verdicts or (("Allow", False) in verdicts and by_identity)

"""A test of a customer's own key, before the buckets of all campaigns use it."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, explained
from infra.errors import UserError
from infra.spec.names import FOUNDATION_TAG, KEY_TAG

_NEEDED = ("kms:GenerateDataKey", "kms:Decrypt", "kms:Encrypt")


def try_key(account: Account, key_arn: str, bucket: str, name: str) -> None:
    """Write and read an object of this name with the key, and check that its policy delegates to IAM.

    S3 accepts any key as a bucket's default and then refuses every write, Pulumi's state first.

    Raises `UserError` for a key that we cannot use, or that the campaigns' roles could not use.
    """
    s3, place = account.client("s3"), {"Bucket": bucket, "Key": name}
    try:
        s3.put_object(**place, Body=b"", ServerSideEncryption="aws:kms", SSEKMSKeyId=key_arn)
        try:
            s3.get_object(**place)["Body"].read()
        finally:
            s3.delete_object(**place)
    except ClientError as error:
        raise _useless(key_arn, str(explained(error))) from error
    try:
        policy = account.client("kms").get_key_policy(KeyId=key_arn, PolicyName="default")["Policy"]
    except ClientError:
        return  # only its administrators may read the policy; the test above has shown that we can use the key
    if denied_actions := _kept_from_iam(json.loads(policy), key_arn.split(":")[4]):
        raise _useless(key_arn, f"its policy allows {' and '.join(denied_actions)} only to some principals")
    refuse_unmarked(account, key_arn)


def refuse_unmarked(account: Account, key_arn: str) -> None:
    """Raise `UserError` for a key that is seen to lack the tag by which its owner lets clusters use it."""
    try:
        tags = sorted(
            tag["TagKey"] for tag in every(account.client("kms"), "list_resource_tags", "Tags", KeyId=key_arn)
        )
    except ClientError:
        return  # whose tags cannot be seen; the roles' own calls will tell
    if not {KEY_TAG, FOUNDATION_TAG} & set(tags):
        detail = f"{key_arn} has the tags {', '.join(tags) or 'none'}"
        cure = f"its owner opts in: `aws kms tag-resource --key-id {key_arn} --tags TagKey={KEY_TAG},TagValue=true`"
        raise UserError("the key of encryption.key_arn may not be used by clusters", seen=detail, cure=cure)


def _useless(key_arn: str, detail: str) -> UserError:
    return UserError(
        "the buckets cannot use the key of encryption.key_arn; nothing was switched to it",
        seen=f"{key_arn}: {detail}",
        cure=f"enable it, and let its policy allow {' and '.join(_NEEDED)} to the account's root, which leaves them "
        "to IAM: the roles of every campaign write to these buckets",
    )


def _kept_from_iam(policy: dict[str, Any], account: str) -> list[str]:
    """Return the needed actions that no statement allows to the whole account."""
    account_names = {"*", account, f"arn:aws:iam::{account}:root"}
    patterns = [
        pattern
        for statement in policy["Statement"]
        if statement["Effect"] == "Allow"
        and account_names & set(_principals(statement.get("Principal", {})))
        and not _of_some_callers(statement.get("Condition", {}))
        for pattern in _as_list(statement.get("Action", []))
    ]
    return [
        action
        for action in _NEEDED
        if not any(fnmatchcase(action.lower(), candidate.lower()) for candidate in patterns)
    ]


def _of_some_callers(condition: dict[str, dict[str, Any]]) -> bool:
    return any(key.lower().startswith(("aws:principal", "aws:user")) for keys in condition.values() for key in keys)


def _principals(principal: Any) -> list[str]:
    return _as_list(principal.get("AWS", []) if isinstance(principal, dict) else principal)


def _as_list(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]

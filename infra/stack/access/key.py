"""The customer's KMS key. The foundation owns it: an archive needs its key for ever."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi import ResourceOptions

from infra.spec.names import FOUNDATION_PREFIX, KEY_ALIAS

DELETION_WINDOW_DAYS = 30
_USE = ("kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*")
_SERVICE_ROLES = "role/aws-service-role"


class CustomerKey(pulumi.ComponentResource):
    """A key (`arn`) that rotates every year and outlives even the foundation's stack."""

    def __init__(self, account: str, region: str, opts: ResourceOptions | None = None) -> None:
        super().__init__("bivouac:infra:CustomerKey", "key", None, opts)
        key = aws.kms.Key(
            "key",
            description="Bivouac: buckets, file systems, volumes and cluster secrets",
            enable_key_rotation=True,
            deletion_window_in_days=DELETION_WINDOW_DAYS,
            policy=json.dumps(key_policy(account, region), sort_keys=True),
            # Without the key everything encrypted with it would be lost.
            opts=ResourceOptions(parent=self, retain_on_delete=True),
        )
        aws.kms.Alias("key", name=KEY_ALIAS, target_key_id=key.key_id, opts=ResourceOptions(parent=self))
        self.arn = key.arn
        self.register_outputs({"arn": self.arn})


def key_policy(account: str, region: str) -> dict[str, Any]:
    """Return the key's policy. `*` as a resource there is the key alone. Service-linked roles are named by condition,
    not as principals: KMS refuses a principal that does not exist yet."""

    def service_role(name: str) -> dict[str, Any]:
        return {
            "StringEquals": {"kms:CallerAccount": account},
            "ArnLike": {"aws:PrincipalArn": f"arn:aws:iam::{account}:{_SERVICE_ROLES}/{name}"},
        }

    scaling = service_role("autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling*")
    data_role = service_role("s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_*")
    log_groups = f"arn:aws:logs:{region}:{account}:log-group:/aws/eks/{FOUNDATION_PREFIX}*"
    return {
        "Version": "2012-10-17",
        "Statement": [
            # All actions to the account: so IAM decides, and nobody can lock the account out of its key.
            _statement("Account", {"AWS": f"arn:aws:iam::{account}:root"}, ("kms:*",)),
            _statement("NodeVolumes", {"AWS": "*"}, _USE, scaling),
            _statement(
                "NodeVolumesGrants",
                {"AWS": "*"},
                ("kms:CreateGrant",),
                scaling | {"Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
            _statement("LinkedDataSets", {"AWS": "*"}, _USE, data_role),
            _statement(
                "ControlPlaneLogs",
                {"Service": f"logs.{region}.amazonaws.com"},
                _USE,
                {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
            ),
        ],
    }


def _statement(
    sid: str, principal: dict[str, str], actions: tuple[str, ...], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": sid, "Effect": "Allow", "Principal": principal, "Action": list(actions), "Resource": "*"}
    return statement | ({"Condition": condition} if condition else {})

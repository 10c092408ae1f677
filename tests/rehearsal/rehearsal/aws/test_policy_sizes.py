"""IAM takes policies up to a size, by characters without white space; larger ones are refused, as at AWS."""

from __future__ import annotations

import json
from typing import Any

from tests.rehearsal.aws_account import Account, code_of

TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})


def document(size: int, indent: int | None = None) -> str:
    """A policy of so many characters that are no white space."""
    statement: dict[str, Any] = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::"}
    whole = {"Version": "2012-10-17", "Statement": [statement]}
    statement["Resource"] += "x" * (size - len(json.dumps(whole, separators=(",", ":"))))
    return json.dumps(whole, indent=indent)


def test_a_managed_policy_has_6144_characters_at_most_in_each_version(aws: Account) -> None:
    policy = aws.iam.create_policy(PolicyName="fits", PolicyDocument=document(6144, indent=40))["Policy"]
    large = document(6145)
    assert code_of(lambda: aws.iam.create_policy(PolicyName="large", PolicyDocument=large)) == "LimitExceeded"
    again = {"PolicyArn": policy["Arn"], "SetAsDefault": True}
    assert code_of(lambda: aws.iam.create_policy_version(PolicyDocument=large, **again)) == "LimitExceeded"
    aws.iam.create_policy_version(PolicyDocument=document(6144), **again)


def test_a_roles_own_policies_have_10240_characters_together(aws: Account) -> None:
    aws.iam.create_role(RoleName="sized", AssumeRolePolicyDocument=TRUST)

    def put(name: str, size: int) -> Any:
        return aws.iam.put_role_policy(RoleName="sized", PolicyName=name, PolicyDocument=document(size))

    put("first", 6240)
    put("second", 4000)
    assert code_of(lambda: put("second", 4001)) == "LimitExceeded"
    assert code_of(lambda: put("third", 200)) == "LimitExceeded"
    put("first", 200)
    put("third", 6040)

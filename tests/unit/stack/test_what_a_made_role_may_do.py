"""Chains: what an operator gains who makes a role with a trust and a policy of its own, and assumes it.

IAM has no condition on the content of a trust or a policy: only the boundary stands between such a role and an account.
"""

from __future__ import annotations

import pytest

from tests.unit.stack.iam_questions import (
    ANYTHING,
    KEY,
    LIMIT,
    PARAMETER,
    SECRET,
    TOPIC,
    Ask,
    ask,
    ec2,
    granted,
    refused,
    role,
)
from tests.unit.stack.iam_requests import FOUNDATION, MARKED, UNDER, requests
from tests.unit.stack.test_who_may_do_what import OPERATOR, read

KINDS = ("archive", "budget", "cluster", "cni", "data", "guard", "node", "steward", "trainer")
"""How the names of roles end that the boundary knows, and one that it does not."""
NAMES = (
    *(f"bivouac-x-{kind}" for kind in KINDS),
    "bivouac-x",
    # Paths and names that a careless pattern would take for a role of the foundation.
    "bivouac-x/bivouac_closer_us-east-1",
    "bivouac-bivouac_closer_us-east-1",
    "bivouac-x/bivouac_build_us-east-1",
)


def steps(name: str) -> list[Ask]:
    """What an operator must do before it has the role's session; `name` may have a path."""
    at = role(name)
    return [ask("iam:CreateRole", at, {**MARKED, **UNDER}), ask("iam:PutRolePolicy", at, UNDER)]


@pytest.mark.parametrize("name", NAMES)
def test_a_role_that_an_operator_makes_and_assumes_reads_nothing_of_other_peoples(name: str) -> None:
    operator = read(*OPERATOR)
    assert refused(steps(name), role("operator"), operator) == [], "else the chain ends before, and shows nothing"
    # A trust that names the operator's own role needs no right of it to assume the role.
    assert granted(requests("never a made role"), role(name), ANYTHING, LIMIT) == []
    assert granted(requests("roles_never"), role(name), ANYTHING, LIMIT) == []


def test_an_operator_makes_no_role_beyond_the_boundary_and_opens_none_that_stands() -> None:
    operator = read(*OPERATOR)
    for name in NAMES:
        at = role(name)
        assert granted(
            [
                ask("iam:CreateRole", at, {**MARKED, **FOUNDATION}),
                ask("iam:PutRolePermissionsBoundary", at, FOUNDATION),
                ask("iam:PutRolePolicy", at, FOUNDATION),
                ask("iam:UpdateAssumeRolePolicy", at),
                ask("iam:DeleteRolePermissionsBoundary", at, UNDER),
                *(ask("iam:PassRole", at, {"iam:PassedToService": to}) for to in (
                    "codebuild.amazonaws.com", "lambda.amazonaws.com", "glue.amazonaws.com")),
            ],
            role("operator"),
            operator,
        ) == [], name  # fmt: skip


OPENED = {
    "trainer": [
        ask("secretsmanager:GetSecretValue", f"{SECRET}bivouac_job/token-AbC123"),
        ask("ssm:GetParameter", f"{PARAMETER}bivouac_job/key"),
        ask("s3:GetObject", "arn:aws:s3:::shards/v2/a", {"s3:BucketTag/bivouac:mounts": "true"}),
        ask("s3:ListBucket", "arn:aws:s3:::shards", {"s3:BucketTag/bivouac:mounts": "true"}),
    ],
    "steward": [
        ask("secretsmanager:GetSecretValue", f"{SECRET}bivouac_webhook-AbC123"),
    ],
    "data": [
        ask(f"s3:{act}", at, {"s3:BucketTag/bivouac:text": "true"})
        for act, at in (("GetObject", "arn:aws:s3:::texts/web/a"), ("ListBucket", "arn:aws:s3:::texts"))
    ],
    "cluster": [ask("kms:Decrypt", KEY, {"aws:ResourceTag/bivouac:key": "true"})],
}
"""What its owner has opened, by a name or a tag, to the roles of one kind."""


@pytest.mark.parametrize("kind", OPENED)
def test_what_its_owner_opens_is_open_to_one_kind_of_roles(kind: str) -> None:
    assert refused(OPENED[kind], role(f"bivouac-x-{kind}"), ANYTHING, LIMIT) == []
    for other in (f"bivouac-x-{one}" for one in KINDS if one != kind):
        assert granted(OPENED[kind], role(other), ANYTHING, LIMIT) == [], other


def test_topics_are_open_to_stewards_and_to_what_ends_nodes_without_them() -> None:
    topics = [ask("sns:Publish", TOPIC), ask("sns:Publish", TOPIC.replace("_notices", "_pager"))]
    for kind in KINDS:
        judge = refused if kind in ("steward", "guard") else granted
        assert judge(topics, role(f"bivouac-x-{kind}"), ANYTHING, LIMIT) == [], kind


def test_an_operators_own_policies_open_nothing() -> None:
    assert granted(
        [
            ask("secretsmanager:TagResource", f"{SECRET}payroll-AbC123", {"aws:TagKeys": "bivouac:job"}),
            ask("secretsmanager:CreateSecret", f"{SECRET}bivouac_job-AbC123"),
            ask("ssm:PutParameter", f"{PARAMETER}bivouac_job"),
            ask("kms:TagResource", KEY, {"aws:TagKeys": "bivouac:key"}),
            *(ask(f"s3:{act}", "arn:aws:s3:::payroll", {"aws:TagKeys": "bivouac:text"}) for act in (
                "PutBucketTagging", "TagResource", "PutBucketAbac")),
            ask("ec2:DescribeInstanceAttribute", ec2("instance")),
        ],
        role("operator"),
        read(*OPERATOR),
    ) == []  # fmt: skip


def test_user_data_is_shown_of_instances_of_campaigns_and_of_the_foundation() -> None:
    for name in ("operator/look", "preview-role"):
        for tag in ("campaign", "foundation"):
            asked = ask("ec2:DescribeInstanceAttribute", ec2("instance"), {f"aws:ResourceTag/bivouac:{tag}": "x"})
            assert refused([asked], role("somebody"), read(name)) == [], (name, tag)
        assert granted([ask("ec2:DescribeInstanceAttribute", ec2("instance"))], role("x"), read(name)) == []

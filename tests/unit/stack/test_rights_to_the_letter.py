"""Each grant of each role, and its near misses: another account, another region, a neighbour's name, a condition that
is not met or not told. The grants are written down by hand; what misses them is derived from what is written here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.stack.access import freeze, policies
from tests.example import example_spec
from tests.unit.stack.iam_questions import (
    ANYTHING,
    ARCHIVE,
    BASE,
    BASES,
    BUILDER,
    FREEZE,
    GROUP,
    KEY,
    LIMIT,
    OWN,
    OWNED,
    PARAMETER,
    PULL,
    PUSH,
    S3_KEY,
    SCALING,
    SCHEDULE,
    SECRET,
    SOMEBODY,
    SPEC,
    STATE,
    STEWARD,
    STRANGER,
    TAGGED,
    TOPIC,
    TRAINER,
    A,
    Grant,
    R,
    arn_of,
    ask,
    ec2,
    granted,
    job,
    limit_of,
    may,
    refused,
    role,
    written,
)


def through_s3(*buckets: str) -> list[Grant]:
    """Any key, as S3 uses it for a bucket or for what lies in it."""
    about = [f"{bucket}{end}" for bucket in buckets for end in ("", "/campaigns/train/x")]
    other = ec2("key")  # a resource of another service's
    return [
        Grant("kms:Decrypt kms:GenerateDataKey", (KEY,), {**S3_KEY, "kms:EncryptionContext:aws:s3:arn": one}, (other,))
        for one in about
    ]


def folder(bucket: str, more: str = "") -> list[Grant]:
    objects = (f"{bucket}/campaigns/train/x", f"{bucket}/campaigns/train/1a2b/step-1/y")
    others = (
        f"{bucket}/campaigns/train",
        f"{bucket}/campaigns/train-gpu/x",
        f"{bucket}/other/x",
        f"{bucket}-2/campaigns/train/x",
    )
    return [
        Grant(f"s3:GetObject s3:PutObject {more}", objects, {}, others),
        *(
            Grant("s3:ListBucket", (bucket,), {"s3:prefix": prefix}, (f"{bucket}-2",))
            for prefix in ("campaigns/train/", "campaigns/train/1a2b/events/")
        ),
    ]


def of_copies() -> list[Grant]:
    """The interval copies, and no archive, may be removed."""
    acts = "GetObject PutObject GetObjectVersion AbortMultipartUpload ListMultipartUploadParts DeleteObject"
    others = (
        f"{ARCHIVE}/copies/train",
        f"{ARCHIVE}/copies/train-gpu/x",
        f"{ARCHIVE}/campaigns/train-gpu/x",
        f"{STATE}/copies/train/x",
    )
    removed = "s3:DeleteObject s3:DeleteObjectVersion"
    return [
        Grant(" ".join(f"s3:{act}" for act in [*acts.split(), "DeleteObjectVersion"]),
              (f"{ARCHIVE}/copies/train/1a2b/step-00000020/attempt-0001/x",), {}, others),
        Grant(removed, (f"{ARCHIVE}/copies/train/x",), {}, (f"{ARCHIVE}/campaigns/train/x", f"{STATE}/copies/train/x")),
        *(
            Grant(act, (ARCHIVE,), {"s3:prefix": "copies/train/1a2b/"}, (f"{ARCHIVE}-2", STATE))
            for act in ("s3:ListBucket", "s3:ListBucketVersions")
        ),
    ]  # fmt: skip


OTHER_GROUPS = (
    f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu2/9a",
    f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-system/9a",
    f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train-gpu/bivouac-train-gpu-gpu/9a",
)
PUBLISHING = (
    Grant("sns:Publish", (TOPIC,), {}, (f"{TOPIC}2", TOPIC.replace("bivouac_notices", "payroll"))),
    Grant("kms:Decrypt kms:GenerateDataKey", (KEY,), {"kms:ViaService": f"sns.{R}.amazonaws.com"}, (ec2("key"),)),
)
SILENCE = (
    Grant(
        "scheduler:GetSchedule scheduler:UpdateSchedule", (f"{SCHEDULE}silence", f"{SCHEDULE}silence-notice"), {},
        tuple(f"{SCHEDULE}{other}" for other in ("deadline", "launch", "launch-notice", "closer", "gpu-silence")),
    ),
    Grant(
        "iam:PassRole", (role("bivouac-train-guard"),), {"iam:PassedToService": "scheduler.amazonaws.com"},
        tuple(role(f"bivouac-{other}") for other in ("train-steward", "train-node", "train-gpu-guard", "train-guard2")),
    ),
)  # fmt: skip
"""What the steward postpones, and the role that acts if it does not."""
GRANTS: dict[str, list[Grant]] = {
    "steward": [
        Grant("eks:DescribeNodegroup eks:UpdateNodegroupConfig", (GROUP,), {}, OTHER_GROUPS),
        Grant(
            "autoscaling:TerminateInstanceInAutoScalingGroup", (SCALING,), TAGGED,
            (SCALING.replace("gpu-9a", "gpu2-9a"), SCALING.replace("eks-bivouac", "payroll")),
        ),
        Grant(
            "autoscaling:DescribeAutoScalingGroups autoscaling:DescribeScalingActivities"
            " ec2:DescribeInstanceStatus ec2:DescribeInstances", ("*",),
        ),
        *folder(STATE),
        Grant(
            "s3:PutObject", (f"{STATE}/foundation/faults/train/i-0a.json",), {},
            (f"{STATE}/foundation/faults/train2/i-0a.json", f"{STATE}/foundation/keeping.json"),
        ),
        *through_s3(STATE),
        *PUBLISHING,
        *SILENCE,
    ],
    "archive": [
        *folder(ARCHIVE, "s3:GetObjectVersion s3:AbortMultipartUpload s3:ListMultipartUploadParts"),
        *of_copies(),
        *folder(STATE),
        Grant("s3:ListBucketMultipartUploads", (ARCHIVE,), {}, (STATE, f"{ARCHIVE}-2")),
        Grant("s3:GetObject", (f"{STATE}/images/abc.json",), {}, (f"{STATE}/imagesx", f"{ARCHIVE}/images/abc.json")),
        *through_s3(ARCHIVE, STATE),
    ],
    "guard": [Grant("eks:UpdateNodegroupConfig", (GROUP,), {}, OTHER_GROUPS), *PUBLISHING],
    "trainer": [
        Grant(
            "secretsmanager:GetSecretValue",
            (f"{SECRET}bivouac_job/token-x1Y2z3", f"{SECRET}bivouac_job/other-AbC123"), {},
            tuple(f"{SECRET}bivouac_job/{name}" for name in (
                "token", "token-2-x1Y2z3", "other-XyZ789", "other-AbC123-x1Y2z3")),
        ),
        Grant(
            "ssm:GetParameter", (f"{PARAMETER}bivouac_job/key",), {},
            tuple(f"{PARAMETER}{name}" for name in ("bivouac_job/key2", "bivouac_job/key/below", "xbivouac_job/key")),
        ),
        Grant("kms:Decrypt", (KEY,), {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}, (ec2("key"),)),
        Grant("kms:Decrypt", (KEY,), {"kms:ViaService": f"ssm.{R}.amazonaws.com"}, (ec2("key"),)),
    ],
    "budget": [
        Grant(
            "iam:AttachRolePolicy iam:DetachRolePolicy",
            (f"arn:aws:iam::{A}:role/ci", f"arn:aws:iam::{A}:role/teams/a/ci"),
            {"iam:PolicyARN": FREEZE},
            tuple(f"arn:aws:iam::{A}:role/{name}" for name in ("ci2", "teams/ci2", "xci", "admin")),
        )
    ],
    "builder": [
        Grant("ecr:GetAuthorizationToken", ("*",)),
        Grant(PULL, (TRAINER, BASE), {}, (ec2("repository"),)),
        Grant(PUSH, (TRAINER, STEWARD), {}, (BASE, BASES, f"{TRAINER}2")),
    ],
    "builder-guard": [Grant("ec2:TerminateInstances", (ec2("instance"),), BUILDER, (ec2("volume"),))],
    "cluster": [Grant("kms:Decrypt kms:DescribeKey kms:Encrypt kms:ListGrants", (KEY,), {}, (f"{KEY}6",))],
}  # fmt: skip


@pytest.mark.parametrize("name", GRANTS)
def test_a_role_may_do_what_is_written_and_misses_what_is_next_to_it(name: str) -> None:
    arn, own, grants = arn_of(name), OWN[name], GRANTS[name]
    asked = [one for grant in grants for one in grant.asked()]
    assert refused(asked, arn, own) == []
    marked = [ask(action, at, {**OWNED, **context}) for action, at, context in asked]
    assert refused(marked, arn, own, limit_of(name)) == [], "the boundary is in its way"
    # By its own policies alone: the boundary is there for the day on which somebody writes others.
    assert granted((one for grant in grants for one in grant.missed()), arn, own) == []


def test_a_steward_reads_the_webhooks_address_and_no_other_secret() -> None:
    pager = TOPIC.replace("_notices", "_pager")
    spec = example_spec(notify={"webhook": {"secret": "bivouac_webhook"}, "topic": pager})
    own, them = written(policies.steward(spec)), role("bivouac-train-steward")
    assert may(("secretsmanager:GetSecretValue", f"{SECRET}bivouac_webhook-AbC123", {}), them, own, LIMIT)
    assert may(("sns:Publish", pager, {}), them, own, LIMIT)
    for action, at in (
        ("secretsmanager:GetSecretValue", f"{SECRET}bivouac_webhook2-AbC123"),
        ("ssm:GetParameter", f"{PARAMETER}bivouac_webhook"),
        ("sns:Publish", TOPIC),
    ):
        assert not may((action, at, {}), them, own, LIMIT), at


def test_the_closer_tells_on_topics_of_the_account_and_reads_no_secret_but_a_webhooks() -> None:
    own, them, limit = OWN["closer"], arn_of("closer"), limit_of("closer")
    for action, at, other in (
        ("sns:Publish", TOPIC, TOPIC.replace(A, STRANGER)),
        ("sns:Publish", TOPIC, TOPIC.replace("bivouac_", "payroll_")),
        ("secretsmanager:GetSecretValue", f"{SECRET}bivouac_webhook-AbC123", f"{SECRET}team/webhook-AbC123"),
        ("ssm:GetParameter", f"{PARAMETER}bivouac_webhook", f"{PARAMETER}team/bivouac_webhook"),
    ):
        assert may((action, at, {}), them, own, limit) and not may((action, other, {}), them, own, limit), at
    through = {"kms:ViaService": f"sns.{R}.amazonaws.com"}
    assert may(("kms:GenerateDataKey", KEY, through), them, own, limit)
    assert not may(("kms:GenerateDataKey", KEY, {}), them, own, limit)


def test_a_trainer_has_the_rights_that_its_secrets_need_and_without_them_none() -> None:
    def services(*statements: dict[str, Any]) -> set[str]:
        actions = {one for statement in statements for one in statement["Action"]}
        vias = {one for statement in statements for one in statement.get("Condition", {}).get("StringEquals", {}).get(
            "kms:ViaService", [])}  # fmt: skip
        return actions | vias

    assert policies.trainer(SPEC) == policies.trainer(job()) == []
    assert services(*policies.trainer(job(A={"secret": "a"}))) == {
        "secretsmanager:GetSecretValue", "kms:Decrypt", f"secretsmanager.{R}.amazonaws.com",
    }  # fmt: skip
    assert services(*policies.trainer(job(A={"parameter": "a"}))) == {
        "ssm:GetParameter", "kms:Decrypt", f"ssm.{R}.amazonaws.com",
    }  # fmt: skip


def test_the_freeze_takes_away_what_bills_and_nothing_that_ends_a_campaign() -> None:
    frozen = ANYTHING + written(freeze.no_purchases())
    bills = (
        "autoscaling:CreateAutoScalingGroup autoscaling:SetDesiredCapacity autoscaling:UpdateAutoScalingGroup"
        " ec2:CreateCapacityReservation ec2:CreateFleet ec2:CreateNatGateway ec2:PurchaseCapacityBlock"
        " ec2:PurchaseCapacityBlockExtension ec2:RequestSpotInstances ec2:RunInstances eks:CreateCluster"
        " eks:CreateNodegroup fsx:CreateFileSystem"
    )
    ends = (
        "ec2:TerminateInstances ec2:DeleteVpc ec2:DeleteNatGateway eks:DeleteNodegroup eks:DeleteCluster"
        " eks:UpdateNodegroupConfig fsx:DeleteFileSystem s3:GetObject iam:DetachRolePolicy"
    )
    assert granted((ask(one, "arn:aws:x:::y") for one in bills.split()), SOMEBODY, frozen) == []
    assert refused((ask(one, "arn:aws:x:::y") for one in ends.split()), SOMEBODY, frozen) == []
    assert not may(ask("ec2:TerminateInstances", "*"), SOMEBODY, written(freeze.no_purchases())), "it grants nothing"


def test_without_tls_a_bucket_answers_nobody() -> None:
    (one,) = json.loads(policies.tls_only("b"))["Statement"]
    assert (one["Effect"], one["Principal"], one["Action"]) == ("Deny", "*", "s3:*")
    assert set(one["Resource"]) == {"arn:aws:s3:::b", "arn:aws:s3:::b/*"}
    assert one["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_a_policy_is_the_same_text_at_each_run() -> None:
    """Else each update would change what nobody changed."""
    text = (
        '{"Statement": [{"Action": ["s3:GetObject"], "Effect": "Allow", "Resource": ["r"]}], "Version": "2012-10-17"}'
    )
    for statement in (
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["r"]},
        {"Resource": ["r"], "Effect": "Allow", "Action": ["s3:GetObject"]},
    ):
        assert policies.document([statement]) == text


def test_purchases_of_each_role_that_is_named_can_be_frozen_whatever_its_path() -> None:
    (statement,) = freeze.freezing(example_spec(campaign="train", money={"freeze_roles": ["ci", "people"]}))
    roles = ("ci", "*/ci", "people", "*/people")
    assert set(statement["Resource"]) == {f"arn:aws:iam::{SPEC.account}:role/{role}" for role in roles}

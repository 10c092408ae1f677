"""Each grant of each role, and its near misses: another account, another region, a neighbour's name, a condition that
is not met or not told. The grants are written down by hand; what misses them is derived from what is written here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.rehearsal.aws.iam.policies import Question, allowed
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn
from tests.example import example_spec
from tests.unit.stack.iam_questions import (
    ANYTHING,
    ARCHIVE,
    BASE,
    BASES,
    BUILDER,
    DATA,
    FREEZE,
    GROUP,
    KEY,
    LIMIT,
    OWN,
    PARAMETER,
    PULL,
    PUSH,
    S3_KEY,
    SCALING,
    SECRET,
    SOMEBODY,
    SPEC,
    STATE,
    STEWARD,
    STRANGER,
    TAGGED,
    TRAINER,
    WHERE,
    A,
    Grant,
    R,
    arn_of,
    ask,
    ec2,
    granted,
    job,
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


TOPIC = f"arn:aws:sns:{R}:{A}:bivouac_notices"


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
        *through_s3(STATE),
        Grant("sns:Publish", (TOPIC,), {}, (f"{TOPIC}2", TOPIC.replace("bivouac_notices", "payroll"))),
        Grant("kms:Decrypt kms:GenerateDataKey", (KEY,), {"kms:ViaService": f"sns.{R}.amazonaws.com"}, (ec2("key"),)),
    ],
    "archive": [
        *folder(ARCHIVE, "s3:GetObjectVersion s3:AbortMultipartUpload s3:ListMultipartUploadParts"),
        *of_copies(),
        *folder(STATE),
        Grant("s3:ListBucketMultipartUploads", (ARCHIVE,), {}, (STATE, f"{ARCHIVE}-2")),
        Grant("s3:GetObject", (f"{STATE}/images/abc.json",), {}, (f"{STATE}/imagesx", f"{ARCHIVE}/images/abc.json")),
        *through_s3(ARCHIVE, STATE),
    ],
    "guard": [Grant("eks:UpdateNodegroupConfig", (GROUP,), {}, OTHER_GROUPS)],
    "trainer": [
        Grant(
            "secretsmanager:GetSecretValue", (f"{SECRET}team/token-x1Y2z3", f"{SECRET}other-AbC123"), {},
            tuple(f"{SECRET}{name}" for name in (
                "team/token", "team/token-2-x1Y2z3", "other-XyZ789", "other-AbC123-x1Y2z3")),
        ),
        Grant(
            "ssm:GetParameter", (f"{PARAMETER}team/key",), {},
            tuple(f"{PARAMETER}{name}" for name in ("team/key2", "team/key/below", "xteam/key")),
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
AGENT = (
    "ssm:DescribeAssociation ssm:DescribeDocument ssm:GetDeployablePatchSnapshotForInstance ssm:GetDocument"
    " ssm:GetManifest ssm:ListAssociations ssm:ListInstanceAssociations ssm:PutComplianceItems ssm:PutInventory"
    " ssm:UpdateAssociationStatus ssm:UpdateInstanceAssociationStatus ssm:UpdateInstanceInformation"
    " ec2messages:GetMessages ssmmessages:OpenDataChannel"
)
"""Of AWS's AmazonSSMManagedInstanceCore, but for reading parameters."""
LOOKS = (
    "autoscaling:DescribeAutoScalingGroups ec2:DescribeInstances ec2:DescribeSubnets ecr:GetAuthorizationToken"
    " eks:DescribeCluster eks-auth:AssumeRoleForPodIdentity elasticloadbalancing:DescribeLoadBalancers"
)
INTERFACES = (
    "ec2:AssignIpv6Addresses ec2:AssignPrivateIpAddresses ec2:AttachNetworkInterface ec2:CreateNetworkInterface"
    " ec2:DeleteNetworkInterface ec2:DetachNetworkInterface ec2:ModifyNetworkInterfaceAttribute"
    " ec2:UnassignPrivateIpAddresses"
)
"""Of AmazonEKS_CNI_Policy."""
OBJECTS = tuple(f"{bucket}/campaigns/train/x" for bucket in (STATE, DATA, ARCHIVE))
MOST = [
    Grant(f"{AGENT} {LOOKS}", ("*",)),
    Grant("s3:DeleteObject s3:DeleteObjectVersion", (f"{ARCHIVE}/copies/train/x",), {}, (
        f"{ARCHIVE}/campaigns/train/x", f"{ARCHIVE}/copiesx", f"{STATE}/copies/train/x", f"{DATA}/copies/train/x",
    )),
    Grant("s3:ListBucketVersions", (ARCHIVE,), {}, (STATE, DATA)),
    Grant(
        "ec2:CreateTags", (ec2("instance"),), {"aws:TagKeys": "kubernetes.io/cluster/bivouac-train"}, (ec2("volume"),)
    ),
    Grant("ec2:CreateTags", (ec2("network-interface"),), {}, (ec2("volume"), ec2("network-interfaces"))),
    Grant(
        INTERFACES, tuple(ec2(kind) for kind in ("network-interface", "instance", "subnet", "security-group")), {},
        tuple(ec2(kind) for kind in ("vpc", "instances", "subnets", "security-groups", "network-interfaces")),
    ),
    Grant(
        "s3:AbortMultipartUpload s3:GetObject s3:GetObjectVersion s3:ListMultipartUploadParts s3:PutObject",
        OBJECTS, {},
        ("arn:aws:s3:::payroll/x", f"{STATE}-2/x", f"{DATA}-2/x", f"{ARCHIVE}-2/x"),
    ),
    Grant("s3:ListBucket s3:ListBucketMultipartUploads", (STATE, DATA, ARCHIVE), {}, tuple(
        f"{bucket}-2" for bucket in (STATE, DATA, ARCHIVE)
    )),
    Grant("kms:Decrypt kms:GenerateDataKey", (KEY,), S3_KEY, (f"arn:aws:kms:{R}:{A}:keys",)),
    Grant(PULL, (TRAINER, BASE), {}, (f"arn:aws:ecr:{R}:{A}:repositoryx",)),
    Grant(PUSH, (TRAINER, STEWARD), {}, (BASE, BASES, f"{TRAINER}2")),
    Grant(
        "eks:DescribeNodegroup eks:UpdateNodegroupConfig", (GROUP,), {},
        (f"arn:aws:eks:{R}:{A}:nodegroup/payroll/x/9a", f"arn:aws:eks:{R}:{A}:nodegroup/bivouacs/x/9a"),
    ),
    Grant(
        "autoscaling:TerminateInstanceInAutoScalingGroup", (SCALING,), {},
        (SCALING.replace("eks-bivouac-", "payroll-"), SCALING.replace("eks-bivouac-", "eks-bivouacs-")),
    ),
    Grant("ec2:TerminateInstances", (ec2("instance"),), BUILDER, (ec2("instances"),)),
    Grant(
        "iam:AttachRolePolicy iam:DetachRolePolicy", (f"arn:aws:iam::{A}:role/ci",), {"iam:PolicyARN": FREEZE},
        (f"arn:aws:iam::{A}:user/ci",),
    ),
]  # fmt: skip
"""What a role under the boundary may do that its own policies allow everything."""
OF_CLUSTER = Grant("kms:Decrypt kms:DescribeKey kms:Encrypt kms:ListGrants", (KEY,), {}, (f"arn:aws:kms:{R}:{A}:keys",))


CLUSTER = role("bivouac-train-cluster")


@pytest.mark.parametrize("name", GRANTS)
def test_a_role_may_do_what_is_written_and_misses_what_is_next_to_it(name: str) -> None:
    arn, own, grants = arn_of(name), OWN[name], GRANTS[name]
    asked = [one for grant in grants for one in grant.asked()]
    assert refused(asked, arn, own) == []
    assert refused(asked, arn, own, LIMIT) == [], "the boundary is in its way"
    # By its own policies alone: the boundary is there for the day on which somebody writes others.
    assert granted((one for grant in grants for one in grant.missed()), arn, own) == []


def test_the_boundary_leaves_what_the_work_needs_and_nothing_next_to_it() -> None:
    assert refused((one for grant in MOST for one in grant.asked()), SOMEBODY, ANYTHING, LIMIT) == []
    assert granted((one for grant in MOST for one in grant.missed()), SOMEBODY, ANYTHING, LIMIT) == []
    joined = {"aws:TagKeys": "cluster.k8s.amazonaws.com/name"}
    assert may(ask("ec2:CreateTags", ec2("network-interface"), joined), SOMEBODY, ANYTHING, LIMIT)


def test_the_boundary_lets_only_a_clusters_role_use_a_key_by_itself() -> None:
    asked = list(OF_CLUSTER.asked())
    assert refused(asked, CLUSTER, ANYTHING, LIMIT) == []
    assert granted(OF_CLUSTER.missed(), CLUSTER, ANYTHING, LIMIT) == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-cluster", CLUSTER.replace(A, STRANGER), f"{CLUSTER}-2"):
        assert granted(asked, other, ANYTHING, LIMIT) == [], other
    question = [Question(action, resource, {}) for action, resource, _ in asked]
    assert not any(allowed(LIMIT, one) for one in question), "by nobody"


def test_the_boundary_lets_only_a_nodes_role_pull_from_another_account() -> None:
    theirs = f"arn:aws:ecr:us-west-2:{STRANGER}:repository/pytorch-training"
    pulls, pushes = list(Grant(PULL, (theirs,)).asked()), list(Grant(PUSH, (theirs,)).asked())
    node = role("bivouac-train-node")
    assert refused(pulls, node, ANYTHING, LIMIT) == []
    assert granted(pushes, node, ANYTHING, LIMIT) == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-node", node.replace(A, STRANGER), f"{node}-2"):
        assert granted(pulls, other, ANYTHING, LIMIT) == [], other


OF_TRAINER = (
    Grant("secretsmanager:GetSecretValue", (f"{SECRET}any-AbC123",)),
    Grant("ssm:GetParameter", (f"{PARAMETER}any",)),
    Grant("kms:Decrypt", (KEY,), {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}),
    Grant("kms:Decrypt", (KEY,), {"kms:ViaService": f"ssm.{R}.amazonaws.com"}),
)


def test_the_boundary_lets_only_a_trainers_and_a_stewards_role_read_secrets() -> None:
    asked = [one for grant in OF_TRAINER for one in grant.asked()]
    trainer, steward = role("bivouac-train-trainer"), role("bivouac-train-steward")
    for reader in (trainer, steward):
        assert refused(asked, reader, ANYTHING, LIMIT) == []
        assert granted((one for grant in OF_TRAINER for one in grant.missed()), reader, ANYTHING, LIMIT) == []
    strangers = (f"arn:aws:iam::{A}:role/payroll-trainer", trainer.replace(A, STRANGER), f"{trainer}-2")
    for other in (SOMEBODY, role("bivouac-train-archive"), *strangers):
        assert granted(asked, other, ANYTHING, LIMIT) == [], other
    more = "secretsmanager:PutSecretValue secretsmanager:DescribeSecret ssm:GetParametersByPath ssm:PutParameter"
    places = (f"{SECRET}any-AbC123", f"{PARAMETER}any")
    assert not any(may((one, at, {}), trainer, ANYTHING, LIMIT) for one in more.split() for at in places)


def test_the_boundary_lets_only_a_stewards_role_tell_people_and_only_on_topics_of_the_account() -> None:
    (asked,) = Grant("sns:Publish", (TOPIC,)).asked()
    assert may(asked, role("bivouac-train-steward"), ANYTHING, LIMIT)
    for other in (SOMEBODY, role("bivouac-train-trainer"), role("bivouac-train-archive")):
        assert not may(asked, other, ANYTHING, LIMIT), other
    for topic in (TOPIC.replace(A, STRANGER), TOPIC.replace(R, "eu-west-1")):
        assert not may(("sns:Publish", topic, {}), role("bivouac-train-steward"), ANYTHING, LIMIT), topic


def test_a_steward_reads_the_webhooks_address_and_no_other_secret() -> None:
    spec = example_spec(notify={"webhook": {"secret": "team/webhook"}, "topic": TOPIC.replace("bivouac_", "pager_")})
    own, them = written(policies.steward(spec)), role("bivouac-train-steward")
    assert may(("secretsmanager:GetSecretValue", f"{SECRET}team/webhook-AbC123", {}), them, own, LIMIT)
    assert may(("sns:Publish", TOPIC.replace("bivouac_", "pager_"), {}), them, own, LIMIT)
    for action, at in (
        ("secretsmanager:GetSecretValue", f"{SECRET}team/webhook2-AbC123"),
        ("ssm:GetParameter", f"{PARAMETER}team/webhook"),
        ("sns:Publish", TOPIC),
    ):
        assert not may((action, at, {}), them, own, LIMIT), at


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


def test_a_tag_that_names_no_key_or_one_more_is_no_clusters_tag() -> None:
    for keys in ([], None, ["kubernetes.io/cluster/a", "bivouac:role"], ["bivouac:role"]):
        context = {} if keys is None else {"aws:tagkeys": keys}
        assert not allowed(LIMIT, Question("ec2:CreateTags", ec2("instance"), context)), keys


def test_a_role_whose_own_policies_say_nothing_may_nothing_under_the_boundary() -> None:
    assert not granted((one for grant in MOST for one in grant.asked()), SOMEBODY, [], LIMIT)


def test_the_freeze_takes_away_what_bills_and_nothing_that_ends_a_campaign() -> None:
    frozen = ANYTHING + written(policies.no_purchases())
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
    assert not may(ask("ec2:TerminateInstances", "*"), SOMEBODY, written(policies.no_purchases())), "it grants nothing"


def test_without_tls_a_bucket_answers_nobody() -> None:
    (one,) = json.loads(policies.tls_only("b"))["Statement"]
    assert (one["Effect"], one["Principal"], one["Action"]) == ("Deny", "*", "s3:*")
    assert set(one["Resource"]) == {"arn:aws:s3:::b", "arn:aws:s3:::b/*"}
    assert one["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_the_boundary_is_this_accounts_in_this_region() -> None:
    assert boundary_arn(WHERE) == f"arn:aws:iam::{A}:policy/bivouac_boundary_{R}"
    assert policies.place(SPEC) == WHERE and WHERE.role("x") == f"arn:aws:iam::{A}:role/x"


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
    (statement,) = policies.freezing(example_spec(campaign="train", money={"freeze_roles": ["ci", "people"]}))
    roles = ("ci", "*/ci", "people", "*/people")
    assert set(statement["Resource"]) == {f"arn:aws:iam::{SPEC.account}:role/{role}" for role in roles}

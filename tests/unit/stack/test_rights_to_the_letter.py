"""Each grant of each role, and its near misses: another account, another region, a neighbour's name, a condition that
is not met or not told. The grants are written down by hand; what misses them is derived from what is written here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.rehearsal.aws.iam.policies import Question, allowed, trusts
from infra.spec.campaign import Spec
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn, ceiling
from tests.example import example_spec

R, A = "us-east-1", "123456789012"
ELSEWHERE, STRANGER = "eu-west-1", "999999999999"
STATE, DATA, ARCHIVE = (f"arn:aws:s3:::bivouac-{kind}-{A}-{R}" for kind in ("state", "data", "archive"))
FREEZE = f"arn:aws:iam::{A}:policy/bivouac_freeze_{R}"
KEY = f"arn:aws:kms:{R}:{A}:key/11111111-2222-3333-4444-555555555555"
GROUP = f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a"
SCALING = f"arn:aws:autoscaling:{R}:{A}:autoScalingGroup:7:autoScalingGroupName/eks-bivouac-train-gpu-9a"
TAGGED = {
    "aws:ResourceTag/eks:cluster-name": "bivouac-train",
    "aws:ResourceTag/eks:nodegroup-name": "bivouac-train-gpu",
}
BUILDER = {"aws:ResourceTag/bivouac:role": "builder"}
S3_KEY = {"kms:ViaService": f"s3.{R}.amazonaws.com"}
SPEC = example_spec(campaign="train", money={"freeze_roles": ["ci"]})
SECRET, PARAMETER = f"arn:aws:secretsmanager:{R}:{A}:secret:", f"arn:aws:ssm:{R}:{A}:parameter/"


def job(**secrets: dict[str, str]) -> Spec:
    workload = {
        "script": "/train.py", "checkpoints": {"format": "dcp"}, "estimates": {"steps": 10, "step_seconds": 1},
        "secrets": secrets,
    }  # fmt: skip
    return example_spec(campaign="train", training=None, data=None, workload=workload)


WITH_SECRETS = job(A={"secret": "team/a"}, B={"secret": f"{SECRET}b-AbC123", "key": "x"}, C={"parameter": "/team/c"})
WHERE = policies.AccountPlace(A, R)
BEGINNINGS = {"s3:prefix", "kms:EncryptionContext:aws:s3:arn", "aws:TagKeys"}
"""Keys of which a policy names how their values begin."""


def ec2(kind: str) -> str:
    return f"arn:aws:ec2:{R}:{A}:{kind}/x-0123456789abcdef0"


@dataclass(frozen=True)
class Grant:
    """Every action on every resource, where all of the context is as told; on none of the neighbours."""

    actions: str
    resources: tuple[str, ...]
    context: dict[str, str] = field(default_factory=dict)
    neighbours: tuple[str, ...] = ()

    def asked(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        for action in self.actions.split():
            for resource in self.resources:
                yield action, resource, self.context

    def missed(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        for action, resource, context in self.asked():
            for known, other in ((A, STRANGER), (R, ELSEWHERE)):
                if known in resource:
                    yield action, resource.replace(known, other), context
            for key in context:
                yield action, resource, {one: value for one, value in context.items() if one != key}
                yield action, resource, {**context, key: f"x{context[key]}"}
                if key not in BEGINNINGS:
                    yield action, resource, {**context, key: f"{context[key]}-2"}
        for action in self.actions.split():
            for resource in self.neighbours:
                yield action, resource, self.context


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
        Grant("s3:ListBucket", (bucket,), {"s3:prefix": "campaigns/train/"}, (f"{bucket}-2",)),
    ]


OTHER_GROUPS = (
    f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu2/9a",
    f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-system/9a",
    f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train-gpu/bivouac-train-gpu-gpu/9a",
)
PULL = "ecr:BatchCheckLayerAvailability ecr:BatchGetImage ecr:GetDownloadUrlForLayer"
PUSH = "ecr:CompleteLayerUpload ecr:DescribeImages ecr:InitiateLayerUpload ecr:PutImage ecr:UploadLayerPart"
TRAINER, BASE = (f"arn:aws:ecr:{R}:{A}:repository/{name}" for name in ("bivouac/trainer", "team/base"))
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
    ],
    "archive": [
        *folder(ARCHIVE, "s3:GetObjectVersion s3:AbortMultipartUpload s3:ListMultipartUploadParts"),
        *folder(STATE),
        Grant("s3:ListBucketMultipartUploads", (ARCHIVE,), {}, (STATE, f"{ARCHIVE}-2")),
        Grant("s3:GetObject", (f"{STATE}/images/abc.json",), {}, (f"{STATE}/imagesx", f"{ARCHIVE}/images/abc.json")),
        *through_s3(ARCHIVE, STATE),
    ],
    "guard": [Grant("eks:UpdateNodegroupConfig", (GROUP,), {}, OTHER_GROUPS)],
    "trainer": [
        Grant(
            "secretsmanager:GetSecretValue", (f"{SECRET}team/a-x1Y2z3", f"{SECRET}b-AbC123"), {},
            (f"{SECRET}team/a", f"{SECRET}team/a-2-x1Y2z3", f"{SECRET}b-XyZ789", f"{SECRET}b-AbC123-x1Y2z3"),
        ),
        Grant(
            "ssm:GetParameter", (f"{PARAMETER}team/c",), {},
            tuple(f"{PARAMETER}{name}" for name in ("team/cc", "team/c/d", "xteam/c")),
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
        Grant(PUSH, (TRAINER,), {}, (BASE, f"{TRAINER}2")),
    ],
    "builder-guard": [Grant("ec2:TerminateInstances", (ec2("instance"),), BUILDER, (ec2("volume"),))],
    "cluster": [Grant("kms:Decrypt kms:DescribeKey kms:Encrypt kms:ListGrants", (KEY,), {}, (f"{KEY}6",))],
}  # fmt: skip
STATEMENTS = {
    "archive": policies.archive(SPEC),
    "budget": policies.freezing(SPEC),
    "builder": policies.builder(WHERE),
    "builder-guard": policies.builder_guard(WHERE),
    "cluster": policies.cluster_secrets(KEY),
    "guard": policies.guard(SPEC),
    "steward": policies.steward(SPEC),
    "trainer": policies.trainer(WITH_SECRETS),
}

AGENT = (
    "ssm:DescribeAssociation ssm:DescribeDocument ssm:GetDeployablePatchSnapshotForInstance ssm:GetDocument"
    " ssm:GetManifest ssm:ListAssociations ssm:ListInstanceAssociations ssm:PutComplianceItems ssm:PutInventory"
    " ssm:UpdateAssociationStatus ssm:UpdateInstanceAssociationStatus ssm:UpdateInstanceInformation"
    " ec2messages:GetMessages ssmmessages:OpenDataChannel"
)
"""Of AWS's AmazonSSMManagedInstanceCore, but for reading parameters."""
LOOKS = (
    "autoscaling:DescribeAutoScalingGroups ec2:DescribeSubnets ecr:GetAuthorizationToken eks:DescribeCluster"
    " eks-auth:AssumeRoleForPodIdentity elasticloadbalancing:DescribeLoadBalancers"
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
    Grant(PUSH, (TRAINER,), {}, (BASE, f"{TRAINER}2")),
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


def may(documents: list[list[dict[str, Any]]], asked: tuple[str, str, dict[str, str]], arn: str) -> bool:
    """Whether every document allows it: a role's own, and its boundary."""
    action, resource, given = asked
    context = {key.lower(): [value] for key, value in given.items()}
    context |= {"aws:principalaccount": [A], "aws:principalarn": [arn], "aws:securetransport": ["true"]}
    question = Question(action, resource, context)
    return all(allowed([json.loads(policies.document(one))], question) for one in documents)


ANYTHING = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]
LIMIT = ceiling(WHERE)
SOMEBODY, CLUSTER = (f"arn:aws:iam::{A}:role/bivouac-train-{name}" for name in ("x", "cluster"))


@pytest.mark.parametrize("name", GRANTS)
def test_a_role_may_do_what_is_written_and_misses_what_is_next_to_it(name: str) -> None:
    arn = f"arn:aws:iam::{A}:role/bivouac-train-{name}"
    own, grants = [STATEMENTS[name]], GRANTS[name]
    asked = [one for grant in grants for one in grant.asked()]
    assert [one for one in asked if not may(own, one, arn)] == []
    assert [one for one in asked if not may([*own, LIMIT], one, arn)] == [], "the boundary is in its way"
    # By its own policies alone: the boundary is there for the day on which somebody writes others.
    assert [one for grant in grants for one in grant.missed() if may(own, one, arn)] == []


def test_the_boundary_leaves_what_the_work_needs_and_nothing_next_to_it() -> None:
    assert [one for grant in MOST for one in grant.asked() if not may([ANYTHING, LIMIT], one, SOMEBODY)] == []
    assert [one for grant in MOST for one in grant.missed() if may([ANYTHING, LIMIT], one, SOMEBODY)] == []


def test_the_boundary_lets_only_a_clusters_role_use_a_key_by_itself() -> None:
    asked = list(OF_CLUSTER.asked())
    assert [one for one in asked if not may([ANYTHING, LIMIT], one, CLUSTER)] == []
    assert [one for one in OF_CLUSTER.missed() if may([ANYTHING, LIMIT], one, CLUSTER)] == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-cluster", CLUSTER.replace(A, STRANGER), f"{CLUSTER}-2"):
        assert [one for one in asked if may([ANYTHING, LIMIT], one, other)] == [], other
    question = [Question(action, resource, {}) for action, resource, _ in asked]
    assert not any(allowed([json.loads(policies.document(LIMIT))], one) for one in question), "by nobody"


def test_the_boundary_lets_only_a_nodes_role_pull_from_another_account() -> None:
    theirs = f"arn:aws:ecr:us-west-2:{STRANGER}:repository/pytorch-training"
    pulls, pushes = list(Grant(PULL, (theirs,)).asked()), list(Grant(PUSH, (theirs,)).asked())
    node = f"arn:aws:iam::{A}:role/bivouac-train-node"
    assert [one for one in pulls if not may([ANYTHING, LIMIT], one, node)] == []
    assert [one for one in pushes if may([ANYTHING, LIMIT], one, node)] == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-node", node.replace(A, STRANGER), f"{node}-2"):
        assert [one for one in pulls if may([ANYTHING, LIMIT], one, other)] == [], other


OF_TRAINER = (
    Grant("secretsmanager:GetSecretValue", (f"{SECRET}any-AbC123",)),
    Grant("ssm:GetParameter", (f"{PARAMETER}any",)),
    Grant("kms:Decrypt", (KEY,), {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}),
    Grant("kms:Decrypt", (KEY,), {"kms:ViaService": f"ssm.{R}.amazonaws.com"}),
)


def test_the_boundary_lets_only_a_trainers_role_read_secrets() -> None:
    asked = [one for grant in OF_TRAINER for one in grant.asked()]
    trainer = f"arn:aws:iam::{A}:role/bivouac-train-trainer"
    assert [one for one in asked if not may([ANYTHING, LIMIT], one, trainer)] == []
    assert [one for grant in OF_TRAINER for one in grant.missed() if may([ANYTHING, LIMIT], one, trainer)] == []
    strangers = (f"arn:aws:iam::{A}:role/payroll-trainer", trainer.replace(A, STRANGER), f"{trainer}-2")
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/bivouac-train-steward", *strangers):
        assert [one for one in asked if may([ANYTHING, LIMIT], one, other)] == [], other
    more = "secretsmanager:PutSecretValue secretsmanager:DescribeSecret ssm:GetParametersByPath ssm:PutParameter"
    places = (f"{SECRET}any-AbC123", f"{PARAMETER}any")
    assert not any(may([ANYTHING, LIMIT], (one, at, {}), trainer) for one in more.split() for at in places)


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
    limit = [json.loads(policies.document(LIMIT))]
    for keys in ([], None, ["kubernetes.io/cluster/a", "bivouac:role"], ["bivouac:role"]):
        context = {} if keys is None else {"aws:tagkeys": keys}
        assert not allowed(limit, Question("ec2:CreateTags", ec2("instance"), context)), keys


def test_a_role_whose_own_policies_say_nothing_may_nothing_under_the_boundary() -> None:
    assert not any(may([[], LIMIT], one, SOMEBODY) for grant in MOST for one in grant.asked())


def test_the_freeze_takes_away_what_bills_and_nothing_that_ends_a_campaign() -> None:
    frozen = [[*ANYTHING, *policies.no_purchases()]]
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
    assert [one for one in bills.split() if may(frozen, (one, "arn:aws:x:::y", {}), SOMEBODY)] == []
    assert [one for one in ends.split() if not may(frozen, (one, "arn:aws:x:::y", {}), SOMEBODY)] == []
    assert not may([policies.no_purchases()], ("ec2:TerminateInstances", "*", {}), SOMEBODY), "it grants nothing"


SCHEDULES, BUDGETS = f"arn:aws:scheduler:{R}:{A}:schedule-group/default", f"arn:aws:budgets::{A}:budget/x"
LENT: dict[str, tuple[str, dict[str, str]]] = {
    "scheduler.amazonaws.com": (
        policies.trust("scheduler.amazonaws.com", WHERE), {"aws:SourceAccount": A, "aws:SourceArn": SCHEDULES}
    ),
    "budgets.amazonaws.com": (
        policies.trust("budgets.amazonaws.com", WHERE), {"aws:SourceAccount": A, "aws:SourceArn": BUDGETS}
    ),
    "eks.amazonaws.com": (policies.trust("eks.amazonaws.com", WHERE), {"aws:SourceAccount": A}),
    "pods.eks.amazonaws.com": (policies.pod_trust(WHERE), {"aws:SourceAccount": A}),
    "ec2.amazonaws.com": (policies.trust("ec2.amazonaws.com", WHERE), {}),
}  # fmt: skip


@pytest.mark.parametrize("service", LENT)
def test_a_role_is_lent_to_one_service_on_behalf_of_this_account_alone(service: str) -> None:
    document, told = LENT[service]

    def lent(to: str, context: dict[str, str], action: str = "sts:AssumeRole") -> bool:
        return trusts(json.loads(document), [to], action, {key.lower(): [value] for key, value in context.items()})

    assert lent(service, told)
    assert lent(service, told, "sts:TagSession") is (service == "pods.eks.amazonaws.com")
    assert not any(lent(other, told) for other in (*(set(LENT) - {service}), f"arn:aws:iam::{A}:root", SOMEBODY))
    for key in told:
        assert not lent(service, {**told, key: told[key].replace(A, STRANGER)})
        assert not lent(service, {one: value for one, value in told.items() if one != key})
    if "aws:SourceArn" in told:
        other = BUDGETS if told["aws:SourceArn"] == SCHEDULES else SCHEDULES
        assert not lent(service, {**told, "aws:SourceArn": other})


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

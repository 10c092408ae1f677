"""Who may do what: requests written down by hand, asked of an evaluator of IAM's rules. No helper of the product names
an ARN here, or an action."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.rehearsal.aws.iam.policies import Question, allowed, trusts
from infra.stack.access import policies
from infra.stack.access.ceiling import ceiling
from tests.example import example_spec
from tests.root import ROOT

CI = ROOT / "infra/ci"
Ask = tuple[str, str, dict[str, str]]
R, A = "us-east-1", "123456789012"
STATE, DATA, ARCHIVE = (f"arn:aws:s3:::bivouac-{kind}-{A}-{R}" for kind in ("state", "data", "archive"))
BOUNDARY = f"arn:aws:iam::{A}:policy/bivouac_boundary_{R}"
FREEZE = f"arn:aws:iam::{A}:policy/bivouac_freeze_{R}"
ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
NODES = "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"
KEY = f"arn:aws:kms:{R}:{A}:key/11111111-2222-3333-4444-555555555555"
GROUP = f"arn:aws:autoscaling:{R}:{A}:autoScalingGroup:7:autoScalingGroupName/eks-bivouac-train-gpu-"
FS, DRA = f"arn:aws:fsx:{R}:{A}:file-system/", f"arn:aws:fsx:{R}:{A}:association/"
OURS = "aws:ResourceTag/bivouac:campaign"
FOUNDED = "aws:ResourceTag/bivouac:foundation"


def ec2(kind: str, identifier: str = "x-0123456789abcdef0") -> str:
    return f"arn:aws:ec2:{R}:{A}:{kind}/{identifier}"


def role(name: str) -> str:
    return f"arn:aws:iam::{A}:role/{name}"


def ask(action: str, resource: str, context: dict[str, str] | None = None) -> Ask:
    """Several values of a key stand with commas between."""
    return action, resource, context or {}


SPEC = example_spec(campaign="train", money={"freeze_roles": ["ci"]})
WHERE = policies.AccountPlace(A, R)
SECRET, PARAMETER = f"arn:aws:secretsmanager:{R}:{A}:secret:", f"arn:aws:ssm:{R}:{A}:parameter/"
WITH_SECRETS = example_spec(
    campaign="train",
    training=None,
    data=None,
    workload={
        "script": "/train.py",
        "checkpoints": {"format": "dcp"},
        "estimates": {"steps": 10, "step_seconds": 1},
        "secrets": {
            "TOKEN": {"secret": "team/token"},
            "OTHER": {"secret": f"{SECRET}other-AbC123", "key": "password"},
            "KEY": {"parameter": "/team/key"},
        },
    },
)
STATEMENTS = {
    "archive": policies.archive(SPEC),
    "budget": policies.freezing(SPEC),
    "builder": policies.builder(WHERE),
    "builder-guard": policies.builder_guard(WHERE),
    "cluster": policies.cluster_secrets(KEY),
    "guard": policies.guard(SPEC),
    "steward": policies.steward(SPEC),
    "trainer": policies.trainer(SPEC),
    "trainer of a job with secrets": policies.trainer(WITH_SECRETS),
    "anything under the boundary": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
"""Of each role, as the graph's own tests find it attached."""
ARNS = {
    "trainer of a job with secrets": "bivouac-train-trainer",
    "builder": "bivouac_build_us-east-1",
    "builder-guard": "bivouac_build_guard_us-east-1",
}


class Who:
    """One principal: its own policies, and the boundary that it is under."""

    def __init__(self, documents: list[dict[str, Any]], boundary: dict[str, Any] | None, arn: str) -> None:
        self.documents, self.boundary, self.arn = documents, boundary, arn

    def may(self, asked: Ask) -> bool:
        action, resource, given = asked
        context = {key.lower(): value.split(",") for key, value in given.items()}
        context |= {"aws:principalaccount": [A], "aws:principalarn": [self.arn], "aws:securetransport": ["true"]}
        question = Question(action, resource, context)
        return allowed(self.documents, question) and (self.boundary is None or allowed([self.boundary], question))


def read(*names: str) -> list[dict[str, Any]]:
    return [json.loads((CI / f"{name}.json").read_text()) for name in names]


OPERATOR = ("operator/look", "operator/network", "operator/cluster", "operator/rights")
WRITTEN = {
    "operator": OPERATOR,
    "founder": (*OPERATOR, "founder"),
    "preview": ("preview-role",),
    "buyer": ("block-buyer-role",),
}


def who(name: str) -> Who:
    if name in WRITTEN:
        return Who(read(*WRITTEN[name]), None, role(name))
    own = json.loads(policies.document(STATEMENTS[name]))
    return Who([own], json.loads(policies.document(ceiling(WHERE))), role(ARNS.get(name, f"bivouac-train-{name}")))


TRAIN = {"aws:ResourceTag/eks:cluster-name": "bivouac-train", "aws:ResourceTag/eks:nodegroup-name": "bivouac-train-gpu"}
OTHER = {
    "aws:ResourceTag/eks:cluster-name": "bivouac-train-gpu",
    "aws:ResourceTag/eks:nodegroup-name": "bivouac-train-gpu-gpu",
}
LISTS = {"s3:prefix": "campaigns/train/"}
VIA = {"kms:ViaService": f"s3.{R}.amazonaws.com", "kms:EncryptionContext:aws:s3:arn": STATE}
MARKED = {"aws:RequestTag/bivouac:campaign": "train", "aws:TagKeys": "bivouac:campaign,bivouac:owner"}
UNDER = {"iam:PermissionsBoundary": BOUNDARY}

MUST: dict[str, list[Ask]] = {
    "steward": [
        ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a"),
        ask("autoscaling:TerminateInstanceInAutoScalingGroup", f"{GROUP}9a", TRAIN),
        ask("ec2:DescribeInstanceStatus", "*"),
        ask("s3:PutObject", f"{STATE}/campaigns/train/events/1.json"),
        ask("s3:GetObject", f"{STATE}/campaigns/train/spec.json"),
        ask("s3:ListBucket", STATE, LISTS),
        ask("s3:ListBucket", STATE, {"s3:prefix": "campaigns/train/1a2b/events/"}),
        ask("kms:Decrypt", KEY, VIA),
    ],
    "archive": [
        ask("s3:PutObject", f"{ARCHIVE}/campaigns/train/1a2b/step-00000040/shard-0"),
        ask("s3:GetObjectVersion", f"{ARCHIVE}/campaigns/train/manifest.json"),
        ask("s3:AbortMultipartUpload", f"{ARCHIVE}/campaigns/train/x"),
        ask("s3:ListBucket", ARCHIVE, LISTS),
        ask("s3:ListBucketMultipartUploads", ARCHIVE),
        ask("s3:GetObject", f"{STATE}/images/abc.json"),
    ],
    "trainer of a job with secrets": [
        ask("secretsmanager:GetSecretValue", f"{SECRET}team/token-x1Y2z3"),
        ask("secretsmanager:GetSecretValue", f"{SECRET}other-AbC123"),
        ask("ssm:GetParameter", f"{PARAMETER}team/key"),
        ask("kms:Decrypt", KEY, {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}),
        ask("kms:Decrypt", KEY, {"kms:ViaService": f"ssm.{R}.amazonaws.com"}),
    ],
    "guard": [ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a")],
    "budget": [
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": FREEZE}),
        ask("iam:AttachRolePolicy", role("teams/ci"), {"iam:PolicyARN": FREEZE}),
    ],
    "cluster": [ask("kms:Decrypt", KEY), ask("kms:ListGrants", KEY)],
    "builder": [
        ask("ecr:PutImage", f"arn:aws:ecr:{R}:{A}:repository/bivouac/trainer"),
        ask("ecr:GetAuthorizationToken", "*"),
        ask("ecr:BatchGetImage", f"arn:aws:ecr:{R}:{A}:repository/team/base"),
    ],
    "builder-guard": [ask("ec2:TerminateInstances", ec2("instance"), {"aws:ResourceTag/bivouac:role": "builder"})],
    "anything under the boundary": [
        ask("ec2:DescribeInstances", "*"),
        ask("ec2:AttachNetworkInterface", ec2("network-interface")),
        ask("ec2:CreateTags", ec2("network-interface"), {"aws:TagKeys": "cluster.k8s.amazonaws.com/name"}),
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "kubernetes.io/cluster/bivouac-train"}),
        ask("eks-auth:AssumeRoleForPodIdentity", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train"),
        ask("ssm:UpdateInstanceInformation", "*"),
        ask("ssmmessages:OpenDataChannel", "*"),
    ],
    "operator": [
        ask("fsx:CreateFileSystem", f"{FS}*", MARKED),
        ask("fsx:TagResource", f"{FS}*", MARKED),
        ask("fsx:TagResource", f"{DRA}fs-0123456789abcdef0/*", MARKED),
        ask("fsx:DeleteFileSystem", f"{FS}fs-0123456789abcdef0", {OURS: "train"}),
        ask("fsx:TagResource", f"{FS}fs-0123456789abcdef0", {OURS: "train", "aws:TagKeys": "bivouac:expires"}),
        ask("ec2:CreateVpc", ec2("vpc", "*"), MARKED),
        ask("ec2:CreateTags", ec2("vpc", "*"), {**MARKED, "ec2:CreateAction": "CreateVpc"}),
        *(
            ask(f"ec2:{action}", ec2(kind, "*"), MARKED)
            for action, kind in (
                ("CreateSubnet", "subnet"),
                ("CreateNatGateway", "natgateway"),
                ("CreateRouteTable", "route-table"),
                ("CreateVpcEndpoint", "vpc-endpoint"),
                ("AuthorizeSecurityGroupIngress", "security-group-rule"),
                ("RunInstances", "instance"),
                ("RunInstances", "volume"),
                ("RunInstances", "network-interface"),
                ("CreateSecurityGroup", "security-group"),
                ("AllocateAddress", "elastic-ip"),
                ("CreateInternetGateway", "internet-gateway"),
                ("CreateLaunchTemplate", "launch-template"),
                ("CreateVpcPeeringConnection", "vpc-peering-connection"),
            )
        ),
        ask("ec2:CreateImage", f"arn:aws:ec2:{R}::image/*", MARKED),
        ask("ec2:CreateSubnet", ec2("vpc"), {OURS: "train"}),
        ask("ec2:DeleteVpc", ec2("vpc"), {OURS: "train"}),
        ask("ec2:CreateTags", ec2("vpc"), {OURS: "train", "aws:TagKeys": "bivouac:expires"}),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
        ask("iam:CreateRole", role("bivouac-train-node"), {**MARKED, **UNDER}),
        ask("iam:TagRole", role("bivouac-train-node"), MARKED),
        ask("iam:PutRolePolicy", role("bivouac-train-steward"), UNDER),
        ask("iam:AttachRolePolicy", role("bivouac-train-node"), {**UNDER, "iam:PolicyARN": NODES}),
        ask("iam:PassRole", role("bivouac-train-node"), {"iam:PassedToService": "eks.amazonaws.com"}),
        ask("iam:PassRole", role("bivouac_build_us-east-1"), {"iam:PassedToService": "ec2.amazonaws.com"}),
        ask("iam:DetachRolePolicy", role("ci"), {"iam:PolicyARN": FREEZE}),
        ask("s3:PutObject", f"{STATE}/.pulumi/stacks/bivouac/campaign-train.json"),
        ask("s3:DeleteObject", f"{STATE}/.pulumi/locks/x"),
        ask("s3:PutObject", f"{DATA}/datasets/abc/shard"),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train/manifest.json"),
        ask("s3:GetBucketPolicy", ARCHIVE),
        ask("ssm:GetParameter", f"arn:aws:ssm:{R}::parameter/aws/service/eks/optimized-ami/1.36/x"),
        ask("ssm:SendCommand", ec2("instance"), {"aws:ResourceTag/bivouac:role": "builder"}),
        ask("eks:CreateCluster", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train", MARKED),
        ask("eks:TagResource", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train", MARKED),
    ],
    "founder": [
        ask("s3:CreateBucket", ARCHIVE),
        ask("s3:PutBucketPolicy", ARCHIVE),
        ask("s3:PutLifecycleConfiguration", ARCHIVE),
        ask("s3:PutBucketVersioning", STATE),
        ask("s3:PutBucketObjectLockConfiguration", ARCHIVE),
        ask("iam:CreatePolicy", BOUNDARY),
        ask("iam:CreatePolicyVersion", BOUNDARY),
        ask("iam:CreatePolicy", FREEZE),
        ask("iam:CreateRole", role("bivouac_build_us-east-1"), UNDER),
        ask("ecr:PutImageTagMutability", f"arn:aws:ecr:{R}:{A}:repository/bivouac/trainer"),
        ask("kms:PutKeyPolicy", KEY, {FOUNDED: "true"}),
    ],
    "preview": [
        ask("ssm:GetParameter", f"arn:aws:ssm:{R}::parameter/aws/service/eks/optimized-ami/1.36/x"),
        ask("ec2:DescribeVpcs", "*"),
        ask("s3:GetObject", f"{STATE}/.pulumi/stacks/bivouac/foundation.json"),
        ask("s3:GetBucketPolicy", ARCHIVE),
        ask("iam:GetRole", role("bivouac-train-node")),
        ask("iam:GetRole", role("bivouac_build_us-east-1")),
        ask("iam:GetPolicyVersion", BOUNDARY),
        ask("kms:Decrypt", KEY, VIA),
    ],
    "buyer": [
        ask("ec2:PurchaseCapacityBlock", ec2("capacity-reservation", "*"), {"aws:TagKeys": "bivouac:block-for"}),
        ask("ec2:CreateTags", ec2("capacity-reservation", "*"), {"ec2:CreateAction": "PurchaseCapacityBlock"}),
        ask("s3:PutObject", f"{STATE}/foundation/blocks/x.json"),
    ],
}

WEAKENING = [
    ask(action, bucket)
    for bucket in (ARCHIVE, STATE, DATA)
    for action in (
        "s3:PutBucketPolicy", "s3:DeleteBucketPolicy", "s3:PutLifecycleConfiguration", "s3:PutBucketVersioning",
        "s3:PutBucketObjectLockConfiguration", "s3:PutBucketAcl", "s3:PutReplicationConfiguration", "s3:DeleteBucket",
        "s3:PutBucketPublicAccessBlock", "s3:PutEncryptionConfiguration", "s3:PutBucketOwnershipControls",
    )
]  # fmt: skip
LOSING = [
    ask(action, f"{ARCHIVE}/campaigns/train/manifest.json")
    for action in (
        "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:BypassGovernanceRetention", "s3:PutObjectRetention",
        "s3:PutObjectLegalHold", "s3:PutObjectAcl",
    )
]  # fmt: skip
RULING = [
    ask("iam:CreateUser", f"arn:aws:iam::{A}:user/me"),
    ask("iam:CreateAccessKey", f"arn:aws:iam::{A}:user/me"),
    ask("iam:CreateRole", role("bivouac-train-node")),
    ask("iam:CreateRole", role("bivouac-train-node"), {"iam:PermissionsBoundary": ADMIN}),
    ask("iam:CreateRole", role("mine"), UNDER),
    ask("iam:PutRolePolicy", role("bivouac-train-node")),
    ask("iam:PutRolePolicy", role("ci"), UNDER),
    ask("iam:PutUserPolicy", f"arn:aws:iam::{A}:user/me", UNDER),
    ask("iam:AttachRolePolicy", role("bivouac-train-node"), {**UNDER, "iam:PolicyARN": ADMIN}),
    ask("iam:AttachRolePolicy", role("bivouac-train-node"), {"iam:PolicyARN": NODES}),
    ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": ADMIN}),
    ask("iam:DeleteRolePermissionsBoundary", role("bivouac-train-node"), UNDER),
    ask("iam:PutRolePermissionsBoundary", role("bivouac-train-node"), {"iam:PermissionsBoundary": ADMIN}),
    ask("iam:CreatePolicyVersion", BOUNDARY),
    ask("iam:SetDefaultPolicyVersion", BOUNDARY),
    ask("iam:DeletePolicy", BOUNDARY),
    ask("iam:CreatePolicyVersion", FREEZE),
    ask("iam:CreatePolicy", f"arn:aws:iam::{A}:policy/bivouac-train-freeze"),
    ask("iam:PassRole", role("admin"), {"iam:PassedToService": "ec2.amazonaws.com"}),
    ask("iam:PassRole", role("bivouac-train-node"), {"iam:PassedToService": "lambda.amazonaws.com"}),
    ask("iam:PassRole", role("bivouac-train-node")),
    ask("iam:UpdateAssumeRolePolicy", role("admin")),
    ask("iam:UpdateAssumeRolePolicy", role("bivouac_preview")),
    ask("iam:UpdateAssumeRolePolicy", role("bivouac_build_us-east-1")),
    ask("sts:AssumeRole", role("admin")),
    ask("sts:AssumeRole", role("bivouac-train-steward")),
    ask("kms:ScheduleKeyDeletion", KEY, {FOUNDED: "true"}),
    ask("kms:PutKeyPolicy", KEY, {FOUNDED: "true"}),
    ask("kms:Decrypt", KEY, {"kms:ViaService": f"rds.{R}.amazonaws.com"}),
]
STEALING = [
    # Tag, then delete: neither the mark on what is there already, nor the deletion without it.
    ask("fsx:TagResource", f"{FS}fs-0123456789abcdef0", MARKED),
    ask("fsx:TagResource", f"{FS}fs-0123456789abcdef0", {**MARKED, "aws:ResourceTag/team": "payroll"}),
    ask("fsx:TagResource", f"{FS}fs-0123456789abcdef0", {**MARKED, OURS: "train-gpu"}),
    ask("fsx:TagResource", f"{FS}fs-0123456789abcdef0", {OURS: "train-gpu", "aws:TagKeys": "bivouac:campaign-id"}),
    ask("fsx:UntagResource", f"{FS}fs-0123456789abcdef0", {OURS: "train", "aws:TagKeys": "bivouac:campaign"}),
    ask("fsx:TagResource", f"{DRA}fs-0123456789abcdef0/dra-0123456789abcdef0", MARKED),
    ask("fsx:DeleteFileSystem", f"{FS}fs-0123456789abcdef0", {"aws:ResourceTag/team": "payroll"}),
    ask("fsx:CreateDataRepositoryAssociation", f"{FS}fs-0123456789abcdef0", MARKED),
    *(
        ask("ec2:CreateTags", ec2(kind), context)
        for kind in ("instance", "volume", "vpc", "security-group", "capacity-reservation", "snapshot", "image")
        for context in (MARKED, {**MARKED, OURS: "train-gpu"}, {**MARKED, FOUNDED: "true"})
    ),
    ask("ec2:CreateTags", ec2("security-group"), {**MARKED, "aws:ResourceTag/aws:eks:cluster-name": "bivouac-train"}),
    ask("ec2:CreateTags", ec2("placement-group", "bivouac-train-gpu"), MARKED),
    ask("ec2:DeleteTags", ec2("vpc"), {OURS: "train", "aws:TagKeys": "bivouac:campaign"}),
    # A mark in the request makes nothing of what is merely used for it.
    ask("ec2:CreateImage", ec2("instance"), MARKED),
    ask("ec2:CreateSubnet", ec2("vpc"), MARKED),
    ask("ec2:CreateNatGateway", ec2("elastic-ip"), MARKED),
    ask("ec2:CreateNatGateway", ec2("subnet"), MARKED),
    ask("ec2:CreateVpcEndpoint", ec2("route-table"), MARKED),
    ask("ec2:RunInstances", ec2("subnet"), MARKED),
    ask("ec2:AuthorizeSecurityGroupIngress", ec2("security-group"), MARKED),
    ask("ec2:DeleteVpc", ec2("vpc")),
    ask("ec2:DeleteVpc", ec2("vpc"), {FOUNDED: "true"}),
    ask("ec2:TerminateInstances", ec2("instance"), {"aws:ResourceTag/bivouac:role": "builder"}),
    ask("ec2:RunInstances", ec2("instance", "*")),
    ask("ec2:DeleteVolume", ec2("volume"), {"aws:ResourceTag/bivouac:owner": "me"}),
    ask("eks:TagResource", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train", {**MARKED, OURS: "train"}),
    ask("eks:TagResource", f"arn:aws:eks:{R}:{A}:cluster/payroll", MARKED),
    ask("eks:DeleteCluster", f"arn:aws:eks:{R}:{A}:cluster/payroll"),
    ask("iam:TagRole", role("admin"), MARKED),
    ask("iam:TagRole", role("bivouac-train-node"), {**MARKED, OURS: "train"}),
    ask("iam:UntagRole", role("bivouac-train-node"), {OURS: "train", "aws:TagKeys": "bivouac:campaign"}),
    ask("kms:TagResource", KEY, {"aws:RequestTag/bivouac:foundation": "true", "aws:TagKeys": "bivouac:foundation"}),
]
READING = [
    ask("ssm:GetParameter", f"arn:aws:ssm:{R}:{A}:parameter/payroll/password"),
    ask("ssm:GetParameters", f"arn:aws:ssm:{R}:{A}:parameter/aws/service-of-mine"),
    ask("ssm:GetParametersByPath", f"arn:aws:ssm:{R}::parameter/aws/service"),
    ask("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{R}:{A}:secret:payroll"),
    ask("s3:GetObject", "arn:aws:s3:::payroll/salaries"),
    ask("s3:ListBucket", "arn:aws:s3:::payroll"),
]
BUYING = [
    ask("ec2:PurchaseCapacityBlock", ec2("capacity-reservation", "*"), {"aws:TagKeys": "bivouac:block-for"}),
    ask("ec2:CreateCapacityReservation", ec2("capacity-reservation", "*"), MARKED),
    ask("ec2:RequestSpotInstances", "*"),
]
ROLES_NEVER = [
    *WEAKENING,
    *LOSING,
    *RULING,
    *STEALING,
    *READING,
    *BUYING,
    ask("ec2:RunInstances", ec2("instance", "*"), MARKED),
    ask("iam:DetachRolePolicy", role("admin"), {"iam:PolicyARN": ADMIN}),
    ask("iam:CreatePolicy", BOUNDARY),
    ask("s3:DeleteObject", f"{STATE}/campaigns/train/spec.json"),
    ask("eks:DeleteCluster", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train"),
    ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/payroll/x/9a"),
    ask("autoscaling:UpdateAutoScalingGroup", f"{GROUP}9a", TRAIN),
]

MUST_NOT: dict[str, list[Ask]] = {
    "steward": [
        *ROLES_NEVER,
        ask("autoscaling:TerminateInstanceInAutoScalingGroup", f"{GROUP}gpu-9a", OTHER),
        ask("autoscaling:TerminateInstanceInAutoScalingGroup", f"{GROUP}9a"),
        ask("autoscaling:TerminateInstanceInAutoScalingGroup", f"{GROUP}system-9a", {**TRAIN, **OTHER}),
        ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train-gpu/bivouac-train-gpu-gpu/9a"),
        ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-system/9a"),
        ask("s3:ListBucket", STATE),
        ask("s3:ListBucket", STATE, {"s3:prefix": ""}),
        ask("s3:ListBucket", STATE, {"s3:prefix": "campaigns/"}),
        ask("s3:ListBucket", STATE, {"s3:prefix": "campaigns/train-gpu/"}),
        ask("s3:ListBucket", ARCHIVE, LISTS),
        ask("s3:GetObject", f"{STATE}/campaigns/train-gpu/spec.json"),
        ask("s3:PutObject", f"{STATE}/foundation/keeping.json"),
        ask("s3:GetObject", f"{STATE}/.pulumi/stacks/bivouac/campaign-train.json"),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
        ask("kms:Decrypt", KEY),
        ask("kms:Decrypt", KEY, {**VIA, "kms:EncryptionContext:aws:s3:arn": "arn:aws:s3:::payroll"}),
    ],
    "archive": [
        *ROLES_NEVER,
        ask("s3:ListBucket", ARCHIVE),
        ask("s3:ListBucket", ARCHIVE, {"s3:prefix": "campaigns/train"}),
        ask("s3:ListBucket", ARCHIVE, {"s3:prefix": "campaigns/train-gpu/"}),
        ask("s3:PutObject", f"{ARCHIVE}/campaigns/train-gpu/manifest.json"),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train2/manifest.json"),
        ask("s3:PutObject", f"{STATE}/images/abc.json"),
        ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a"),
    ],
    "trainer": [*ROLES_NEVER, ask("s3:GetObject", f"{DATA}/datasets/abc/shard"), ask("ec2:DescribeInstances", "*")],
    "trainer of a job with secrets": [
        *ROLES_NEVER,
        ask("secretsmanager:GetSecretValue", f"{SECRET}team/token-2-x1Y2z3"),
        ask("secretsmanager:GetSecretValue", f"{SECRET}team/tokens-x1Y2z3"),
        ask("secretsmanager:GetSecretValue", f"{SECRET}team/token"),
        ask("secretsmanager:GetSecretValue", f"{SECRET}other-XyZ789"),
        ask("secretsmanager:PutSecretValue", f"{SECRET}team/token-x1Y2z3"),
        ask("secretsmanager:DescribeSecret", f"{SECRET}team/token-x1Y2z3"),
        ask("secretsmanager:ListSecrets", "*"),
        ask("ssm:GetParameter", f"{PARAMETER}team/key2"),
        ask("ssm:GetParameter", f"{PARAMETER}team/key/below"),
        ask("ssm:GetParametersByPath", f"{PARAMETER}team/key"),
        ask("ssm:PutParameter", f"{PARAMETER}team/key"),
        ask("kms:Decrypt", KEY),
        ask("kms:Decrypt", KEY, VIA),
        ask("kms:GenerateDataKey", KEY, {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}),
        ask("s3:GetObject", f"{DATA}/datasets/abc/shard"),
    ],
    "guard": [
        *ROLES_NEVER,
        ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train-gpu/bivouac-train-gpu-gpu/9a"),
        ask("eks:DeleteNodegroup", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a"),
    ],
    "budget": [
        *ROLES_NEVER,
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": NODES}),
        ask("iam:AttachRolePolicy", role("ci")),
        ask("iam:AttachRolePolicy", role("ci-2"), {"iam:PolicyARN": FREEZE}),
    ],
    "cluster": [
        *(one for one in ROLES_NEVER if one[0] != "kms:Decrypt"),
        ask("kms:Decrypt", KEY.replace("1111", "9999")),
    ],
    "builder": [
        *ROLES_NEVER,
        ask("ecr:PutImage", f"arn:aws:ecr:{R}:{A}:repository/bivouac/trainer-2"),
        ask("ecr:BatchDeleteImage", f"arn:aws:ecr:{R}:{A}:repository/bivouac/trainer"),
        ask("s3:GetObject", f"{STATE}/campaigns/train/spec.json"),
    ],
    "builder-guard": [
        *(one for one in ROLES_NEVER if one[0] != "ec2:TerminateInstances"),
        ask("ec2:TerminateInstances", ec2("instance")),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
    ],
    "anything under the boundary": [
        *(one for one in ROLES_NEVER if one[:2] != ("ec2:TerminateInstances", ec2("instance"))),
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "bivouac:role"}),
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "kubernetes.io/cluster/x,bivouac:role"}),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": f"arn:aws:iam::{A}:policy/bivouac-train-freeze"}),
        ask("lambda:CreateFunction", f"arn:aws:lambda:{R}:{A}:function:x"),
    ],
    "operator": [
        *WEAKENING,
        *LOSING,
        *RULING,
        *(one for one in STEALING if one[0] != "ec2:TerminateInstances"),
        *(one for one in READING if one[0] != "s3:ListBucket"),
        *BUYING,
        ask("s3:PutObject", f"{ARCHIVE}/campaigns/train/manifest.json"),
        ask("s3:DeleteObjectVersion", f"{STATE}/.pulumi/stacks/bivouac/campaign-train.json"),
        ask("s3:CreateBucket", ARCHIVE),
        ask("ec2:TerminateInstances", ec2("instance"), {"aws:ResourceTag/bivouac:role": "builder"}),
        ask("ssm:SendCommand", ec2("instance"), {OURS: "train"}),
        ask("ecr:PutImageTagMutability", f"arn:aws:ecr:{R}:{A}:repository/bivouac/trainer"),
        ask("ecr:PutLifecyclePolicy", f"arn:aws:ecr:{R}:{A}:repository/bivouac/trainer"),
    ],
    "founder": [
        *LOSING,
        *(one for one in RULING if one[:2] not in {
            ("iam:CreatePolicyVersion", BOUNDARY), ("iam:DeletePolicy", BOUNDARY), ("iam:CreatePolicyVersion", FREEZE),
            ("kms:PutKeyPolicy", KEY), ("iam:UpdateAssumeRolePolicy", role("bivouac_build_us-east-1"))}),
        ask("iam:CreateRole", role("bivouac_build_us-east-1")),
        ask("s3:PutBucketPolicy", "arn:aws:s3:::payroll"),
        ask("iam:CreatePolicy", f"arn:aws:iam::{A}:policy/mine"),
        *(one for one in STEALING if one[0].startswith(("fsx:", "ec2:CreateTags"))),
    ],
    "preview": [
        *WEAKENING,
        *LOSING,
        *RULING,
        *STEALING,
        *READING,
        *BUYING,
        ask("s3:PutObject", f"{STATE}/.pulumi/stacks/bivouac/foundation.json"),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train/step-00000040/shard-0"),
        ask("s3:GetObject", f"{DATA}/datasets/abc/shard"),
        ask("iam:GetRolePolicy", role("admin")),
        ask("kms:Decrypt", KEY),
    ],
    "buyer": [
        *WEAKENING,
        *LOSING,
        *RULING,
        *STEALING,
        *READING,
        ask("ec2:PurchaseCapacityBlock", ec2("capacity-reservation", "*")),
        ask("ec2:PurchaseCapacityBlock", ec2("capacity-reservation", "*"), {"aws:TagKeys": "Name"}),
        ask("ec2:CreateTags", ec2("capacity-reservation"), {"aws:TagKeys": "bivouac:block-for"}),
        ask("ec2:RunInstances", ec2("instance", "*"), MARKED),
        ask("s3:DeleteObject", f"{STATE}/campaigns/train/spec.json"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MUST))
def test_everybody_may_do_what_the_work_needs(name: str) -> None:
    one = who(name)
    assert [asked for asked in MUST[name] if not one.may(asked)] == []


@pytest.mark.parametrize("name", sorted(MUST_NOT))
def test_nobody_may_do_what_could_be_regretted(name: str) -> None:
    one = who(name)
    assert [asked for asked in MUST_NOT[name] if one.may(asked)] == []


def test_the_previews_role_is_lent_to_the_guarded_environment_of_one_repository() -> None:
    (one,) = read("preview-trust")[0]["Statement"]
    issuer = "token.actions.githubusercontent.com"
    who_asks = {"AWS": "arn:aws:iam::ACCOUNT:oidc-provider/" + issuer}
    trust = {"Version": "2012-10-17", "Statement": [one | {"Principal": who_asks}]}

    def lent(sub: str, aud: str = "sts.amazonaws.com") -> bool:
        context = {f"{issuer}:sub": [sub], f"{issuer}:aud": [aud]}
        return trusts(trust, [who_asks["AWS"]], "sts:AssumeRoleWithWebIdentity", context)

    assert lent("repo:OWNER/REPOSITORY:environment:bivouac-preview")
    for sub in (
        "repo:OWNER/REPOSITORY:pull_request",
        "repo:OWNER/REPOSITORY:ref:refs/heads/main",
        "repo:OWNER/REPOSITORY:environment:production",
        "repo:OWNER/REPOSITORY-2:environment:bivouac-preview",
        "repo:STRANGER/REPOSITORY:environment:bivouac-preview",
    ):
        assert not lent(sub), sub
    assert not lent("repo:OWNER/REPOSITORY:environment:bivouac-preview", "somebody-else")
    assert "environment: bivouac-preview" in (CI.parents[1] / ".github/workflows/preview.yml").read_text()

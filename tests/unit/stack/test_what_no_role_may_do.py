"""What no role that we make may do, nor anybody under the boundary: what could be regretted.

Near misses of what a role may do are in `test_rights_to_the_letter`.
"""

from __future__ import annotations

import pytest

from tests.unit.stack.iam_questions import (
    ANYTHING,
    ARCHIVE,
    BOUNDARY,
    BUILDER,
    DATA,
    FREEZE,
    GROUP,
    KEY,
    LIMIT,
    LISTS,
    OURS,
    OWN,
    PARAMETER,
    SCALING,
    SECRET,
    SOMEBODY,
    STATE,
    TAGGED,
    TRAINER,
    VIA,
    A,
    Ask,
    R,
    arn_of,
    ask,
    ec2,
    granted,
    limit_of,
    role,
)

ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
NODES = "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"
FS, DRA = f"arn:aws:fsx:{R}:{A}:file-system/", f"arn:aws:fsx:{R}:{A}:association/"
FOUNDED = "aws:ResourceTag/bivouac:foundation"
MARKED = {"aws:RequestTag/bivouac:campaign": "train", "aws:TagKeys": "bivouac:campaign,bivouac:owner"}
UNDER = {"iam:PermissionsBoundary": BOUNDARY}


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
    ask("ec2:TerminateInstances", ec2("instance"), BUILDER),
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
OTHER = {
    "aws:ResourceTag/eks:cluster-name": "bivouac-train-gpu",
    "aws:ResourceTag/eks:nodegroup-name": "bivouac-train-gpu-gpu",
}
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
    ask("autoscaling:UpdateAutoScalingGroup", SCALING, TAGGED),
]

NEVER: dict[str, list[Ask]] = {
    "steward": [
        *ROLES_NEVER,
        ask("autoscaling:TerminateInstanceInAutoScalingGroup", SCALING.replace("9a", "gpu-9a"), OTHER),
        ask("autoscaling:TerminateInstanceInAutoScalingGroup", SCALING.replace("9a", "system-9a"), {**TAGGED, **OTHER}),
        ask("s3:ListBucket", STATE, {"s3:prefix": ""}),
        ask("s3:ListBucket", STATE, {"s3:prefix": "campaigns/"}),
        ask("s3:ListBucket", STATE, {"s3:prefix": "campaigns/train-gpu/"}),
        ask("s3:ListBucket", ARCHIVE, LISTS),
        ask("s3:PutObject", f"{STATE}/foundation/keeping.json"),
        ask("s3:GetObject", f"{STATE}/.pulumi/stacks/bivouac/campaign-train.json"),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
        ask("kms:Decrypt", KEY),
        ask("kms:Decrypt", KEY, {**VIA, "kms:EncryptionContext:aws:s3:arn": "arn:aws:s3:::payroll"}),
    ],
    "archive": [
        *ROLES_NEVER,
        ask("s3:ListBucket", ARCHIVE, {"s3:prefix": "campaigns/train"}),
        ask("s3:ListBucket", ARCHIVE, {"s3:prefix": "campaigns/train-gpu/"}),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train2/manifest.json"),
        ask("s3:PutObject", f"{STATE}/images/abc.json"),
        ask("eks:UpdateNodegroupConfig", GROUP),
    ],
    "trainer": [
        *ROLES_NEVER,
        ask("secretsmanager:GetSecretValue", f"{SECRET}team/tokens-x1Y2z3"),
        ask("secretsmanager:PutSecretValue", f"{SECRET}team/token-x1Y2z3"),
        ask("secretsmanager:DescribeSecret", f"{SECRET}team/token-x1Y2z3"),
        ask("secretsmanager:ListSecrets", "*"),
        ask("ssm:GetParametersByPath", f"{PARAMETER}team/key"),
        ask("ssm:PutParameter", f"{PARAMETER}team/key"),
        ask("kms:Decrypt", KEY),
        ask("kms:Decrypt", KEY, VIA),
        ask("kms:GenerateDataKey", KEY, {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}),
        ask("s3:GetObject", f"{DATA}/datasets/abc/shard"),
        ask("ec2:DescribeInstances", "*"),
    ],
    "guard": [
        *ROLES_NEVER,
        ask("eks:DeleteNodegroup", GROUP),
    ],
    "budget": [
        *ROLES_NEVER,
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": NODES}),
    ],
    "closer": [
        *WEAKENING,
        *LOSING,
        *RULING,
        *STEALING,
        *READING,
        *BUYING,
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": FREEZE}),
        ask("iam:DetachRolePolicy", role("admin"), {"iam:PolicyARN": ADMIN}),
        ask("iam:DeleteRole", role("admin")),
        ask("iam:DeleteRole", role("bivouac_closer_us-east-1")),
        ask("iam:DeletePolicy", BOUNDARY),
        ask("ec2:RunInstances", ec2("instance", "*"), MARKED),
        ask("ec2:TerminateInstances", ec2("instance")),
        ask("ec2:DeleteRoute", ec2("route-table")),
        ask("eks:CreateCluster", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train"),
        ask("eks:DeleteCluster", f"arn:aws:eks:{R}:{A}:cluster/payroll"),
        ask("fsx:DeleteFileSystem", f"{FS}fs-0123456789abcdef0"),
        ask("s3:PutObject", f"{ARCHIVE}/campaigns/train/x"),
        ask("s3:PutObject", f"{DATA}/datasets/x"),
        ask("s3:GetObject", f"{DATA}/datasets/x"),
        ask("codebuild:StartBuild", f"arn:aws:codebuild:{R}:{A}:project/bivouac_closer"),
        ask("codebuild:UpdateProject", f"arn:aws:codebuild:{R}:{A}:project/bivouac_closer"),
        ask("logs:DeleteLogGroup", f"arn:aws:logs:{R}:{A}:log-group:/aws/lambda/x"),
        ask("kms:Decrypt", KEY),
    ],
    "cluster": [
        *(one for one in ROLES_NEVER if one[0] != "kms:Decrypt"),
        ask("kms:Decrypt", KEY.replace("1111", "9999")),
    ],
    "builder": [
        *ROLES_NEVER,
        ask("ecr:BatchDeleteImage", TRAINER),
        ask("s3:GetObject", f"{STATE}/campaigns/train/spec.json"),
    ],
    "builder-guard": [
        *(one for one in ROLES_NEVER if one[0] != "ec2:TerminateInstances"),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
    ],
}


@pytest.mark.parametrize("name", NEVER)
def test_no_role_may_do_what_could_be_regretted(name: str) -> None:
    assert granted(NEVER[name], arn_of(name), OWN[name], limit_of(name)) == []


def test_the_boundary_keeps_every_role_from_what_could_be_regretted() -> None:
    asks = [
        *ROLES_NEVER,
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "bivouac:role"}),
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "kubernetes.io/cluster/x,bivouac:role"}),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": f"arn:aws:iam::{A}:policy/bivouac-train-freeze"}),
        ask("lambda:CreateFunction", f"arn:aws:lambda:{R}:{A}:function:x"),
    ]
    assert granted(asks, SOMEBODY, ANYTHING, LIMIT) == []

"""Who may do what: of each of infra/ci's policies for people what its work needs, and what its holder must not be able
to do. Requests are written down by hand, and asked of an evaluator of IAM's rules."""

from __future__ import annotations

import json

import pytest

from infra.rehearsal.aws.iam.policies import trusts
from tests.root import ROOT
from tests.unit.stack.iam_questions import (
    ARCHIVE,
    BASES,
    BOUNDARY,
    BUILDER,
    DATA,
    FREEZE,
    KEY,
    LISTS,
    OURS,
    PULL,
    PUSH,
    STATE,
    TRAINER,
    VIA,
    A,
    Ask,
    Document,
    R,
    ask,
    ec2,
    granted,
    refused,
    role,
)
from tests.unit.stack.test_what_no_role_may_do import (
    BUYING,
    DRA,
    FOUNDED,
    FS,
    LOSING,
    MARKED,
    NODES,
    READING,
    RULING,
    STEALING,
    UNDER,
    WEAKENING,
)

CI = ROOT / "infra/ci"
CLOSER = f"arn:aws:codebuild:{R}:{A}:project/bivouac_closer"
OPERATOR = ("operator/look", "operator/network", "operator/cluster", "operator/rights")
WRITTEN = {
    "operator": OPERATOR,
    "founder": (*OPERATOR, "founder"),
    "viewer": ("viewer",),
    "preview": ("preview-role",),
    "buyer": ("block-buyer-role",),
    "publisher": ("publisher-role",),
}


def read(*names: str) -> list[Document]:
    return [json.loads((CI / f"{name}.json").read_text()) for name in names]


FOUNDATION = {"iam:PermissionsBoundary": BOUNDARY.replace("bivouac_", "bivouac_foundation_")}
EXISTING = {"aws:ResourceTag/bivouac:network": "true"}
"""A network of the company's own that campaigns may use."""
CARRIED = f"{STATE}/campaigns/train/carried/step-00000020/a.pt"
"""Weights that a steward has copied out of its cluster for somebody who asked for them."""
NOTICES = f"arn:aws:sns:{R}:{A}:bivouac_notices"
TELLING = [
    ask("sns:Publish", f"arn:aws:sns:{R}:{A}:payroll"),
    ask("sns:Subscribe", f"arn:aws:sns:{R}:{A}:payroll"),
    ask("sns:SetTopicAttributes", f"arn:aws:sns:{R}:{A}:payroll"),
    ask("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{R}:{A}:secret:team/token-AbC123"),
    ask("ssm:GetParameter", f"arn:aws:ssm:{R}:{A}:parameter/team/token"),
    ask("kms:Decrypt", KEY, {"kms:ViaService": f"secretsmanager.{R}.amazonaws.com"}),
]
"""To tell strangers, or to read secrets that are not the webhook's."""
MUST: dict[str, list[Ask]] = {
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
        ask("ec2:CreateSecurityGroup", ec2("vpc"), EXISTING),
        ask("ec2:RunInstances", ec2("subnet"), EXISTING),
        ask("ec2:RunInstances", ec2("security-group"), EXISTING),
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
        ask("ssm:SendCommand", ec2("instance"), BUILDER),
        ask("eks:CreateCluster", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train", MARKED),
        ask("eks:TagResource", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train", MARKED),
        ask("eks:CreateAccessEntry", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train", MARKED),
        ask("sns:Publish", NOTICES),
        ask("sns:Subscribe", NOTICES),
        ask("kms:GenerateDataKey", KEY, {"kms:ViaService": f"sns.{R}.amazonaws.com"}),
        ask("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{R}:{A}:secret:bivouac_webhook-AbC123"),
        ask("ssm:GetParameter", f"arn:aws:ssm:{R}:{A}:parameter/bivouac_webhook"),
        ask("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{R}:{A}:secret:bivouac_pull/nvcr-AbC123"),
        ask("ssm:GetParameter", f"arn:aws:ssm:{R}:{A}:parameter/bivouac_pull/nvcr"),
    ],
    "founder": [
        ask("sns:CreateTopic", NOTICES, MARKED),
        ask("sns:SetTopicAttributes", NOTICES),
        ask("s3:CreateBucket", ARCHIVE),
        ask("s3:PutBucketPolicy", ARCHIVE),
        ask("s3:PutLifecycleConfiguration", ARCHIVE),
        ask("s3:PutBucketVersioning", STATE),
        ask("s3:PutBucketObjectLockConfiguration", ARCHIVE),
        ask("iam:CreatePolicy", BOUNDARY),
        ask("iam:CreatePolicyVersion", BOUNDARY),
        ask("iam:CreatePolicy", FREEZE),
        ask("iam:CreatePolicy", FOUNDATION["iam:PermissionsBoundary"]),
        ask("iam:CreateRole", role("bivouac_build_us-east-1"), FOUNDATION),
        ask("iam:PutRolePolicy", role("bivouac_closer_us-east-1"), FOUNDATION),
        ask("iam:PutRolePermissionsBoundary", role("bivouac_closer_us-east-1"), FOUNDATION),
        ask("iam:PassRole", role("bivouac_closer_us-east-1"), {"iam:PassedToService": "codebuild.amazonaws.com"}),
        ask("codebuild:CreateProject", CLOSER),
        ask("ecr:PutImageTagMutability", TRAINER),
        ask("ecr:GetAuthorizationToken", "*"),
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
    "viewer": [
        ask("eks:DescribeCluster", f"arn:aws:eks:{R}:{A}:cluster/bivouac-train"),
        ask("s3:ListBucket", STATE, LISTS),
        ask("s3:ListBucket", ARCHIVE, {"s3:prefix": "copies/train/"}),
        ask("s3:GetObject", f"{STATE}/campaigns/train/events/w/000001.json"),
        ask("s3:GetObject", f"{STATE}/images/abc.json"),
        ask("s3:GetObject", f"{ARCHIVE}/copies/train/1a2b/step-00000020/manifest.json"),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train/1a2b/archive-manifest.json"),
        ask("s3:GetObject", f"{DATA}/datasets/abc/manifest.json"),
        ask("kms:Decrypt", KEY, VIA),
    ],
    "buyer": [
        ask("s3:GetObject", f"{STATE}/campaigns/train/spec.json"),
        ask("s3:PutObject", f"{STATE}/foundation/leases/driver.json"),
        ask("ec2:PurchaseCapacityBlock", ec2("capacity-reservation", "*"), {"aws:TagKeys": "bivouac:block-for"}),
        ask("ec2:CreateTags", ec2("capacity-reservation", "*"), {"ec2:CreateAction": "PurchaseCapacityBlock"}),
        ask("s3:PutObject", f"{STATE}/foundation/blocks/x.json"),
    ],
    "publisher": [
        ask("ecr:GetAuthorizationToken", "*"),
        *(ask(one, BASES) for one in f"{PULL} {PUSH}".split() if one != "ecr:DescribeImages"),
    ],
}
MUST_NOT: dict[str, list[Ask]] = {
    "operator": [
        *TELLING,
        *WEAKENING,
        *LOSING,
        *RULING,
        *(one for one in STEALING if one[0] != "ec2:TerminateInstances"),
        *(one for one in READING if one[0] != "s3:ListBucket"),
        *BUYING,
        ask("s3:PutObject", f"{ARCHIVE}/campaigns/train/manifest.json"),
        ask("s3:DeleteObjectVersion", f"{STATE}/.pulumi/stacks/bivouac/campaign-train.json"),
        ask("s3:CreateBucket", ARCHIVE),
        ask("ec2:TerminateInstances", ec2("instance"), BUILDER),
        ask("ec2:CreateSecurityGroup", ec2("vpc")),
        ask("ec2:RunInstances", ec2("subnet")),
        *(ask(f"ec2:{action}", ec2(kind), EXISTING) for action, kind in (
            ("CreateSubnet", "vpc"), ("DeleteVpc", "vpc"), ("ModifyVpcAttribute", "vpc"), ("DeleteSubnet", "subnet"),
            ("CreateVpcEndpoint", "vpc"), ("CreateRoute", "route-table"), ("DeleteSecurityGroup", "security-group"))),
        *(ask("ec2:CreateTags", ec2(kind), {"aws:TagKeys": "bivouac:network"}) for kind in ("vpc", "subnet")),
        ask("ssm:SendCommand", ec2("instance"), {OURS: "train"}),
        ask("ecr:PutImageTagMutability", TRAINER),
        ask("ecr:PutLifecyclePolicy", TRAINER),
        *(ask(f"sns:{one}", NOTICES) for one in ("DeleteTopic", "SetTopicAttributes", "AddPermission")),
        *(ask(f"codebuild:{call}Project", CLOSER) for call in ("Create", "Delete", "Update")),
        ask("codebuild:StartBuild", CLOSER),
        *(ask(f"iam:{call}", role("bivouac_closer_us-east-1"), UNDER) for call in ("PutRolePolicy", "DeleteRole")),
        ask("iam:PassRole", role("bivouac_closer_us-east-1"), {"iam:PassedToService": "codebuild.amazonaws.com"}),
    ],
    "founder": [
        *TELLING,
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
        *TELLING,
        *WEAKENING,
        *LOSING,
        *RULING,
        *STEALING,
        *READING,
        *BUYING,
        ask("s3:PutObject", f"{STATE}/.pulumi/stacks/bivouac/foundation.json"),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train/step-00000040/shard-0"),
        ask("s3:GetObject", f"{DATA}/datasets/abc/shard"),
        ask("s3:GetObject", CARRIED),
        ask("ec2:DescribeInstanceAttribute", ec2("instance")),
        ask("iam:GetRolePolicy", role("admin")),
        ask("kms:Decrypt", KEY),
        ask("sns:Publish", NOTICES),
        ask("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{R}:{A}:secret:bivouac_webhook-AbC123"),
        ask("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{R}:{A}:secret:bivouac_pull-AbC123"),
    ],
    "viewer": [
        *TELLING,
        *WEAKENING,
        *LOSING,
        *RULING,
        *STEALING,
        *READING,
        *BUYING,
        ask("s3:PutObject", f"{STATE}/campaigns/train/leases/driver.json"),
        ask("s3:PutObject", f"{STATE}/campaigns/train/stop.json"),
        ask("s3:DeleteObject", f"{STATE}/campaigns/train/events/w/000001.json"),
        ask("s3:GetObject", f"{STATE}/.pulumi/stacks/bivouac/campaign-train.json"),
        ask("s3:GetObject", f"{STATE}/closer/abc.zip"),
        ask("s3:GetObject", CARRIED),
        ask("s3:GetObject", f"{ARCHIVE}/copies/train/1a2b/step-00000020/attempt-0001/a.pt"),
        ask("s3:GetObject", f"{ARCHIVE}/campaigns/train/golden/step-00000040/shard-0"),
        ask("s3:GetObject", f"{DATA}/datasets/abc/shard"),
        ask("s3:GetObject", "arn:aws:s3:::payroll/manifest.json"),
        ask("eks:DescribeCluster", f"arn:aws:eks:{R}:{A}:cluster/payroll"),
        ask("eks:UpdateNodegroupConfig", f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a"),
        ask("codebuild:StartBuild", CLOSER),
        ask("kms:Decrypt", KEY),
        ask("sns:Publish", NOTICES),
    ],
    "buyer": [
        *TELLING,
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
        *(ask("s3:PutObject", f"{STATE}/{key}") for key in (
            "campaigns/train/spec.json", "campaigns/train/stop.json", "foundation/keeping.json", "closer/a.zip")),
        ask("s3:GetObject", CARRIED),
    ],
    "publisher": [
        *LOSING,
        *RULING,
        *STEALING,
        *READING,
        *(ask(one, TRAINER) for one in f"{PULL} {PUSH} ecr:BatchDeleteImage".split()),
        ask("ecr:BatchDeleteImage", BASES),
        ask("ecr:SetRepositoryPolicy", BASES),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_everybody_may_do_what_the_work_needs(name: str) -> None:
    assert refused(MUST[name], role(name), read(*WRITTEN[name])) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_nobody_may_do_what_could_be_regretted(name: str) -> None:
    assert granted(MUST_NOT[name], role(name), read(*WRITTEN[name])) == []


@pytest.mark.parametrize(
    ("role", "workflow", "environment"),
    [("preview", "preview", "bivouac-preview"), ("publisher", "images", "bivouac-images")],
)
def test_a_workflows_role_is_lent_to_the_guarded_environment_of_one_repository(
    role: str, workflow: str, environment: str
) -> None:
    (one,) = read(f"{role}-trust")[0]["Statement"]
    issuer = "token.actions.githubusercontent.com"
    who_asks = {"AWS": "arn:aws:iam::ACCOUNT:oidc-provider/" + issuer}
    trust = {"Version": "2012-10-17", "Statement": [one | {"Principal": who_asks}]}

    def lent(sub: str, aud: str = "sts.amazonaws.com") -> bool:
        context = {f"{issuer}:sub": [sub], f"{issuer}:aud": [aud]}
        return trusts(trust, [who_asks["AWS"]], "sts:AssumeRoleWithWebIdentity", context)

    assert lent(f"repo:OWNER/REPOSITORY:environment:{environment}")
    for sub in (
        "repo:OWNER/REPOSITORY:pull_request",
        "repo:OWNER/REPOSITORY:ref:refs/heads/main",
        "repo:OWNER/REPOSITORY:environment:production",
        f"repo:OWNER/REPOSITORY-2:environment:{environment}",
        f"repo:STRANGER/REPOSITORY:environment:{environment}",
    ):
        assert not lent(sub), sub
    assert not lent(f"repo:OWNER/REPOSITORY:environment:{environment}", "somebody-else")
    assert f"environment: {environment}\n" in (CI.parents[1] / f".github/workflows/{workflow}.yml").read_text()

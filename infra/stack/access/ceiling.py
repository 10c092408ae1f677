"""The permissions boundary: the most that any of our roles may do, whatever policies it has.

It grants nothing: a role may do what both its own policies and the boundary allow. Operators may make roles only under
it, and can neither change nor remove it (`infra/ci/operator/rights.json`). Besides our own statements it holds those of
AWS's policies for clusters, nodes, the CNI and SSM's agent, as of November 2026:
https://docs.aws.amazon.com/aws-managed-policy/latest/reference/policy-list.html
No Pulumi here.
"""

from __future__ import annotations

from infra.spec.names import (
    BUILDER,
    COPIES_PREFIX,
    REPOSITORY,
    ROLE_TAG,
    STEWARD_REPOSITORY,
    boundary,
    buckets,
    closer_role,
    freeze_policy,
)
from infra.stack.access.closing import ceiling_of_closing
from infra.stack.access.policies import EVERYTHING, AccountPlace, Statement, allow

_OBJECTS = (
    "s3:AbortMultipartUpload",
    "s3:GetObject",
    "s3:GetObjectVersion",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)
_PULL = ("ecr:BatchCheck*", "ecr:BatchGetImage", "ecr:GetDownload*")
"""BatchCheckLayerAvailability and GetDownloadUrlForLayer alone begin so; a managed policy has 6,144 characters."""
_PUSH = (
    "ecr:CompleteLayerUpload",
    "ecr:DescribeImages",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
)
_LOOK = (
    "autoscaling:Describe*",
    "ec2:Describe*",
    "ecr:GetAuthorizationToken",
    "eks-auth:AssumeRoleForPodIdentity",
    "eks:DescribeCluster",
    "elasticloadbalancing:Describe*",
)
_INTERFACES = ("ec2:*NetworkInterface", "ec2:Assign*", "ec2:ModifyNetworkInterfaceAttribute", "ec2:Unassign*")
"""Attach, create, delete and detach one, and its addresses."""
_AGENT = (
    "ec2messages:*",
    "ssm:DescribeAssociation",
    "ssm:DescribeDocument",
    "ssm:GetDeployablePatchSnapshotForInstance",
    "ssm:GetDocument",
    "ssm:GetManifest",
    "ssm:ListAssociations",
    "ssm:ListInstanceAssociations",
    "ssm:PutComplianceItems",
    "ssm:PutInventory",
    "ssm:UpdateAssociationStatus",
    "ssm:UpdateInstance*",
    "ssmmessages:*",
)
"""GetParameter is missing: the stored parameters are not ours. Of them a trainer's role reads those that its spec
names, and a steward's role the webhook's address."""


def ceiling(where: AccountPlace) -> list[Statement]:
    """Return all that a role of ours may be allowed. It cannot buy anything, nor change anybody's rights except by the
    freeze."""
    names = buckets(where.account, where.region)
    kept = f"arn:aws:s3:::bivouac-*-{where.account}-{where.region}"
    of_network = [
        where.arn("ec2", f"{kind}/*") for kind in ("network-interface", "instance", "subnet", "security-group")
    ]
    # Who may not read secrets gains nothing by their keys.
    services = [f"{one}.{where.region}.amazonaws.com" for one in ("s3", "secretsmanager", "sns", "ssm")]
    steward, closer = where.role("bivouac-*-steward"), where.role(closer_role(where.region))
    readers = {"ArnLike": {"aws:PrincipalArn": [steward, where.role("bivouac-*-trainer"), closer]}}
    tellers = {"ArnLike": {"aws:PrincipalArn": [steward, closer, where.role("bivouac-*-guard")]}}
    preparing = {"ArnLike": {"aws:PrincipalArn": where.role("bivouac-*-data")}}
    freeze = f"arn:aws:iam::{where.account}:policy/{freeze_policy(where.region)}"
    return [
        allow([*_LOOK, *_AGENT], [EVERYTHING]),
        # The least that EKS needs of a cluster's role; its policy has more, for load balancers and volumes, which no
        # campaign makes. https://docs.aws.amazon.com/eks/latest/userguide/cluster-iam-role.html
        allow(
            ["ec2:CreateTags"],
            [where.arn("ec2", "instance/*")],
            {"ForAllValues:StringLike": {"aws:TagKeys": "kubernetes.io/cluster/*"}, "Null": {"aws:TagKeys": "false"}},
        ),
        allow(["ec2:CreateTags"], [where.arn("ec2", "network-interface/*")]),
        allow(_INTERFACES, of_network),
        allow(_OBJECTS, [f"{kept}/*"]),
        allow(["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:ListBucketVersions"], [kept]),
        # Text lies wherever its owner keeps it; the role's own policy names the prefixes.
        allow(["s3:GetObject", "s3:ListBucket"], ["arn:aws:s3:::*"], preparing),
        allow(["s3:DeleteObject", "s3:DeleteObjectVersion"], [f"arn:aws:s3:::{names.archive}/{COPIES_PREFIX}*"]),
        allow(
            ["kms:Decrypt", "kms:GenerateDataKey"],
            [where.arn("kms", "key/*")],
            {"StringEquals": {"kms:ViaService": services}},
        ),
        allow(
            ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"],
            [where.arn("kms", "key/*")],
            {"ArnLike": {"aws:PrincipalArn": where.role("bivouac-*-cluster")}},
        ),
        allow(
            ["secretsmanager:GetSecretValue", "ssm:GetParameter"],
            [where.arn("secretsmanager", "secret:*"), where.arn("ssm", "parameter/*")],
            readers,
        ),
        allow(["sns:Publish"], [where.arn("sns", "*")], tellers),
        allow(_PULL, [where.repository("*")]),
        # A workload's image may be in another account's registry, such as AWS's Deep Learning Containers.
        allow(
            _PULL,
            ["arn:aws:ecr:*:*:repository/*"],
            {"ArnLike": {"aws:PrincipalArn": where.role("bivouac-*-node")}},
        ),
        allow(_PUSH, [where.repository(one) for one in (REPOSITORY, STEWARD_REPOSITORY)]),
        allow(["eks:DescribeNodegroup", "eks:UpdateNodegroupConfig"], [where.arn("eks", "nodegroup/bivouac-*/*")]),
        allow(
            ["autoscaling:TerminateInstanceInAutoScalingGroup"],
            [where.arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/eks-bivouac-*")],
        ),
        allow(
            ["ec2:TerminateInstances"],
            [where.arn("ec2", "instance/*")],
            {"StringEquals": {f"aws:ResourceTag/{ROLE_TAG}": BUILDER}},
        ),
        allow(
            ["iam:AttachRolePolicy", "iam:DetachRolePolicy"],
            [where.role("*")],
            {"ArnEquals": {"iam:PolicyARN": freeze}},
        ),
        *ceiling_of_closing(where),
    ]


def boundary_arn(where: AccountPlace) -> str:
    return f"arn:aws:iam::{where.account}:policy/{boundary(where.region)}"

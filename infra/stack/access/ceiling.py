"""The permissions boundaries: the most that our roles may do, whatever policies they have.

They grant nothing: a role may do what both its own policies and its boundary allow. Operators may make roles only under
the campaigns' boundary, and can neither change nor remove it (`infra/ci/operator/rights.json`). IAM has no condition on
a role's trust or on the content of its policies, so an operator can make a role of any name, trust itself, and assume
it: whatever the boundary allows is the operator's. What is other people's must therefore opt in, by a name or a tag
that no operator can give (decision 0029). Besides our own statements the boundaries hold those of AWS's policies for
clusters, nodes, the CNI and SSM's agent, as of November 2026:
https://docs.aws.amazon.com/aws-managed-policy/latest/reference/policy-list.html
No Pulumi here.
"""

from __future__ import annotations

from typing import Any

from infra.spec.names import (
    COPIES_PREFIX,
    FOUNDATION_TAG,
    JOB_SECRETS,
    KEY_TAG,
    REPOSITORY,
    STEWARD_REPOSITORY,
    TEXT_TAG,
    TOPICS,
    WEBHOOK_SECRETS,
    boundary,
    buckets,
    freeze_policy,
)
from infra.stack.access.closing import closers_ceiling, project_arn
from infra.stack.access.policies import EVERYTHING, PUSH, AccountPlace, Statement, actions, allow, places_of_secrets

_OBJECTS = actions("s3", "AbortMultipartUpload GetObject GetObjectVersion ListMultipartUploadParts PutObject")
_PULL = ("ecr:BatchCheck*", "ecr:BatchGetImage", "ecr:GetDownload*")
"""BatchCheckLayerAvailability and GetDownloadUrlForLayer alone begin so; a managed policy has 6,144 characters."""
_LOOK = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    *(
        f"ec2:Describe{name}"
        for name in (
            "A*", "Dhcp*", "InstanceStatus", "InstanceT*", "Instances", "Internet*", "Network*", "Route*", "Security*",
            "Subnets", "Tags", "Volumes*", "Vpcs",
        )
    ),
    "ecr:GetAuthorizationToken",
    "eks-auth:AssumeRoleForPodIdentity",
    "eks:DescribeCluster",
    "elasticloadbalancing:Describe*",
)  # fmt: skip
"""Not launch templates and configurations, spot requests and attributes of instances: they show user data."""
_INTERFACES = ("ec2:*NetworkInterface", "ec2:Assign*", "ec2:ModifyNetworkInterfaceAttribute", "ec2:Unassign*")
"""Attach, create, delete and detach one, and its addresses."""
_AGENT = (
    *actions("ec2messages", "*"),
    *actions(
        "ssm",
        "DescribeAssociation DescribeDocument GetDeployablePatchSnapshotForInstance GetDocument "
        "GetManifest ListAssociations ListInstanceAssociations PutComplianceItems PutInventory "
        "UpdateAssociationStatus UpdateInstance*",
    ),
    *actions("ssmmessages", "*"),
)
"""GetParameter is missing: the stored parameters are not ours."""


def ceiling(place: AccountPlace) -> list[Statement]:
    """Return all that a campaign's role may be allowed. It cannot buy anything, nor change anybody's rights except by
    the freeze."""
    names = buckets(place.account, place.region)
    bucket_arns = f"arn:aws:s3:::bivouac-*-{place.account}-{place.region}"
    of_network = [
        place.arn("ec2", f"{kind}/*") for kind in ("network-interface", "instance", "subnet", "security-group")
    ]
    # Who may not read secrets gains nothing by their keys.
    services = [f"{service}.{place.region}.amazonaws.com" for service in ("s3", "secretsmanager", "sns", "ssm")]

    def for_roles(*kinds: str, tag_key: str | None = None) -> dict[str, dict[str, Any]]:
        mark = {} if tag_key is None else {"Null": {tag_key: "false"}}
        return {"ArnLike": {"aws:PrincipalArn": [place.role(f"bivouac-*-{kind}") for kind in kinds]}, **mark}

    freeze = f"arn:aws:iam::{place.account}:policy/{freeze_policy(place.region)}"
    return [
        allow(_LOOK, [EVERYTHING]),
        # The least that EKS needs of a cluster's role; its policy has more, for load balancers and volumes, which no
        # campaign makes. https://docs.aws.amazon.com/eks/latest/userguide/cluster-iam-role.html
        allow(
            ["ec2:CreateTags"],
            [place.arn("ec2", "instance/*")],
            {"ForAllValues:StringLike": {"aws:TagKeys": "kubernetes.io/cluster/*"}, "Null": {"aws:TagKeys": "false"}},
        ),
        allow(["ec2:CreateTags"], [place.arn("ec2", "network-interface/*")]),
        allow(_INTERFACES, of_network),
        allow(_OBJECTS, [f"{bucket_arns}/*"]),
        allow(["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:ListBucketVersions"], [bucket_arns]),
        # Text lies wherever its owner keeps it and marks the bucket; the role's own policy names the prefixes.
        allow(
            ["s3:GetObject", "s3:ListBucket"], ["arn:aws:s3:::*"], for_roles("data", tag_key=f"s3:BucketTag/{TEXT_TAG}")
        ),
        allow(["s3:DeleteObject", "s3:DeleteObjectVersion"], [f"arn:aws:s3:::{names.archive}/{COPIES_PREFIX}*"]),
        allow(
            ["kms:Decrypt", "kms:GenerateDataKey"],
            [place.arn("kms", "key/*")],
            {"StringEquals": {"kms:ViaService": services}},
        ),
        *(
            allow(
                ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"],
                [place.arn("kms", "key/*")],
                for_roles("cluster", tag_key=f"aws:ResourceTag/{tag}"),
            )
            for tag in (FOUNDATION_TAG, KEY_TAG)
        ),
        *(
            allow(
                ["secretsmanager:GetSecretValue", "ssm:GetParameter"],
                [place.arn(*service) for service in places_of_secrets(beginning)],
                for_roles(kind),
            )
            for kind, beginning in (("steward", WEBHOOK_SECRETS), ("trainer", JOB_SECRETS))
        ),
        allow(["sns:Publish"], [place.arn("sns", f"{TOPICS}*")], for_roles("steward", "guard")),
        # A workload's image may be in another account's registry, such as AWS's Deep Learning Containers.
        allow(_PULL, ["arn:aws:ecr:*:*:repository/*"], for_roles("node")),
        allow(["eks:DescribeNodegroup", "eks:UpdateNodegroupConfig"], [place.arn("eks", "nodegroup/bivouac-*/*")]),
        allow(
            ["autoscaling:TerminateInstanceInAutoScalingGroup"],
            [place.arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/eks-bivouac-*")],
        ),
        allow(
            ["iam:AttachRolePolicy", "iam:DetachRolePolicy"],
            [place.role("*")],
            {**for_roles("budget"), "ArnEquals": {"iam:PolicyARN": freeze}},
        ),
        allow(
            ["codebuild:StartBuild"],
            [project_arn(place)],
            {"Null": {"codebuild:serviceRole": "true", "codebuild:source.buildspec": "true"}},
        ),
    ]


def foundation_ceiling(place: AccountPlace) -> list[Statement]:
    """Return all that the foundation's own roles may be allowed: its builders, who ends them, and the closer, which
    also ends instances."""
    return [
        allow([*_AGENT, "ecr:GetAuthorizationToken"], [EVERYTHING]),
        allow(_PULL, [place.repository("*")]),
        allow(PUSH, [place.repository(name) for name in (REPOSITORY, STEWARD_REPOSITORY)]),
        *closers_ceiling(place),
    ]


def boundary_arn(place: AccountPlace) -> str:
    return f"arn:aws:iam::{place.account}:policy/{boundary(place.region)}"

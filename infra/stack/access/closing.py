"""The rights of the closer, which ends campaigns that nobody drives any more, and of who may start it.

The closer has what a teardown and its certificate take, and nothing else: it makes nothing, lends no role, and writes
into no bucket but the state's; people it tells what is due. Whoever starts it may name the campaign and the code, both
fixed here, and override nothing: a build's caller could otherwise run any command with the closer's role. The keys are
those of
https://docs.aws.amazon.com/codebuild/latest/userguide/action-context-keys.html
No Pulumi here.
"""

from __future__ import annotations

from infra.spec.names import (
    CAMPAIGN_VARIABLE,
    CLOSER,
    CODE_VARIABLE,
    STATE_CONTEXT,
    TOPICS,
    WEBHOOK_SECRETS,
    buckets,
    closer_role,
    freeze_policy,
)
from infra.stack.access.policies import (
    EVERYTHING,
    AccountPlace,
    Statement,
    allow,
    keys_through_s3,
    places_of_secrets,
)

_VARIABLES = "codebuild:environment.environmentVariables"
FIXED = (
    "codebuild:artifacts",
    "codebuild:cache",
    "codebuild:encryptionKey",
    "codebuild:environment.certificate",
    "codebuild:environment.computeType",
    "codebuild:environment.fleet.fleetArn",
    "codebuild:environment.image",
    "codebuild:environment.imagePullCredentialsType",
    "codebuild:environment.privilegedMode",
    "codebuild:environment.registryCredential",
    "codebuild:environment.type",
    "codebuild:logsConfig",
    "codebuild:secondaryArtifacts",
    "codebuild:secondarySources",
    "codebuild:serviceRole",
    "codebuild:source",
    "codebuild:source.auth.type",
    "codebuild:source.buildspec",
    "codebuild:source.location",
)
"""What a request to start the build must leave alone."""

_LOOKS = {
    "autoscaling": "DescribeAutoScalingGroups DescribeLaunchConfigurations DescribeScalingActivities",
    "budgets": "DescribeBudgetAction DescribeBudgetActionsForBudget ListTagsForResource ViewBudget",
    "cloudwatch": "DescribeAlarms",
    "ec2": (
        "DescribeAddresses DescribeAvailabilityZones DescribeCapacityReservations DescribeFlowLogs "
        "DescribeImages DescribeInstanceTypeOfferings DescribeInstances "
        "DescribeInternetGateways DescribeKeyPairs DescribeLaunchTemplateVersions DescribeLaunchTemplates "
        "DescribeNatGateways DescribeNetworkAcls DescribeNetworkInterfaces DescribePlacementGroups "
        "DescribePrefixLists DescribeRouteTables DescribeSecurityGroupRules DescribeSecurityGroups "
        "DescribeSnapshots DescribeSpotInstanceRequests DescribeSubnets DescribeTags DescribeVolumes "
        "DescribeVpcAttribute DescribeVpcEndpoints DescribeVpcPeeringConnections DescribeVpcs"
    ),
    "eks": (
        "DescribeAccessEntry DescribeAddon DescribeCluster DescribeNodegroup DescribePodIdentityAssociation "
        "DescribeUpdate ListAccessEntries ListAddons ListAssociatedAccessPolicies ListClusters ListNodegroups "
        "ListPodIdentityAssociations ListTagsForResource"
    ),
    "elasticloadbalancing": "DescribeLoadBalancers DescribeTags DescribeTargetGroups",
    "events": "ListRules ListTargetsByRule",
    "fsx": (
        "DescribeBackups DescribeDataRepositoryAssociations DescribeFileSystems DescribeSnapshots "
        "DescribeVolumes ListTagsForResource"
    ),
    "iam": (
        "GetInstanceProfile GetPolicy GetPolicyVersion GetRole GetRolePolicy ListAttachedRolePolicies "
        "ListEntitiesForPolicy ListInstanceProfileTags ListInstanceProfiles ListInstanceProfilesForRole "
        "ListPolicies ListPolicyTags ListPolicyVersions ListRolePolicies ListRoleTags ListRoles"
    ),
    "kms": "DescribeKey",
    "logs": "DescribeLogGroups ListTagsForResource ListTagsLogGroup",
    "s3": "GetBucketTagging ListAllMyBuckets",
    "scheduler": "GetSchedule ListSchedules ListTagsForResource",
    "sns": "GetTopicAttributes ListTagsForResource ListTopics",
    "ssm": "DescribeParameters ListTagsForResource",
    "tag": "GetResources",
}
LOOK = tuple(f"{service}:{name}" for service, names in _LOOKS.items() for name in names.split())
"""The certificate proves that nothing is left by listing all there is; most of these calls know no resource."""
_CLUSTER = (
    "eks:DeleteAccessEntry",
    "eks:DeleteAddon",
    "eks:DeleteCluster",
    "eks:DeleteNodegroup",
    "eks:DeletePodIdentityAssociation",
    "eks:DisassociateAccessPolicy",
    "eks:UpdateNodegroupConfig",
)
_NETWORK = (
    "ec2:CancelCapacityReservation",
    "ec2:CancelSpotInstanceRequests",
    "ec2:DeleteFlowLogs",
    "ec2:DeleteInternetGateway",
    "ec2:DeleteKeyPair",
    "ec2:DeleteLaunchTemplate",
    "ec2:DeleteNatGateway",
    "ec2:DeleteRoute",
    "ec2:DeleteRouteTable",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteSnapshot",
    "ec2:DeleteSubnet",
    "ec2:DeleteVolume",
    "ec2:DeleteVpc",
    "ec2:DeleteVpcEndpoints",
    "ec2:DeleteVpcPeeringConnection",
    "ec2:DeregisterImage",
    "ec2:DetachInternetGateway",
    "ec2:DetachNetworkInterface",
    "ec2:DisassociateAddress",
    "ec2:DisassociateRouteTable",
    "ec2:ReleaseAddress",
    "ec2:RevokeSecurityGroupEgress",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:StopInstances",
    "ec2:TerminateInstances",
)
_STRAYS = ("cloudwatch:DeleteAlarms", "events:DeleteRule", "events:RemoveTargets", "ssm:DeleteParameter")
_BALANCERS = ("elasticloadbalancing:DeleteLoadBalancer", "elasticloadbalancing:DeleteTargetGroup")
_SHARED = ("fsx:DeleteDataRepositoryAssociation", "fsx:DeleteFileSystem")
_NODES = (
    "autoscaling:DeleteAutoScalingGroup",
    "autoscaling:DeleteLaunchConfiguration",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
)
_ROLES = ("iam:DeleteRole", "iam:DeleteRolePolicy", "iam:DetachRolePolicy")
_RIGHTS = (
    "iam:DeleteInstanceProfile",
    "iam:DeletePolicy",
    "iam:DeletePolicyVersion",
    "iam:RemoveRoleFromInstanceProfile",
)
_GROUPS = ("ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupIngress")
_EKS_GROUP = {"StringLike": {"aws:ResourceTag/aws:eks:cluster-name": "bivouac-*"}}
_OURS = {"Null": {"aws:ResourceTag/bivouac:campaign": "false"}}


def closer(where: AccountPlace) -> list[Statement]:
    """Allow what `bivouac down` takes: to look, to delete what is a campaign's by tag or name, to keep the record."""
    kept = buckets(where.account, where.region)
    state, archive, data = (f"arn:aws:s3:::{name}" for name in (kept.state, kept.archive, kept.data))
    iam = f"arn:aws:iam::{where.account}"
    freeze = {"ArnEquals": {"iam:PolicyARN": f"{iam}:policy/{freeze_policy(where.region)}"}}
    driver = {"Null": {"aws:ResourceTag/bivouac:driver": "false"}}
    return [
        allow(LOOK, [EVERYTHING]),
        allow(_CLUSTER, [where.arn("eks", f"{kind}/bivouac-*") for kind in _EKS]),
        allow(
            _NODES,
            [
                where.arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/eks-bivouac-*"),
                where.arn("autoscaling", "launchConfiguration:*:launchConfigurationName/bivouac-*"),
            ],
        ),
        allow(_SHARED, [where.arn("fsx", "association/*"), where.arn("fsx", "file-system/*")], _OURS),
        # Images and snapshots belong to no account in their ARNs.
        allow(_NETWORK, [where.arn("ec2", "*/*"), f"arn:aws:ec2:{where.region}::*/*"], _OURS),
        # What the network plugin leaves carries no tag of ours; one in use cannot be deleted.
        allow(["ec2:DeleteNetworkInterface"], [where.arn("ec2", "network-interface/*")]),
        allow(["ec2:DeletePlacementGroup"], [where.arn("ec2", "placement-group/bivouac-*")]),
        # EKS's own group of a cluster, which EKS at times leaves, and what GuardDuty puts into a VPC.
        allow(_GROUPS, [where.arn("ec2", "security-group/*")], _EKS_GROUP),
        allow(
            [*_GROUPS, "ec2:DeleteVpcEndpoints", "ec2:RevokeSecurityGroupEgress"],
            [where.arn("ec2", f"{kind}/*") for kind in ("security-group", "vpc-endpoint")],
            {"StringEquals": {"aws:ResourceTag/GuardDutyManaged": "true"}},
        ),
        allow(["ec2:DeleteRoute"], [where.arn("ec2", "route-table/*")], driver),
        allow(_BALANCERS, [where.arn("elasticloadbalancing", "*/*")], _OURS),
        allow(
            ["budgets:DeleteBudgetAction", "budgets:ModifyBudget"],
            [f"arn:aws:budgets::{where.account}:budget/bivouac-*"],
        ),
        allow(["sns:DeleteTopic"], [where.arn("sns", "bivouac-*")]),
        allow(["scheduler:DeleteSchedule"], [where.arn("scheduler", "schedule/default/bivouac-*")]),
        allow(["logs:DeleteLogGroup"], [where.arn("logs", "log-group:/aws/eks/bivouac-*")]),
        allow(
            _STRAYS,
            [
                where.arn("cloudwatch", "alarm:bivouac-*"),
                where.arn("events", "rule/bivouac-*"),
                where.arn("ssm", "parameter/bivouac-*"),
            ],
        ),
        allow(_ROLES, [where.role("bivouac-*")]),
        allow(["iam:DetachRolePolicy"], [where.role("*")], freeze),
        allow(_RIGHTS, [f"{iam}:instance-profile/bivouac-*", f"{iam}:policy/bivouac-*"]),
        allow(["s3:DeleteObject", "s3:GetObject", "s3:PutObject"], [f"{state}/*"]),
        allow(["s3:GetObject"], [f"{archive}/*"]),
        allow(["s3:GetBucketLocation", "s3:ListBucket"], [archive, state]),
        # Unfinished uploads bill, and no other listing shows them.
        allow(["s3:ListBucketMultipartUploads"], [archive, data, state]),
        allow(["s3:AbortMultipartUpload"], [f"{bucket}/campaigns/*" for bucket in (archive, data, state)]),
        allow(["logs:CreateLogStream", "logs:PutLogEvents"], [where.arn("logs", f"log-group:{LOG_GROUP}:*")]),
        *keys_through_s3(where, [kept.archive, kept.state]),
        allow(["kms:Decrypt"], [where.arn("kms", "key/*")], _ENGINES),
        *_telling(where),
    ]


def _telling(where: AccountPlace) -> list[Statement]:
    """Allow to tell people of what no driver is there to tell, as the operator may: on topics and by a webhook's
    address that are called `bivouac*`."""
    named = [where.arn(*one) for one in places_of_secrets(WEBHOOK_SECRETS)]
    keys = [where.arn("kms", "key/*")]

    def through(*services: str) -> dict[str, dict[str, list[str]]]:
        return {"StringEquals": {"kms:ViaService": [f"{one}.{where.region}.amazonaws.com" for one in services]}}

    return [
        allow(["sns:Publish"], [where.arn("sns", f"{TOPICS}*")]),
        allow(["kms:Decrypt", "kms:GenerateDataKey"], keys, through("sns")),
        allow(["secretsmanager:GetSecretValue", "ssm:GetParameter"], named),
        allow(["kms:Decrypt"], keys, through("secretsmanager", "ssm")),
    ]


_ENGINES = {"StringEquals": {f"kms:EncryptionContext:{STATE_CONTEXT[0]}": STATE_CONTEXT[1]}}
"""Condition under which the customer's key may be used: only for the keys of the engine's states."""
_EKS = ("access-entry", "addon", "cluster", "nodegroup", "podidentityassociation")
LOG_GROUP = f"/aws/codebuild/{CLOSER}"


def project_arn(where: AccountPlace) -> str:
    return where.arn("codebuild", f"project/{CLOSER}")


def asking(where: AccountPlace, campaign: str, code: str) -> Statement:
    """Allow to start the closer for this campaign, with this code, as its project says."""
    wanted = {CAMPAIGN_VARIABLE: campaign, CODE_VARIABLE: code}
    return allow(
        ["codebuild:StartBuild"],
        [project_arn(where)],
        {
            # In an Allow, every test must hold, so that a request without them, or with others, is refused.
            "StringEquals": {f"{_VARIABLES}/{name}.value": value for name, value in wanted.items()},
            "ForAllValues:StringEquals": {f"{_VARIABLES}.name": sorted(wanted)},
            "Null": dict.fromkeys(FIXED, "true"),
        },
    )


def closers_ceiling(where: AccountPlace) -> list[Statement]:
    """Return the closer's part of the foundation's boundary: coarse, since only the founder writes policies of roles
    under it. A builder's policy, which is AWS's, reads any parameter."""
    alone = {"ArnEquals": {"aws:PrincipalArn": where.role(closer_role(where.region))}}
    iam, kept = f"arn:aws:iam::{where.account}", f"arn:aws:s3:::bivouac-*-{where.account}-{where.region}"
    freeze = {"ArnEquals": {"iam:PolicyARN": f"{iam}:policy/{freeze_policy(where.region)}"}}
    return [
        allow([*_BY_LETTER, *_ALSO], [EVERYTHING]),
        allow(
            [*_ROLES, "iam:DeleteInstanceProfile", "iam:DeletePolicy*", "iam:Remove*"],
            [f"{iam}:{kind}/bivouac-*" for kind in ("instance-profile", "policy", "role")],
        ),
        allow(["iam:DetachRolePolicy"], [where.role("*")], freeze),
        allow(["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"], [f"{kept}/*"]),
        allow(["s3:ListBucket", "s3:ListBucketMultipartUploads"], [kept]),
        allow(["s3:DeleteObject"], [f"arn:aws:s3:::{buckets(where.account, where.region).state}/*"]),
        *(statement | {"Condition": alone} for statement in _telling(where) if "Condition" not in statement),
    ]


_BY_LETTER = tuple(
    f"{service}:{letter}*"
    for letter, services in {
        "D": ("autoscaling", "budgets", "cloudwatch", "ec2", "eks", "elasticloadbalancing", "events", "fsx", "logs",
              "scheduler", "sns", "ssm"),
        "L": ("budgets", "eks", "events", "fsx", "logs", "scheduler", "sns", "ssm"),
    }.items()
    for service in services
)  # fmt: skip
"""Delete, Describe, Detach and so on; List. By first letters, since a managed policy has 6,144 characters."""
_ALSO = (
    "autoscaling:Term*",
    "budgets:*Budget",
    "ec2:Cancel*",
    "ec2:ReleaseAddress",
    "ec2:Revoke*",
    "ec2:Stop*",
    "ec2:Term*",
    "eks:UpdateNodegroupConfig",
    "events:Remove*",
    "iam:Get*",
    "iam:List*",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKey",
    "logs:CreateLogStream",
    "logs:PutLogEvents",
    "s3:GetBucket*",
    "s3:ListAll*",
    "scheduler:Get*",
    "sns:Get*",
    "tag:Get*",
)

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
    actions,
    allow,
    keys_through_s3,
    places_of_secrets,
)

_VARIABLES = "codebuild:environment.environmentVariables"
FIXED = actions(
    "codebuild",
    "artifacts cache encryptionKey environment.certificate environment.computeType environment.fleet.fleetArn "
    "environment.image environment.imagePullCredentialsType environment.privilegedMode "
    "environment.registryCredential environment.type logsConfig secondaryArtifacts secondarySources serviceRole "
    "source source.auth.type source.buildspec source.location",
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
LOOK = tuple(action for service, names in _LOOKS.items() for action in actions(service, names))
"""The certificate proves that nothing is left by listing all there is; most of these calls know no resource."""
_CLUSTER = actions(
    "eks",
    "DeleteAccessEntry DeleteAddon DeleteCluster DeleteNodegroup DeletePodIdentityAssociation "
    "DisassociateAccessPolicy UpdateNodegroupConfig",
)
_NETWORK = actions(
    "ec2",
    "CancelCapacityReservation CancelSpotInstanceRequests DeleteFlowLogs DeleteInternetGateway DeleteKeyPair "
    "DeleteLaunchTemplate DeleteNatGateway DeleteRoute DeleteRouteTable DeleteSecurityGroup DeleteSnapshot "
    "DeleteSubnet DeleteVolume DeleteVpc DeleteVpcEndpoints DeleteVpcPeeringConnection DeregisterImage "
    "DetachInternetGateway DetachNetworkInterface DisassociateAddress DisassociateRouteTable ReleaseAddress "
    "RevokeSecurityGroupEgress RevokeSecurityGroupIngress StopInstances TerminateInstances",
)
_STRAYS = ("cloudwatch:DeleteAlarms", "events:DeleteRule", "events:RemoveTargets", "ssm:DeleteParameter")
_BALANCERS = ("elasticloadbalancing:DeleteLoadBalancer", "elasticloadbalancing:DeleteTargetGroup")
_SHARED = ("fsx:DeleteDataRepositoryAssociation", "fsx:DeleteFileSystem")
_NODES = actions("autoscaling", "DeleteAutoScalingGroup DeleteLaunchConfiguration TerminateInstanceInAutoScalingGroup")
_ROLES = ("iam:DeleteRole", "iam:DeleteRolePolicy", "iam:DetachRolePolicy")
_RIGHTS = actions("iam", "DeleteInstanceProfile DeletePolicy DeletePolicyVersion RemoveRoleFromInstanceProfile")
_GROUPS = ("ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupIngress")
_EKS_GROUP = {"StringLike": {"aws:ResourceTag/aws:eks:cluster-name": "bivouac-*"}}
_OURS = {"Null": {"aws:ResourceTag/bivouac:campaign": "false"}}


def closer(place: AccountPlace) -> list[Statement]:
    """Allow what `bivouac down` takes: to look, to delete what is a campaign's by tag or name, to keep the record."""
    bucket_names = buckets(place.account, place.region)
    state, archive, data = (
        f"arn:aws:s3:::{name}" for name in (bucket_names.state, bucket_names.archive, bucket_names.data)
    )
    iam = f"arn:aws:iam::{place.account}"
    freeze = {"ArnEquals": {"iam:PolicyARN": f"{iam}:policy/{freeze_policy(place.region)}"}}
    driver = {"Null": {"aws:ResourceTag/bivouac:driver": "false"}}
    return [
        allow(LOOK, [EVERYTHING]),
        allow(_CLUSTER, [place.arn("eks", f"{kind}/bivouac-*") for kind in _EKS]),
        allow(
            _NODES,
            [
                place.arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/eks-bivouac-*"),
                place.arn("autoscaling", "launchConfiguration:*:launchConfigurationName/bivouac-*"),
            ],
        ),
        allow(_SHARED, [place.arn("fsx", "association/*"), place.arn("fsx", "file-system/*")], _OURS),
        # Images and snapshots belong to no account in their ARNs.
        allow(_NETWORK, [place.arn("ec2", "*/*"), f"arn:aws:ec2:{place.region}::*/*"], _OURS),
        # What the network plugin leaves carries no tag of ours; one in use cannot be deleted.
        allow(["ec2:DeleteNetworkInterface"], [place.arn("ec2", "network-interface/*")]),
        allow(["ec2:DeletePlacementGroup"], [place.arn("ec2", "placement-group/bivouac-*")]),
        # EKS's own group of a cluster, which EKS at times leaves, and what GuardDuty puts into a VPC.
        allow(_GROUPS, [place.arn("ec2", "security-group/*")], _EKS_GROUP),
        allow(
            [*_GROUPS, "ec2:DeleteVpcEndpoints", "ec2:RevokeSecurityGroupEgress"],
            [place.arn("ec2", f"{kind}/*") for kind in ("security-group", "vpc-endpoint")],
            {"StringEquals": {"aws:ResourceTag/GuardDutyManaged": "true"}},
        ),
        allow(["ec2:DeleteRoute"], [place.arn("ec2", "route-table/*")], driver),
        allow(_BALANCERS, [place.arn("elasticloadbalancing", "*/*")], _OURS),
        allow(
            ["budgets:DeleteBudgetAction", "budgets:ModifyBudget"],
            [f"arn:aws:budgets::{place.account}:budget/bivouac-*"],
        ),
        allow(["sns:DeleteTopic"], [place.arn("sns", "bivouac-*")]),
        allow(["scheduler:DeleteSchedule"], [place.arn("scheduler", "schedule/default/bivouac-*")]),
        allow(["logs:DeleteLogGroup"], [place.arn("logs", "log-group:/aws/eks/bivouac-*")]),
        allow(
            _STRAYS,
            [
                place.arn("cloudwatch", "alarm:bivouac-*"),
                place.arn("events", "rule/bivouac-*"),
                place.arn("ssm", "parameter/bivouac-*"),
            ],
        ),
        allow(_ROLES, [place.role("bivouac-*")]),
        allow(["iam:DetachRolePolicy"], [place.role("*")], freeze),
        allow(_RIGHTS, [f"{iam}:instance-profile/bivouac-*", f"{iam}:policy/bivouac-*"]),
        allow(["s3:DeleteObject", "s3:GetObject", "s3:PutObject"], [f"{state}/*"]),
        allow(["s3:GetObject"], [f"{archive}/*"]),
        allow(["s3:GetBucketLocation", "s3:ListBucket"], [archive, state]),
        # Unfinished uploads bill, and no other listing shows them.
        allow(["s3:ListBucketMultipartUploads"], [archive, data, state]),
        allow(["s3:AbortMultipartUpload"], [f"{bucket}/campaigns/*" for bucket in (archive, data, state)]),
        allow(["logs:CreateLogStream", "logs:PutLogEvents"], [place.arn("logs", f"log-group:{LOG_GROUP}:*")]),
        *keys_through_s3(place, [bucket_names.archive, bucket_names.state]),
        allow(["kms:Decrypt"], [place.arn("kms", "key/*")], _ENGINES),
        *_telling(place),
    ]


def _telling(place: AccountPlace) -> list[Statement]:
    """Allow to tell people of what no driver is there to tell, as the operator may: on topics and by a webhook's
    address that are called `bivouac*`."""
    secret_arns = [place.arn(*resource) for resource in places_of_secrets(WEBHOOK_SECRETS)]
    keys = [place.arn("kms", "key/*")]

    def via(*services: str) -> dict[str, dict[str, list[str]]]:
        return {"StringEquals": {"kms:ViaService": [f"{service}.{place.region}.amazonaws.com" for service in services]}}

    return [
        allow(["sns:Publish"], [place.arn("sns", f"{TOPICS}*")]),
        allow(["kms:Decrypt", "kms:GenerateDataKey"], keys, via("sns")),
        allow(["secretsmanager:GetSecretValue", "ssm:GetParameter"], secret_arns),
        allow(["kms:Decrypt"], keys, via("secretsmanager", "ssm")),
    ]


_ENGINES = {"StringEquals": {f"kms:EncryptionContext:{STATE_CONTEXT[0]}": STATE_CONTEXT[1]}}
"""Condition under which the customer's key may be used: only for the keys of the engine's states."""
_EKS = ("access-entry", "addon", "cluster", "nodegroup", "podidentityassociation")
LOG_GROUP = f"/aws/codebuild/{CLOSER}"


def project_arn(place: AccountPlace) -> str:
    return place.arn("codebuild", f"project/{CLOSER}")


def asking(place: AccountPlace, campaign: str, code: str) -> Statement:
    """Allow to start the closer for this campaign, with this code, as its project says."""
    variables = {CAMPAIGN_VARIABLE: campaign, CODE_VARIABLE: code}
    return allow(
        ["codebuild:StartBuild"],
        [project_arn(place)],
        {
            # In an Allow, every test must hold, so that a request without them, or with others, is refused.
            "StringEquals": {f"{_VARIABLES}/{name}.value": value for name, value in variables.items()},
            "ForAllValues:StringEquals": {f"{_VARIABLES}.name": sorted(variables)},
            "Null": dict.fromkeys(FIXED, "true"),
        },
    )


def closers_ceiling(place: AccountPlace) -> list[Statement]:
    """Return the closer's part of the foundation's boundary: coarse, since only the founder writes policies of roles
    under it. A builder's policy, which is AWS's, reads any parameter."""
    closer_only = {"ArnEquals": {"aws:PrincipalArn": place.role(closer_role(place.region))}}
    iam, bucket_arns = f"arn:aws:iam::{place.account}", f"arn:aws:s3:::bivouac-*-{place.account}-{place.region}"
    freeze = {"ArnEquals": {"iam:PolicyARN": f"{iam}:policy/{freeze_policy(place.region)}"}}
    return [
        allow([*_BY_LETTER, *_ALSO], [EVERYTHING]),
        allow(
            [*_ROLES, "iam:DeleteInstanceProfile", "iam:DeletePolicy*", "iam:Remove*"],
            [f"{iam}:{kind}/bivouac-*" for kind in ("instance-profile", "policy", "role")],
        ),
        allow(["iam:DetachRolePolicy"], [place.role("*")], freeze),
        allow(["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"], [f"{bucket_arns}/*"]),
        allow(["s3:ListBucket", "s3:ListBucketMultipartUploads"], [bucket_arns]),
        allow(["s3:DeleteObject"], [f"arn:aws:s3:::{buckets(place.account, place.region).state}/*"]),
        *(statement | {"Condition": closer_only} for statement in _telling(place) if "Condition" not in statement),
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
    *actions("autoscaling", "Term*"),
    *actions("budgets", "*Budget"),
    *actions("ec2", "Cancel* ReleaseAddress Revoke* Stop* Term*"),
    *actions("eks", "UpdateNodegroupConfig"),
    *actions("events", "Remove*"),
    *actions("iam", "Get* List*"),
    *actions("kms", "Decrypt DescribeKey GenerateDataKey"),
    *actions("logs", "CreateLogStream PutLogEvents"),
    *actions("s3", "GetBucket* ListAll*"),
    *actions("scheduler", "Get*"),
    *actions("sns", "Get*"),
    *actions("tag", "Get*"),
)

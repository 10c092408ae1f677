"""Least-privilege policy documents as pure functions of names. No Pulumi here. Resources are named by ARN; `*` stands
only where the API supports nothing else (`EVERYTHING`)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.record.faults import FOLDER
from infra.spec.campaign import Spec
from infra.spec.names import (
    CLOSER,
    DATA_POOL,
    DATASETS_PREFIX,
    Buckets,
    Names,
    buckets,
    copies_prefix,
)
from infra.spec.secrets import SecretSource
from trainer.contract.preparing import PARTS, RESULTS

Statement = dict[str, Any]
EVERYTHING = "*"
"""Resource of calls that cannot be limited: describing instances and groups, the registry's login."""


def actions(service: str, names: str) -> tuple[str, ...]:
    """Return the actions of a service whose names stand in a text."""
    return tuple(f"{service}:{name}" for name in names.split())


_OF_UPLOADS = ("s3:AbortMultipartUpload", "s3:GetObjectVersion", "s3:ListMultipartUploadParts")


@dataclass(frozen=True)
class AccountPlace:
    """The account and region of ARNs."""

    account: str
    region: str

    def arn(self, service: str, resource: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"

    def role(self, name: str) -> str:
        return f"arn:aws:iam::{self.account}:role/{name}"

    def repository(self, name: str) -> str:
        return self.arn("ecr", f"repository/{name}")


def place(spec: Spec) -> AccountPlace:
    return AccountPlace(spec.account, spec.region)


def allow(actions: Sequence[str], resources: Sequence[str], condition: dict[str, Any] | None = None) -> Statement:
    statement: Statement = {"Effect": "Allow", "Action": sorted(actions), "Resource": sorted(resources)}
    return statement | ({"Condition": condition} if condition else {})


def document(statements: Sequence[Statement]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, sort_keys=True)


EC2 = "ec2.amazonaws.com"
CODEBUILD = "codebuild.amazonaws.com"
SOURCES = {
    "budgets.amazonaws.com": "arn:aws:budgets::{account}:budget/*",
    CODEBUILD: f"arn:aws:codebuild:{{region}}:{{account}}:project/{CLOSER}",
    "scheduler.amazonaws.com": "arn:aws:scheduler:{region}:{account}:schedule-group/default",
}
"""Service -> the aws:SourceArn with which it assumes our roles, by its documentation.
https://docs.aws.amazon.com/cost-management/latest/userguide/cross-service-confused-deputy-prevention.html
https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
https://docs.aws.amazon.com/codebuild/latest/userguide/cross-service-confused-deputy-prevention.html"""


def trust(service: str, account_place: AccountPlace, actions: Sequence[str] = ("sts:AssumeRole",)) -> str:
    """Return the trust policy for an AWS service, such as `scheduler.amazonaws.com`, limited to this account. EC2 sends
    no source account; an instance profile is its account's own."""
    statement: Statement = {"Effect": "Allow", "Action": sorted(actions), "Principal": {"Service": service}}
    if service == EC2:
        return document([statement])
    condition = {"StringEquals": {"aws:SourceAccount": account_place.account}}
    if service in SOURCES:
        condition["ArnLike"] = {
            "aws:SourceArn": SOURCES[service].format(account=account_place.account, region=account_place.region)
        }
    return document([statement | {"Condition": condition}])


def pod_trust(account_place: AccountPlace) -> str:
    """Return the trust policy for EKS pod identities."""
    return trust("pods.eks.amazonaws.com", account_place, ("sts:AssumeRole", "sts:TagSession"))


def steward(spec: Spec) -> list[Statement]:
    """Allow to resize the GPU node group, end single instances, postpone what ends them without a steward, use the
    campaign's folder of the state bucket, tell people, and read what the file system tells CloudWatch, whose reads know
    no resource."""
    account_place, names = place(spec), Names(spec)
    group = account_place.arn("eks", f"nodegroup/{names.cluster}/{names.gpu_group}/*")
    # EKS names a node group's Auto Scaling group `eks-<node group>-<uuid>`, a prefix that may match another campaign's;
    # EKS's tags tell whose it is.
    scaling = account_place.arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/eks-{names.gpu_group}-*")
    of_group = {
        "StringEquals": {
            "aws:ResourceTag/eks:cluster-name": names.cluster,
            "aws:ResourceTag/eks:nodegroup-name": names.gpu_group,
        }
    }
    return [
        allow(["eks:DescribeNodegroup", "eks:UpdateNodegroupConfig"], [group]),
        allow(["autoscaling:TerminateInstanceInAutoScalingGroup"], [scaling], of_group),
        allow(["ec2:RebootInstances"], [account_place.arn("ec2", "instance/*")], of_group),
        allow(
            [
                "autoscaling:DescribeAutoScalingGroups",
                "autoscaling:DescribeScalingActivities",
                *(["cloudwatch:GetMetricData"] if spec.watches_file_system else []),
                "ec2:DescribeInstanceStatus",
                "ec2:DescribeInstances",
            ],
            [EVERYTHING],
        ),
        *_postponing(account_place, names),
        *_folder(_buckets(spec).state, names.state_prefix),
        # Its notes in the account's memory of faults: it reads none, and writes none of another campaign.
        allow(["s3:PutObject"], [f"arn:aws:s3:::{_buckets(spec).state}/{FOLDER}{spec.campaign}/*"]),
        *_tier_looks(spec),
        *keys_through_s3(
            account_place, [_buckets(spec).state, *([] if spec.storage.shared else [_buckets(spec).archive])]
        ),
        *notices(spec),
    ]


def _postponing(account_place: AccountPlace, names: Names) -> list[Statement]:
    """Allow to change the schedules of the steward's silence. UpdateSchedule hands on the role with which a schedule
    acts (EventBridge Scheduler User Guide, "Using identity-based policies"); the guard's may what the steward may, and
    set the size of the nodes for the data."""
    arns = [account_place.arn("scheduler", f"schedule/default/{name}") for name in names.silence_schedules]
    to_scheduler = {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}}
    return [
        allow(["scheduler:GetSchedule", "scheduler:UpdateSchedule"], arns),
        allow(["iam:PassRole"], [account_place.role(names.role("guard"))], to_scheduler),
    ]


def trainer(spec: Spec) -> list[Statement]:
    """Allow to read the secrets that the spec names, and their keys through the services that keep them. Nothing else:
    whoever writes the job has these rights. Without a shared file system also to read the data in S3, and to keep the
    campaign's checkpoints there: only the built-in trainer runs so."""
    return [*_reading(place(spec), list(spec.secrets.values())), *_tier(spec)]


def _tier(spec: Spec) -> list[Statement]:
    """Allow what ranks do with a shared tier in S3, and to read the prepared data."""
    if spec.storage.shared is not None:
        return []
    names = _buckets(spec)
    return [
        *_copies(spec),
        # Needed to abort unfinished uploads of a killed rank; IAM has no condition on the prefix for it.
        allow(["s3:ListBucketMultipartUploads"], [f"arn:aws:s3:::{names.archive}"]),
        *_data(spec),
        *keys_through_s3(place(spec), [names.archive, names.data]),
    ]


def _tier_looks(spec: Spec) -> list[Statement]:
    """Allow what the steward does with a shared tier in S3: read it, and remove what a person prunes."""
    if spec.storage.shared is not None:
        return []
    names, copies = _buckets(spec), f"{copies_prefix(spec.campaign)}/"
    return [
        allow(["s3:DeleteObject", "s3:GetObject"], [f"arn:aws:s3:::{names.archive}/{copies}*"]),
        allow(["s3:ListBucket"], [f"arn:aws:s3:::{names.archive}"], {"StringLike": {"s3:prefix": [f"{copies}*"]}}),
    ]


def _copies(spec: Spec) -> list[Statement]:
    """Allow to make and to remove checkpoints, with their versions, in the campaign's folder of copies."""
    names, copies = _buckets(spec), f"{copies_prefix(spec.campaign)}/"
    extra = (*_OF_UPLOADS, "s3:DeleteObject", "s3:DeleteObjectVersion")
    by_prefix = {"StringLike": {"s3:prefix": [f"{copies}*"]}}
    return [
        *_folder(names.archive, copies, extra=extra),
        allow(["s3:ListBucketVersions"], [f"arn:aws:s3:::{names.archive}"], by_prefix),
    ]


def _data(spec: Spec) -> list[Statement]:
    return [allow(["s3:GetObject"], [f"arn:aws:s3:::{_buckets(spec).data}/{DATASETS_PREFIX}*"])]


def _reading(account_place: AccountPlace, sources: Sequence[SecretSource]) -> list[Statement]:
    # Secrets Manager ends each ARN with a dash and six characters of its own.
    secrets = {
        source.secret if source.owner else account_place.arn("secretsmanager", f"secret:{source.secret}-??????")
        for source in sources
        if source.secret is not None
    }
    parameters = {
        account_place.arn("ssm", f"parameter/{source.parameter.lstrip('/')}")
        for source in sources
        if source.parameter is not None
    }
    statements, keepers = list[Statement](), list[str]()
    for action, arns in (("secretsmanager:GetSecretValue", secrets), ("ssm:GetParameter", parameters)):
        if arns:
            statements.append(allow([action], sorted(arns)))
            keepers.append(f"{action.partition(':')[0]}.{account_place.region}.amazonaws.com")
    if keepers:
        condition = {"StringEquals": {"kms:ViaService": keepers}}
        statements.append(allow(["kms:Decrypt"], [account_place.arn("kms", "key/*")], condition))
    return statements


def notices(spec: Spec) -> list[Statement]:
    """Allow to tell people: to publish, and to read the addresses of the webhook and of routes."""
    return [*publishing(spec), *_reading(place(spec), list(spec.notify.addresses.values()))]


def publishing(spec: Spec) -> list[Statement]:
    """Allow to publish on the one topic, also if a key encrypts it.

    A publisher asks the key for both (Amazon SNS Developer Guide, "Managing Amazon SNS encryption keys and costs").
    """
    account_place = place(spec)
    by_sns = {"StringEquals": {"kms:ViaService": f"sns.{account_place.region}.amazonaws.com"}}
    return [
        allow(["sns:Publish"], [spec.notices_topic]),
        allow(["kms:Decrypt", "kms:GenerateDataKey"], [account_place.arn("kms", "key/*")], by_sns),
    ]


def archive(spec: Spec) -> list[Statement]:
    """Allow to use the campaign's folders in the archive and state buckets, and to read the image manifests. Of the
    interval copies, and of nothing else, it may remove old ones, with their versions."""
    names, bucket_names = Names(spec), _buckets(spec)
    by_s3 = (
        [bucket_names.archive, bucket_names.state]
        if spec.storage.shared
        else [bucket_names.archive, bucket_names.data, bucket_names.state]
    )
    return [
        *_copies(spec),
        *_folder(bucket_names.archive, names.state_prefix, extra=_OF_UPLOADS),
        # Needed to abort unfinished uploads of a killed archive; IAM has no condition on the prefix for it.
        allow(["s3:ListBucketMultipartUploads"], [f"arn:aws:s3:::{bucket_names.archive}"]),
        *_folder(bucket_names.state, names.state_prefix),
        allow(["s3:GetObject"], [f"arn:aws:s3:::{bucket_names.state}/images/*"]),
        *([] if spec.storage.shared else _data(spec)),
        *keys_through_s3(place(spec), by_s3),
    ]


def preparation(spec: Spec) -> list[Statement]:
    """Allow to read the text's sources in S3, and to write parts, results and data sets to the data bucket."""
    account_place, data = place(spec), _buckets(spec).data
    homes, objects = defaultdict[str, list[str]](list), list[str]()
    for part in spec.data.parts if spec.data is not None else ():
        bucket, _, prefix = part.source.removeprefix("s3://").partition("/")
        homes[bucket].append(prefix)
        path = f"{bucket}/{prefix}".rstrip("/")
        # `s3://texts/web` is one object or a folder, and not `web-old/` beside it.
        objects += [f"arn:aws:s3:::{path}/*", *([f"arn:aws:s3:::{path}"] if prefix else [])]
    listing = [
        allow(
            ["s3:ListBucket"],
            [f"arn:aws:s3:::{bucket}"],
            {"StringEquals": {"s3:prefix": sorted(prefixes)}} if all(prefixes) else None,
        )
        for bucket, prefixes in sorted(homes.items())
    ]
    return [
        *listing,
        allow(["s3:GetObject"], objects),
        *_folder(data, PARTS),
        allow(["s3:PutObject"], [f"arn:aws:s3:::{data}/{prefix}*" for prefix in (DATASETS_PREFIX, RESULTS)]),
        *keys_through_s3(account_place, [data, *homes]),
    ]


def guard(spec: Spec) -> list[Statement]:
    """Allow only to set the size of the GPU node group, and of the nodes that prepare the data, and to tell people."""
    names = Names(spec)
    groups = [names.gpu_group, *([names.of("node group", DATA_POOL)] if spec.prepares_data else [])]
    arns = [place(spec).arn("eks", f"nodegroup/{names.cluster}/{group}/*") for group in groups]
    return [allow(["eks:UpdateNodegroupConfig"], arns), *publishing(spec)]


def keys_through_s3(account_place: AccountPlace, names: Sequence[str]) -> list[Statement]:
    """Allow S3 to use any key of the account for objects in the buckets `names`. Not only the spec's key: all campaigns
    share the buckets, whose key is the last one asked for, and an object needs its first key for ever."""
    arns = [arn for name in sorted(names) for arn in (f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*")]
    by_s3 = {
        "StringEquals": {"kms:ViaService": f"s3.{account_place.region}.amazonaws.com"},
        # The bucket's ARN if it has a bucket key, else the object's.
        "StringLike": {"kms:EncryptionContext:aws:s3:arn": arns},
    }
    return [allow(["kms:Decrypt", "kms:GenerateDataKey"], [account_place.arn("kms", "key/*")], by_s3)]


def cluster_secrets(key_arn: str) -> list[Statement]:
    """Allow the control plane to encrypt the cluster's secrets with the customer's key."""
    return [allow(["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"], [key_arn])]


def tls_only(bucket: str) -> str:
    """Return a bucket policy that refuses requests without TLS."""
    return document(
        [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ]
    )


def _folder(bucket: str, prefix: str, extra: Sequence[str] = ()) -> list[Statement]:
    return [
        allow(["s3:GetObject", "s3:PutObject", *extra], [f"arn:aws:s3:::{bucket}/{prefix}*"]),
        allow(["s3:ListBucket"], [f"arn:aws:s3:::{bucket}"], {"StringLike": {"s3:prefix": [f"{prefix}*"]}}),
    ]


def _buckets(spec: Spec) -> Buckets:
    return buckets(spec.account, spec.region)

"""The foundation, which outlives campaigns: state, data and archive buckets, registry, role limits, closer.

Its stack keeps its state in the state bucket, which must exist before, so the driver makes that bucket. This program
manages only its settings and can never delete it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions
from pulumi_aws.s3 import (
    BucketLifecycleConfigurationRuleArgsDict,
    BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgsDict,
    BucketServerSideEncryptionConfigurationRuleArgsDict,
)

from infra.spec.names import (
    COPIES_PREFIX,
    NOTICES,
    REPOSITORY,
    STEWARD_REPOSITORY,
    Names,
    boundary,
    buckets,
    foundation_boundary,
    freeze_policy,
)
from infra.stack.access import policies
from infra.stack.access.ceiling import ceiling, foundation_ceiling
from infra.stack.access.freeze import no_purchases
from infra.stack.access.key import CustomerKey
from infra.stack.access.policies import AccountPlace, document
from infra.stack.closer import Closer
from infra.stack.network.build_network import BuildNetwork
from infra.stack.settings import FoundationSettings, StorageClass
from infra.stack.tags import tags
from trainer.contract.preparing import PARTS

KEPT_IMAGES = 500
OLD_STATE_DAYS = 90
KEPT_VERSIONS = 100
"""S3's maximum."""


class RoleLimits(pulumi.ComponentResource):
    """`boundary` of campaigns' roles, `own` of the foundation's, and `freeze`, which a spent budget attaches to roles.
    Operators cannot write its content: a policy that is attached to somebody's role must not be able to grant
    anything."""

    def __init__(self, place: AccountPlace, opts: ResourceOptions | None = None) -> None:
        super().__init__("bivouac:infra:Limits", "limits", None, opts)
        child = ResourceOptions(parent=self)
        self.boundary = aws.iam.Policy(
            "boundary",
            name=boundary(place.region),
            description="The most that a role of Bivouac's campaigns may do; grants nothing",
            policy=document(ceiling(place)),
            opts=child,
        )
        self.own = aws.iam.Policy(
            "foundation-boundary",
            name=foundation_boundary(place.region),
            description="The most that Bivouac's builders and closer may do; grants nothing",
            policy=document(foundation_ceiling(place)),
            opts=child,
        )
        self.freeze = aws.iam.Policy(
            "freeze",
            name=freeze_policy(place.region),
            description="A campaign has spent its budget: nothing new is bought",
            policy=document(no_purchases()),
            opts=child,
        )
        self.register_outputs({"boundary": self.boundary.arn})


class PrivateBucket(pulumi.ComponentResource):
    """A bucket: private, versioned, encrypted, TLS only, without unfinished uploads."""

    def __init__(
        self,
        label: str,
        name: str,
        *,
        make: bool = True,
        rules: Sequence[BucketLifecycleConfigurationRuleArgsDict] = (),
        key_arn: Input[str] | None = None,
        lock_days: int = 0,
        opts: ResourceOptions | None = None,
    ) -> None:
        """`make`: False if the bucket exists. `rules`: lifecycle rules besides the end of unfinished uploads.
        `lock_days`: governance lock of versions; 0: none."""
        super().__init__("bivouac:infra:PrivateBucket", label, None, opts)
        child = ResourceOptions(parent=self)
        # Protected, since a destroy would take the bucket's settings from it before AWS refused the bucket itself.
        protection = ResourceOptions(parent=self, protect=True)
        bucket: Input[str] = (
            aws.s3.Bucket(label, bucket=name, force_destroy=False, opts=protection).bucket if make else name
        )
        versioning = aws.s3.BucketVersioning(
            label, bucket=bucket, versioning_configuration={"status": "Enabled"}, opts=child
        )
        aws.s3.BucketServerSideEncryptionConfiguration(label, bucket=bucket, rules=[encryption(key_arn)], opts=child)
        ownership = aws.s3.BucketOwnershipControls(
            label, bucket=bucket, rule={"object_ownership": "BucketOwnerEnforced"}, opts=child
        )
        # One after the other: S3 refuses concurrent changes of access settings.
        access_block = aws.s3.BucketPublicAccessBlock(
            label,
            bucket=bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=ResourceOptions(parent=self, depends_on=[ownership]),
        )
        aws.s3.BucketPolicy(
            label,
            bucket=bucket,
            policy=policies.tls_only(name),
            opts=ResourceOptions(parent=self, depends_on=[access_block]),
        )
        aws.s3.BucketLifecycleConfiguration(
            label,
            bucket=bucket,
            rules=[ABORT_UPLOADS, *rules],
            opts=ResourceOptions(parent=self, depends_on=[versioning]),
        )
        if lock_days:
            aws.s3.BucketObjectLockConfiguration(
                label,
                bucket=bucket,
                object_lock_enabled="Enabled",
                # Never COMPLIANCE: nobody could lift it, and the bucket could not be deleted even with its account.
                rule={"default_retention": {"mode": "GOVERNANCE", "days": lock_days}},
                opts=ResourceOptions(parent=self, depends_on=[versioning]),
            )
        self.bucket = bucket
        self.register_outputs({"bucket": bucket})


def encryption(key_arn: Input[str] | None) -> BucketServerSideEncryptionConfigurationRuleArgsDict:
    """Encrypt by S3's key or the customer's, then with a bucket key: else every object would be a request to KMS."""
    if key_arn is None:
        return {"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}
    by_key: BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgsDict = {
        "sse_algorithm": "aws:kms",
        "kms_master_key_id": key_arn,
    }
    return {"apply_server_side_encryption_by_default": by_key, "bucket_key_enabled": True}


ABORT_UPLOADS: BucketLifecycleConfigurationRuleArgsDict = {
    "id": "abort-incomplete-uploads",
    "status": "Enabled",
    "filter": {"prefix": ""},
    "abort_incomplete_multipart_upload": {"days_after_initiation": 7},
}
FORGET_VERSIONS: BucketLifecycleConfigurationRuleArgsDict = {
    "id": "forget-old-versions",
    "status": "Enabled",
    "filter": {"prefix": ""},
    "noncurrent_version_expiration": {"noncurrent_days": OLD_STATE_DAYS},
}


FORGET_REWRITES: BucketLifecycleConfigurationRuleArgsDict = {
    # Live figures and leases are written every few seconds: 3 GB a day or more for 512 nodes, which the rule above
    # would bill for a quarter. Where both apply, S3 follows the shorter; seldom written objects stay.
    "id": "forget-rewrites-of-records",
    "status": "Enabled",
    "filter": {"prefix": "campaigns/"},
    "noncurrent_version_expiration": {"noncurrent_days": 1, "newer_noncurrent_versions": KEPT_VERSIONS},
}


FORGET_COPIES: BucketLifecycleConfigurationRuleArgsDict = {
    # An interval copy is removed with its versions. This rule removes those that a lock held, once it is over.
    "id": "forget-removed-copies",
    "status": "Enabled",
    "filter": {"prefix": COPIES_PREFIX},
    "expiration": {"expired_object_delete_marker": True},
    "noncurrent_version_expiration": {"noncurrent_days": 1},
}


FORGET_PARTS: BucketLifecycleConfigurationRuleArgsDict = {
    # The parts of a preparation are of use until it is over: a later campaign finds the data set itself.
    "id": "forget-parts-of-preparations",
    "status": "Enabled",
    "filter": {"prefix": PARTS},
    "expiration": {"days": 7},
    "noncurrent_version_expiration": {"noncurrent_days": 1},
}


def moving(storage_class: StorageClass) -> BucketLifecycleConfigurationRuleArgsDict:
    """Return the rule that moves one campaign's objects to a cheaper class."""
    return {
        "id": f"class-of-{storage_class.campaign}",
        "status": "Enabled",
        "filter": {"prefix": Names(storage_class.campaign).state_prefix},
        "transitions": [{"days": storage_class.after_days, "storage_class": storage_class.name}],
    }


def foundation(settings: FoundationSettings) -> dict[str, Any]:
    """Make the foundation; return its outputs, keyed as `FoundationOutputs`."""
    provider = aws.Provider(
        "aws", region=settings.region, allowed_account_ids=[settings.account], default_tags={"tags": tags(None, None)}
    )
    opts = ResourceOptions(provider=provider)
    names = buckets(settings.account, settings.region)
    child_opts = ResourceOptions(providers=[provider])
    keeping = settings.keeping
    # The key stays even if another key takes precedence: old objects need it.
    own_key = CustomerKey(settings.account, settings.region, child_opts) if keeping.own_key else None
    key_arn: Input[str] | None = keeping.key_arn or (own_key.arn if own_key else None)
    state = PrivateBucket(
        "state", names.state, make=False, rules=[FORGET_VERSIONS, FORGET_REWRITES], key_arn=key_arn, opts=child_opts
    )
    PrivateBucket("data", names.data, rules=[FORGET_PARTS], key_arn=key_arn, opts=child_opts)
    archive = PrivateBucket(
        "archive",
        names.archive,
        rules=[FORGET_COPIES, *(moving(storage_class) for storage_class in keeping.classes)],
        key_arn=key_arn,
        lock_days=keeping.lock_days,
        opts=child_opts,
    )
    repository = image_repository("trainer", REPOSITORY, opts)
    image_repository("steward", STEWARD_REPOSITORY, opts)
    aws.sns.Topic("notices", name=NOTICES, kms_master_key_id=key_arn, opts=opts)
    place = policies.AccountPlace(settings.account, settings.region)
    limits = RoleLimits(place, child_opts)
    build_network = BuildNetwork(
        place, limits.own.arn, settings.build_network_zone, child_opts, make_network=settings.build_network
    )
    Closer(place, limits.own.arn, names.state, child_opts)
    outputs: dict[str, Any] = {
        "state_bucket": state.bucket,
        "archive_bucket": archive.bucket,
        "repository_url": repository.repository_url,
        "build_network_subnet_id": build_network.subnet.id if build_network.subnet else None,
        "build_network_security_group_id": build_network.group.id if build_network.group else None,
        "build_network_instance_profile": build_network.profile.name,
        "build_network_guard_arn": build_network.guard.arn,
        "key_arn": key_arn,
    }
    return outputs


def image_repository(label: str, name: str, opts: ResourceOptions) -> aws.ecr.Repository:
    """Make a registry of images whose tags never move, with a bound on their number."""
    repository = aws.ecr.Repository(
        label,
        name=name,
        image_tag_mutability="IMMUTABLE",
        image_scanning_configuration={"scan_on_push": True},
        force_delete=False,
        opts=opts,
    )
    aws.ecr.LifecyclePolicy(label, repository=repository.name, policy=image_policy(), opts=opts)
    return repository


def image_policy() -> str:
    """Return a policy that bounds the number of images; they are pulled by digest, so a missing tag means nothing."""
    rule = {
        "rulePriority": 1,
        "description": f"keep the newest {KEPT_IMAGES} images",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": KEPT_IMAGES},
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]}, sort_keys=True)

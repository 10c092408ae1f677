"""What outlives campaigns: state, data and archive buckets, and the registry.

The stack of the foundation keeps its own state in the state bucket, so that bucket exists before the stack does: the
driver makes it when it is missing. This program manages its settings only, and can never delete it.
"""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions
from pulumi_aws.s3 import BucketLifecycleConfigurationRuleArgsDict

from infra.components import policies
from infra.components.settings import FoundationSettings
from infra.components.tags import tags
from infra.components.workshop import Workshop
from infra.names import REPOSITORY, buckets

KEPT_IMAGES = 500
OLD_STATE_DAYS = 90


class PrivateBucket(pulumi.ComponentResource):
    """Settings of a bucket: private, versioned, encrypted, TLS only, no half-done uploads kept."""

    def __init__(
        self,
        label: str,
        name: str,
        *,
        make: bool = True,
        forget_versions_after_days: int | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        """`make`: False where the bucket is there already."""
        super().__init__("bivouac:infra:PrivateBucket", label, None, opts)
        child = ResourceOptions(parent=self)
        bucket: Input[str] = aws.s3.Bucket(label, bucket=name, force_destroy=False, opts=child).bucket if make else name
        versioning = aws.s3.BucketVersioning(
            label, bucket=bucket, versioning_configuration={"status": "Enabled"}, opts=child
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            label,
            bucket=bucket,
            rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}],
            opts=child,
        )
        owned = aws.s3.BucketOwnershipControls(
            label, bucket=bucket, rule={"object_ownership": "BucketOwnerEnforced"}, opts=child
        )
        # One after the other: S3 refuses settings of access that cross each other.
        closed = aws.s3.BucketPublicAccessBlock(
            label,
            bucket=bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=ResourceOptions(parent=self, depends_on=[owned]),
        )
        aws.s3.BucketPolicy(
            label,
            bucket=bucket,
            policy=policies.tls_only(name),
            opts=ResourceOptions(parent=self, depends_on=[closed]),
        )
        aws.s3.BucketLifecycleConfiguration(
            label,
            bucket=bucket,
            rules=lifecycle_rules(forget_versions_after_days),
            opts=ResourceOptions(parent=self, depends_on=[versioning]),
        )
        self.bucket = bucket
        self.register_outputs({"bucket": bucket})


def lifecycle_rules(forget_versions_after_days: int | None) -> list[BucketLifecycleConfigurationRuleArgsDict]:
    rules: list[BucketLifecycleConfigurationRuleArgsDict] = [
        {
            "id": "abort-incomplete-uploads",
            "status": "Enabled",
            "filter": {"prefix": ""},
            "abort_incomplete_multipart_upload": {"days_after_initiation": 7},
        }
    ]
    if forget_versions_after_days is not None:
        rules.append(
            {
                "id": "forget-old-versions",
                "status": "Enabled",
                "filter": {"prefix": ""},
                "noncurrent_version_expiration": {"noncurrent_days": forget_versions_after_days},
            }
        )
    return rules


def foundation(settings: FoundationSettings) -> dict[str, Any]:
    """Make the foundation; returns its outputs, keyed as `FoundationOutputs`."""
    provider = aws.Provider(
        "aws",
        region=settings.region,
        allowed_account_ids=[settings.account],
        default_tags={"tags": tags(None, None)},
    )
    opts = ResourceOptions(provider=provider)
    names = buckets(settings.account, settings.region)
    inside = ResourceOptions(providers=[provider])
    state = PrivateBucket("state", names.state, make=False, forget_versions_after_days=OLD_STATE_DAYS, opts=inside)
    data = PrivateBucket("data", names.data, opts=inside)
    archive = PrivateBucket("archive", names.archive, opts=inside)
    repository = aws.ecr.Repository(
        "trainer",
        name=REPOSITORY,
        image_tag_mutability="IMMUTABLE",
        image_scanning_configuration={"scan_on_push": True},
        force_delete=False,
        opts=opts,
    )
    workshop = Workshop(policies.Place(settings.account, settings.region), inside)
    aws.ecr.LifecyclePolicy("trainer", repository=repository.name, policy=image_policy(), opts=opts)
    outputs: dict[str, Any] = {
        "state_bucket": state.bucket,
        "data_bucket": data.bucket,
        "archive_bucket": archive.bucket,
        "repository_url": repository.repository_url,
        "repository_arn": repository.arn,
        "workshop_subnet_id": workshop.subnet.id,
        "workshop_security_group_id": workshop.group.id,
        "workshop_instance_profile": workshop.profile.name,
        "workshop_guard_arn": workshop.guard.arn,
    }
    return outputs


def image_policy() -> str:
    """Images are pulled by digest, so being without a tag says nothing: only their number is bounded."""
    rule = {
        "rulePriority": 1,
        "description": f"keep the newest {KEPT_IMAGES} images",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": KEPT_IMAGES},
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]}, sort_keys=True)

"""The state bucket of an account and region: created once; if it has vanished, that is an error."""

from __future__ import annotations

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.errors import UserError
from infra.record.objects import is_missing
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG, buckets

_SHOWN = 5


def ensure_bucket(account: Account, bucket: str, owner: str) -> None:
    """Create the state bucket if there is none, since stacks need it; the foundation's stack sets its properties.

    Its name can be guessed, so a bucket that a stranger created and opened to us is refused. A vanished bucket is also
    refused: a new one would be empty, and every campaign without a record.
    """
    if _exists(account, bucket, owner):
        return
    refuse_vanished(account, bucket, owner)
    create_bucket(account, bucket)


def create_bucket(account: Account, bucket: str) -> None:
    """Create a bucket in the account's region."""
    location = (
        {} if account.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": account.region}}
    )
    account.client("s3").create_bucket(Bucket=bucket, **location)


def refuse_vanished(account: Account, bucket: str, owner: str) -> None:
    """Raise `UserError` if the state bucket is gone although the account has resources that were recorded in it."""
    if _exists(account, bucket, owner):
        return
    if left := _left(account, owner):
        raise UserError(
            "the state bucket is gone, and with it the record of every campaign of this account and region",
            seen=f"no bucket {bucket}, but {', '.join(left[:_SHOWN])}{', and more' if len(left) > _SHOWN else ''}",
            cure=f"restore it from a copy; or create an empty one by hand to begin with an empty record: `aws s3api "
            f"create-bucket --bucket {bucket}`; then `bivouac sweep --orphans` shows what earlier campaigns left, and "
            "keeps what may hold checkpoints",
        )


def _exists(account: Account, bucket: str, owner: str) -> bool:
    """Return True if the bucket exists; raise `UserError` if that is unknown or the bucket is another account's."""
    try:
        account.client("s3").head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
    except ClientError as error:
        if is_missing(error):
            return False
        raise UserError(
            "the state bucket cannot be reached",
            seen=f"{bucket}: {error.response['Error']['Code']}",
            cure=f"see that account {owner} owns it; allow s3:ListBucket on it, or use other credentials",
        ) from error
    return True


def _left(account: Account, owner: str) -> list[str]:
    """Return resources that only a campaign or the foundation creates, always after the state bucket."""
    buckets_here, s3, resources = buckets(owner, account.region), account.client("s3"), list[str]()
    for bucket in (buckets_here.archive, buckets_here.data):
        try:
            s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
        except ClientError as error:
            if is_missing(error):
                continue
        # A bucket that refuses the request exists too.
        resources.append(f"bucket {bucket}")
    tagging = account.client("resourcegroupstaggingapi")
    for key in (CAMPAIGN_TAG, FOUNDATION_TAG):
        for page in tagging.get_paginator("get_resources").paginate(TagFilters=[{"Key": key}]):
            arns = (str(resource["ResourceARN"]) for resource in page["ResourceTagMappingList"])
            resources += [arn for arn in arns if _proves_campaign(arn, account.region)]
            if len(resources) > _SHOWN:
                return resources
    return resources


def _proves_campaign(arn: str, region: str) -> bool:
    """Return True if a tagged resource proves a campaign in this region. Global resources, as policies, may be another
    region's; a repository may get the foundation's tag and a base image before any campaign."""
    _, _, service, place, *_ = arn.split(":")
    return place == region and service != "ecr"

"""The state bucket of an account and region: made once; one that has vanished is said, never made anew."""

from __future__ import annotations

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.errors import UserError
from infra.record.objects import is_missing
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG, buckets

_SHOWN = 5


def ensure_bucket(account: Account, bucket: str, owner: str) -> None:
    """Make the state bucket where none is: it has to be there before any stack; the foundation's sets its properties.

    Its name can be guessed: one that a stranger made first, and opened to us, is refused; and so is one that has
    vanished: a new one would be empty, and every campaign without a record.
    """
    if _exists(account, bucket, owner):
        return
    refuse_vanished(account, bucket, owner)
    where = (
        {} if account.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": account.region}}
    )
    account.client("s3").create_bucket(Bucket=bucket, **where)


def refuse_vanished(account: Account, bucket: str, owner: str) -> None:
    """Raises `UserError` where the state bucket is gone though the account holds what was recorded in it."""
    if _exists(account, bucket, owner):
        return
    if left := _left(account, owner):
        raise UserError(
            "the state bucket is gone, and with it the record of every campaign of this account and region",
            seen=f"no bucket {bucket}, but {', '.join(left[:_SHOWN])}{', and more' if len(left) > _SHOWN else ''}",
            cure=f"bring it back from a copy; or, to begin with an empty record, make it by hand: `aws s3api "
            f"create-bucket --bucket {bucket}`: then `bivouac sweep --orphans` shows what earlier campaigns left, and "
            "holds what may hold checkpoints",
        )


def _exists(account: Account, bucket: str, owner: str) -> bool:
    """Raises `UserError` where it cannot be told, or the bucket is another's."""
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
    """What only a campaign or the foundation makes, and neither does before there is a state bucket."""
    where, s3, found = buckets(owner, account.region), account.client("s3"), list[str]()
    for bucket in (where.archive, where.data):
        try:
            s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
        except ClientError as error:
            if is_missing(error):
                continue
        # Also one that refuses to be looked at is there.
        found.append(f"bucket {bucket}")
    tagging = account.client("resourcegroupstaggingapi")
    for key in (CAMPAIGN_TAG, FOUNDATION_TAG):
        for page in tagging.get_paginator("get_resources").paginate(TagFilters=[{"Key": key}]):
            listed = (str(one["ResourceARN"]) for one in page["ResourceTagMappingList"])
            found += [arn for arn in listed if _tells(arn, account.region)]
            if len(found) > _SHOWN:
                return found
    return found


def _tells(arn: str, region: str) -> bool:
    """Whether a tagged thing tells of a campaign here: what all regions show alike, as policies, may be of another
    region's; and a base image may be pushed, into a repository with the foundation's tag, before any campaign."""
    _, _, service, place, *_ = arn.split(":")
    return place == region and service != "ecr"

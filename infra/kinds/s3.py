"""Buckets, their settings, and incomplete uploads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import by_call
from infra.kinds.kind import Checkpoints, ResourceKind, Step, no_price
from infra.kinds.listed import call, listed_kind
from infra.kinds.thing import Thing, tags_of, thing
from infra.spec.names import CAMPAIGN_TAG, COPIES_PREFIX, FOUNDATION_TAG, buckets


def _tags(account: Account, thing: Thing) -> Mapping[str, str]:
    return tags_of(account.client("s3").get_bucket_tagging(Bucket=thing.id)["TagSet"])


def _uploads(account: Account) -> Iterator[Thing]:
    """Yield incomplete multipart uploads, which bill and appear in no other listing. Only buckets of this region's
    foundation are searched: a campaign of the same name may be archiving into another region's.

    If a bucket cannot be read, its error is raised after the others: it may have uploads of the campaign.
    """
    s3, refusals = account.client("s3"), list[ClientError]()
    for bucket in vars(buckets(account.identity()["Account"], account.region)).values():
        try:
            for item in every(s3, "list_multipart_uploads", "Uploads", Bucket=bucket):
                part = item["Key"].split("/")[1] if item["Key"].startswith(("campaigns/", COPIES_PREFIX)) else ""
                tags = {CAMPAIGN_TAG: part} if part else {FOUNDATION_TAG: "true"}
                yield thing(item, f"{bucket}/{item['Key']}#{item['UploadId']}", item["Key"], tags)
        except ClientError as error:
            if not says_missing(error):
                refusals.append(error)
    if refusals:
        raise refusals[0]


def _abort(account: Account, thing: Thing) -> None:
    place, _, upload = thing.id.rpartition("#")
    bucket, _, key = place.partition("/")
    account.client("s3").abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)


KINDS = (
    ResourceKind("incomplete upload", "s3", list=_uploads, step=Step.RECORDS, remove=_abort),
    # Only an empty bucket is deleted: S3 refuses to delete one with data.
    listed_kind(
        "bucket", Step.STORES, "s3", "list_buckets", "Buckets", *["Name"] * 2,
        arn=re.compile(":s3:::"), account_wide=True, tags=_tags, remove=call("s3", "delete_bucket", "Bucket"),
        price=no_price, checkpoints=Checkpoints.HOLDS, holds_state=True,
        type="aws:s3/bucket:Bucket", find=by_call("s3", "head_bucket", "{bucket}", Bucket="bucket"),
    ),
    *(
        ResourceKind(f"bucket {what}", type=f"aws:s3/bucket{type}:Bucket{type}", made_over=True)
        for what, type in (
            ("encryption", "ServerSideEncryptionConfiguration"),
            ("versioning", "Versioning"),
            ("ownership", "OwnershipControls"),
            ("lifecycle", "LifecycleConfiguration"),
            ("public access", "PublicAccessBlock"),
            ("policy", "Policy"),
            ("object lock", "ObjectLockConfiguration"),
        )
    ),
)  # fmt: skip

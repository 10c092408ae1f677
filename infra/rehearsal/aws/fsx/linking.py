"""Whether who links a file system with a bucket could read and write the bucket: FSx refuses anybody else.

FSx for Lustre's guide, "Unable to validate access to an S3 bucket when creating a DRA".
"""

from __future__ import annotations

from infra.rehearsal.aws.fsx.fsx_rules import bad_request
from infra.rehearsal.aws.iam.access import authorise, caller
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.world import World

OF_BUCKET = ("GetBucketAcl", "GetBucketLocation", "ListBucket", "ListBucketMultipartUploads", "ListBucketVersions")
OF_OBJECTS = (
    "GetObject", "GetObjectAcl", "GetObjectTagging", "GetObjectVersion", "ListMultipartUploadParts", "PutObject",
)  # fmt: skip
"""Of the guide's `s3:Get*`, `s3:List*` and `s3:PutObject`; which of them FSx asks about no page says."""


def check_linker(world: World, bucket: str, prefix: str) -> None:
    """Raise FSx's refusal of a caller without these rights. The emulator's own calls are nobody's."""
    principal = caller.get()
    if principal is None:
        return
    at, context = f"arn:aws:s3:::{bucket}", {"s3:prefix": [prefix]}
    try:
        for name in OF_BUCKET:
            authorise(world, principal, f"s3:{name}", [at], context)
        for name in OF_OBJECTS:
            authorise(world, principal, f"s3:{name}", [f"{at}/{prefix}x"], context)
    except AwsError as refusal:
        raise bad_request(
            "Amazon FSx is unable to validate access to the S3 bucket. Ensure the IAM role or user you are using "
            f"has s3:Get*, s3:List* and s3:PutObject permissions to the S3 bucket prefix. ({refusal})"
        ) from refusal

"""The S3 prefixes of a rehearsed job's mounts: files of this machine in the emulated account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra.aws.account import Account

if TYPE_CHECKING:
    from infra.spec.campaign import Spec


def give(spec: Spec) -> None:
    """Put each folder's files under the prefix of its mount, as somebody has done on AWS. Called inside the site."""
    workload = spec.workload
    if workload is None:
        return
    s3 = Account(spec.region).client("s3")
    there = {one["Name"] for one in s3.list_buckets()["Buckets"]}
    for name, prefix in workload.mounts.items():
        bucket, _, below = prefix.removeprefix("s3://").partition("/")
        if bucket not in there:
            own = {} if spec.region == "us-east-1" else {"LocationConstraint": spec.region}
            s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": own} if own else {}))
            there.add(bucket)
        folder = Path(workload.rehearsal.mounts[name]).expanduser()
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            key = "/".join(filter(None, (below.rstrip("/"), str(path.relative_to(folder)))))
            s3.upload_file(str(path), bucket, key)

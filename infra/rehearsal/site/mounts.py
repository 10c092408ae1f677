"""The S3 prefixes that a rehearsed campaign reads: files of this machine in the emulated account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from infra.aws.account import Account
from infra.session.state_bucket import create_bucket
from infra.spec.names import TEXT_TAG
from infra.spec.recipe import source_folder
from infra.spec.workload.links import INIT

if TYPE_CHECKING:
    from infra.spec.campaign import Spec


def give(spec: Spec) -> None:
    """Put each folder's files under the prefix that it stands for, as somebody has done on AWS. Called inside the
    site."""
    mounts = list(_mounts_of(spec))
    if not mounts:
        return
    account = Account(spec.region)
    s3 = account.client("s3")
    bucket_names = {bucket_entry["Name"] for bucket_entry in s3.list_buckets()["Buckets"]}
    for prefix, folder, pattern in mounts:
        bucket, _, key_prefix = prefix.removeprefix("s3://").partition("/")
        if bucket not in bucket_names:
            create_bucket(account, bucket)
            s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": TEXT_TAG, "Value": "true"}]})
            s3.put_bucket_abac(Bucket=bucket, AbacStatus={"Status": "Enabled"})
            bucket_names.add(bucket)
        for path in sorted(bucket_entry for bucket_entry in folder.glob(pattern) if bucket_entry.is_file()):
            key = "/".join(filter(None, (key_prefix.rstrip("/"), str(path.relative_to(folder)))))
            s3.upload_file(str(path), bucket, key)


def _mounts_of(spec: Spec) -> Iterator[tuple[str, Path, str]]:
    """Yield each prefix with its folder and the pattern of its files."""
    if spec.workload is not None:
        place = spec.workload.rehearsal
        folders = place.mounts if place.init_from is None else {**place.mounts, INIT: place.init_from}
        for name, prefix in {**spec.workload.links, **spec.workload.by_mountpoint}.items():
            yield prefix, Path(folders[name]).expanduser(), "**/*"
    if (data := spec.data) is not None:
        for part in data.parts:
            if part.name in data.rehearsal:
                yield part.source, source_folder(data.rehearsal[part.name]), part.pattern

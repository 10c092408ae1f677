"""The S3 prefixes of a rehearsed job's mounts: files of this machine in the emulated account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra.aws.account import Account
from infra.session.state_bucket import create_bucket
from infra.spec.workload import INIT

if TYPE_CHECKING:
    from infra.spec.campaign import Spec


def give(spec: Spec) -> None:
    """Put each folder's files under the prefix of its mount, as somebody has done on AWS. Called inside the site."""
    workload = spec.workload
    if workload is None:
        return
    account = Account(spec.region)
    s3 = account.client("s3")
    there = {one["Name"] for one in s3.list_buckets()["Buckets"]}
    here = workload.rehearsal
    folders = here.mounts if here.init_from is None else {**here.mounts, INIT: here.init_from}
    for name, prefix in workload.links.items():
        bucket, _, below = prefix.removeprefix("s3://").partition("/")
        if bucket not in there:
            create_bucket(account, bucket)
            there.add(bucket)
        folder = Path(folders[name]).expanduser()
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            key = "/".join(filter(None, (below.rstrip("/"), str(path.relative_to(folder)))))
            s3.upload_file(str(path), bucket, key)

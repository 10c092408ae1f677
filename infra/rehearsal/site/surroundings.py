"""What a rehearsed campaign finds beside itself: S3 prefixes, file systems and bought capacity in the emulated account,
and programs of its container, all from this machine."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from infra.aws.account import Account
from infra.errors import UserError
from infra.plan.purchase import RESERVED
from infra.session.state_bucket import create_bucket
from infra.spec.campaign import Capacity
from infra.spec.names import MOUNTS_TAG, TEXT_TAG
from infra.spec.recipe import source_folder
from infra.spec.workload.links import INIT

if TYPE_CHECKING:
    from infra.spec.campaign import Spec


def give_mounts(spec: Spec) -> None:
    """Put each folder's files under the prefix that it stands for, as somebody has done on AWS. Called inside the
    site."""
    _give_file_systems(spec)
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
            s3.put_bucket_tagging(
                Bucket=bucket, Tagging={"TagSet": [{"Key": tag, "Value": "true"} for tag in (TEXT_TAG, MOUNTS_TAG)]}
            )
            s3.put_bucket_abac(Bucket=bucket, AbacStatus={"Status": "Enabled"})
            bucket_names.add(bucket)
        for path in sorted(bucket_entry for bucket_entry in folder.glob(pattern) if bucket_entry.is_file()):
            key = "/".join(filter(None, (key_prefix.rstrip("/"), str(path.relative_to(folder)))))
            s3.upload_file(str(path), bucket, key)


def _give_file_systems(spec: Spec) -> None:
    """Give the emulated account the existing file systems of the mounts; each mount's folder lies where it reads."""
    endpoint = Account(spec.region).client("fsx").meta.endpoint_url
    for name, mount in spec.runtime.attached.items():
        if mount.fsx is not None:
            folder = str(Path(spec.runtime.rehearsal.mounts[name]).expanduser().resolve())
            body = json.dumps({"id": mount.fsx, "path": mount.path.strip("/"), "folder": folder}).encode()
            with urllib.request.urlopen(f"{endpoint}/_site/filesystem", data=body) as answer:
                answer.read()


def _mounts_of(spec: Spec) -> Iterator[tuple[str, Path, str]]:
    """Yield each prefix with its folder and the pattern of its files."""
    place = spec.runtime.rehearsal
    folders = place.mounts if place.init_from is None else {**place.mounts, INIT: place.init_from}
    for name, prefix in {**spec.runtime.links, **spec.runtime.by_mountpoint}.items():
        yield prefix, Path(folders[name]).expanduser(), "**/*"
    if (data := spec.data) is not None:
        for part in data.parts:
            if part.name in data.rehearsal:
                yield part.source, source_folder(data.rehearsal[part.name]), part.pattern


def give_reservation(spec: Spec) -> None:
    """Hold the reservation or capacity block that the spec names, as somebody has bought it on AWS: of its kind,
    under its name, with a free place for each node. Called inside the site."""
    nodes = spec.nodes
    if nodes.capacity not in RESERVED or nodes.reservation_id is None:
        return
    purchase = {
        "name": nodes.reservation_id,
        "kind": "capacity-block" if nodes.capacity is Capacity.CAPACITY_BLOCK else "default",
        "instance_type": nodes.instance_type,
        "zone": spec.zone,
        "count": nodes.count,
    }
    endpoint = Account(spec.region).client("ec2").meta.endpoint_url
    with urllib.request.urlopen(f"{endpoint}/_site/bought", data=json.dumps(purchase).encode()) as answer:
        answer.read()


def refuse_missing_programs(spec: Spec) -> None:
    """Raise `UserError` if the job starts with a program that this machine lacks, where it stands in for an image."""
    if spec.runtime.by_mpirun and spec.runtime.image is None and shutil.which("mpirun") is None:
        raise UserError(
            "this machine, which stands in for the job's container, has no mpirun",
            seen="launcher mpirun",
            cure="apt-get install openmpi-bin, or name an image with Open MPI 4 in workload.rehearsal.image",
        )

"""FSx data repositories: associations of a folder with an S3 prefix.

AWS imports metadata and fetches contents on the first read; here the contents come with the metadata.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from infra.rehearsal.aws.fsx.fsx_rules import bad_request
from infra.rehearsal.aws.iam.access import authorise, caller
from infra.rehearsal.aws.operations import AwsError, Parameters, tag_list
from infra.rehearsal.aws.world import World

CREATION_S = 1.0
DELETION_S = 0.5
MAX_ASSOCIATIONS = 8
ARRIVALS = frozenset({"NEW", "CHANGED"})


OF_BUCKET = ("GetBucketAcl", "GetBucketLocation", "ListBucket", "ListBucketMultipartUploads", "ListBucketVersions")
OF_OBJECTS = (
    "GetObject", "GetObjectAcl", "GetObjectTagging", "GetObjectVersion", "ListMultipartUploadParts", "PutObject",
)  # fmt: skip
"""Of the guide's `s3:Get*`, `s3:List*` and `s3:PutObject`; which of them FSx asks about no page says."""


@dataclass
class Link:
    """A folder and the prefix of moto's S3 that it mirrors, whole objects at a time; `etags` has the last common state
    by relative path."""

    world: World
    folder: Path
    bucket: str
    prefix: str
    etags: dict[str, str] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while files are moved; never acquired under the world's lock."""

    def objects(self) -> dict[str, Any]:
        """Return the newest moto keys by path relative to the prefix. Raises KeyError without the bucket."""
        from moto.s3.models import FakeKey

        listing: dict[str, Any] = {}
        for name, versions in dict(self.world.backend("s3").buckets[self.bucket].keys).items():
            key = versions[-1] if versions else None
            relative = name[len(self.prefix) :]
            if isinstance(key, FakeKey) and name.startswith(self.prefix) and relative and not name.endswith("/"):
                listing[relative] = key
        return listing

    def pull(self, events: frozenset[str]) -> None:
        """Import NEW and CHANGED objects and remove DELETED ones, as `events` lists."""
        objects = self.objects()
        for relative, key in sorted(objects.items()):
            previous_etag = self.etags.get(relative)
            if previous_etag == key.etag or ("NEW" if previous_etag is None else "CHANGED") not in events:
                continue
            self._write(relative, key)
        if "DELETED" in events:
            for relative in sorted(set(self.etags) - set(objects)):
                del self.etags[relative]
                (self.folder / relative).unlink(missing_ok=True)

    def _write(self, relative: str, key: Any) -> None:
        target = self.folder / relative
        if not target.resolve().is_relative_to(self.folder.resolve()):
            return  # a key like ../x is no path in the file system
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.importing")
        partial.write_bytes(key.value)
        os.replace(partial, target)
        self.etags[relative] = key.etag


def check_linker(world: World, bucket: str, prefix: str) -> None:
    """Raise FSx's refusal of a caller who could not read and write the bucket; the emulator's own calls are nobody's.
    FSx for Lustre's guide, "Unable to validate access to an S3 bucket when creating a DRA"."""
    principal = caller.get()
    if principal is None:
        return
    bucket_arn, context = f"arn:aws:s3:::{bucket}", {"s3:prefix": [prefix]}
    try:
        for name in OF_BUCKET:
            authorise(world, principal, f"s3:{name}", [bucket_arn], context)
        for name in OF_OBJECTS:
            authorise(world, principal, f"s3:{name}", [f"{bucket_arn}/{prefix}x"], context)
    except AwsError as refusal:
        raise bad_request(
            "Amazon FSx is unable to validate access to the S3 bucket. Ensure the IAM role or user you are using "
            f"has s3:Get*, s3:List* and s3:PutObject permissions to the S3 bucket prefix. ({refusal})"
        ) from refusal


class FileSystems(Protocol):
    @property
    def backend(self) -> Any: ...

    def find(self, file_system_id: str) -> Any: ...

    def tags_of(self, arn: str) -> dict[str, str]: ...


@dataclass
class Association:
    association_id: str
    arn: str
    file_system_id: str
    path: str
    repository: str
    batch_import: bool
    chunk_mib: int
    s3: dict[str, Any]
    link: Link
    lifecycle: str = "CREATING"
    creation_time: float = field(default_factory=time.time)

    @property
    def imports(self) -> frozenset[str]:
        """Events in S3 that change the folder."""
        return frozenset((self.s3.get("AutoImportPolicy") or {}).get("Events") or ())

    def describe(self, tags: dict[str, str]) -> dict[str, Any]:
        return {
            "AssociationId": self.association_id,
            "ResourceARN": self.arn,
            "FileSystemId": self.file_system_id,
            "Lifecycle": self.lifecycle,
            "FileSystemPath": self.path,
            "DataRepositoryPath": self.repository,
            "BatchImportMetaDataOnCreate": self.batch_import,
            "ImportedFileChunkSize": self.chunk_mib,
            "S3": self.s3,
            "Tags": tag_list(tags),
            "CreationTime": self.creation_time,
        }


class Repositories:
    def __init__(self, world: World, lustre: FileSystems) -> None:
        self.world, self.lustre = world, lustre
        self.associations: dict[str, Association] = {}

    def arns(self) -> list[str]:
        return [entry.arn for entry in self.associations.values()]

    def associations_of(self, file_system_id: str) -> list[Association]:
        return [
            association for association in self.associations.values() if association.file_system_id == file_system_id
        ]

    def forget(self, file_system_id: str) -> None:
        """Remove a deleted file system's associations."""
        for association in self.associations_of(file_system_id):
            self.associations.pop(association.association_id)

    def create_data_repository_association(self, params: Parameters) -> dict[str, Any]:
        world, file_system = self.world, self.lustre.find(params["FileSystemId"])
        if (params.get("S3") or {}).get("AutoExportPolicy"):
            raise AwsError("UnsupportedOperation", "automatic export is not part of the rehearsal")
        path, repository = params.get("FileSystemPath") or "/", params.get("DataRepositoryPath") or ""
        self._check_association(file_system, path, repository)
        bucket, _, prefix = repository.removeprefix("s3://").partition("/")
        if bucket not in world.backend("s3").buckets:
            raise bad_request(f"Amazon FSx is unable to validate access to the S3 bucket. Ensure '{bucket}' exists")
        check_linker(world, bucket, prefix)
        prefix = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
        association_id = f"dra-{secrets.token_hex(9)[:17]}"
        association = Association(
            association_id=association_id,
            arn=f"arn:aws:fsx:{world.region}:{world.account}:association/{file_system.file_system_id}/{association_id}",
            file_system_id=file_system.file_system_id,
            path=path,
            repository=repository,
            batch_import=bool(params.get("BatchImportMetaDataOnCreate")),
            chunk_mib=params.get("ImportedFileChunkSize") or 1024,
            s3=params.get("S3") or {},
            link=Link(world, file_system.folder / path.strip("/"), bucket, prefix),
        )
        self.associations[association_id] = association
        self.lustre.backend.tagger.tag_resource(association.arn, params.get("Tags") or [])
        world.schedule_once(
            world.takes("link made", CREATION_S), lambda: world.spawn(lambda: self._become_available(association))
        )
        return {"Association": association.describe(self.lustre.tags_of(association.arn))}

    def _check_association(self, file_system: Any, path: str, repository: str) -> None:
        existing = self.associations_of(file_system.file_system_id)
        if file_system.lifecycle != "AVAILABLE":
            raise bad_request(f"File system '{file_system.file_system_id}' is {file_system.lifecycle}, not AVAILABLE")
        if file_system.lustre["DeploymentType"] == "SCRATCH_1" or file_system.version == "2.10":
            raise AwsError("UnsupportedOperation", "Data repository associations need Lustre 2.12 and no SCRATCH_1")
        if len(existing) >= MAX_ASSOCIATIONS:
            raise AwsError("ServiceLimitExceeded", f"A file system has at most {MAX_ASSOCIATIONS} associations")
        if not path.startswith("/") or not repository.startswith("s3://"):
            raise bad_request(
                f"FileSystemPath must start with / and DataRepositoryPath with s3://: {path} {repository}"
            )
        for association in existing:
            pairs = ((path, association.path), (repository, association.repository))
            if any((a.rstrip("/") + "/").startswith(b.rstrip("/") + "/") for p in pairs for a, b in (p, p[::-1])):
                raise bad_request(f"{path} or {repository} overlaps with association {association.association_id}")

    def _become_available(self, association: Association) -> None:
        link = association.link
        with link.busy:
            link.folder.mkdir(parents=True, exist_ok=True)
            if association.batch_import:
                link.pull(ARRIVALS)
            else:
                link.etags.update({relative: key.etag for relative, key in link.objects().items()})
        with self.world.lock:
            if association.lifecycle == "CREATING":
                association.lifecycle = "AVAILABLE"

    def describe_data_repository_associations(self, params: Parameters) -> dict[str, Any]:
        matches = [self._association(key) for key in params.get("AssociationIds") or self.associations]
        matches = [association for association in matches if _passes(association, params.get("Filters"))]
        return {"Associations": [association.describe(self.lustre.tags_of(association.arn)) for association in matches]}

    def _association(self, association_id: str) -> Association:
        try:
            return self.associations[association_id]
        except KeyError:
            message = f"Data repository association '{association_id}' does not exist."
            raise AwsError("DataRepositoryAssociationNotFound", message) from None

    def update_data_repository_association(self, params: Parameters) -> dict[str, Any]:
        association = self._association(params["AssociationId"])
        association.s3 = association.s3 | (params.get("S3") or {})
        association.chunk_mib = params.get("ImportedFileChunkSize") or association.chunk_mib
        return {"Association": association.describe(self.lustre.tags_of(association.arn))}

    def delete_data_repository_association(self, params: Parameters) -> dict[str, Any]:
        association = self._association(params["AssociationId"])
        wipe = bool(params.get("DeleteDataInFileSystem"))
        association.lifecycle = "DELETING"

        def vanish() -> None:
            with self.world.lock:
                self.associations.pop(association.association_id, None)
                self.lustre.backend.tagger.delete_all_tags_for_resource(association.arn)
            if wipe:
                shutil.rmtree(association.link.folder, ignore_errors=True)

        self.world.schedule_once(self.world.takes("link deleted", DELETION_S), vanish)
        identity = {"AssociationId": association.association_id, "Lifecycle": association.lifecycle}
        return identity | {"DeleteDataInFileSystem": wipe}

    def reconcile(self) -> None:
        """Import automatically, for the events in each association's policy."""
        for association in list(self.associations.values()):
            link = association.link
            idle = association.lifecycle == "AVAILABLE" and not link.busy.locked()
            if idle and link.bucket in self.world.backend("s3").buckets:
                self.world.spawn(functools.partial(_synchronise, association))


def _synchronise(association: Association) -> None:
    with association.link.busy:
        if association.imports:
            association.link.pull(association.imports)


def _passes(entry: Association, filters: list[dict[str, Any]] | None) -> bool:
    state = {"file-system-id": entry.file_system_id, "data-repository-type": "S3"}
    return all(state.get(item["Name"], "") in item["Values"] for item in filters or [])

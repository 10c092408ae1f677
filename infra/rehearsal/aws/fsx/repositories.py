"""FSx data repositories: associations of a folder with an S3 prefix, and tasks over them.

AWS imports metadata and fetches contents on the first read; here the contents come with the metadata.
"""

from __future__ import annotations

import functools
import secrets
import shutil
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from infra.rehearsal.aws.fsx.fsx_rules import bad_request
from infra.rehearsal.aws.fsx.linking import check_linker
from infra.rehearsal.aws.fsx.sync import SETTLED_S, Link
from infra.rehearsal.aws.operations import AwsError, Parameters, tag_list
from infra.rehearsal.aws.world import World

CREATION_S = 1.0
DELETION_S = 0.5
TASK_QUEUE_S = 0.3
MAX_ASSOCIATIONS = 8
ARRIVALS = frozenset({"NEW", "CHANGED"})
TASK_TYPES = ("EXPORT_TO_REPOSITORY", "IMPORT_METADATA_FROM_REPOSITORY")


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

    def events(self, policy: str) -> frozenset[str]:
        return frozenset((self.s3.get(policy) or {}).get("Events") or ())

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


@dataclass
class Task:
    task_id: str
    arn: str
    file_system_id: str
    kind: str
    paths: list[str]
    report: dict[str, Any]
    lifecycle: str = "PENDING"
    creation_time: float = field(default_factory=time.time)
    times: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"TotalCount": 0, "SucceededCount": 0, "FailedCount": 0})
    failures: list[str] = field(default_factory=list)

    def describe(self, tags: dict[str, str]) -> dict[str, Any]:
        document = {
            "TaskId": self.task_id,
            "ResourceARN": self.arn,
            "FileSystemId": self.file_system_id,
            "Lifecycle": self.lifecycle,
            "Type": self.kind,
            "CreationTime": self.creation_time,
            "Paths": self.paths,
            "Status": self.counts | {"LastUpdatedTime": time.time()},
            "Report": self.report,
            "Tags": tag_list(tags),
        }
        if self.lifecycle == "FAILED":
            document["FailureDetails"] = {"Message": "; ".join(self.failures[:3])}
        return document | self.times


class Repositories:
    def __init__(self, world: World, lustre: FileSystems) -> None:
        self.world, self.lustre = world, lustre
        self.associations: dict[str, Association] = {}
        self.tasks: dict[str, Task] = {}

    def arns(self) -> list[str]:
        return [*(entry.arn for entry in self.associations.values()), *(entry.arn for entry in self.tasks.values())]

    def associations_of(self, file_system_id: str) -> list[Association]:
        return [
            association for association in self.associations.values() if association.file_system_id == file_system_id
        ]

    def forget(self, file_system_id: str) -> None:
        """Remove a deleted file system's associations; its tasks stay on record, as on AWS."""
        for association in self.associations_of(file_system_id):
            self.associations.pop(association.association_id)

    def create_data_repository_association(self, params: Parameters) -> dict[str, Any]:
        world, file_system = self.world, self.lustre.find(params["FileSystemId"])
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
        """Import and export automatically, for the events in each association's policies."""
        for association in list(self.associations.values()):
            link = association.link
            idle = association.lifecycle == "AVAILABLE" and not link.busy.locked()
            if idle and link.bucket in self.world.backend("s3").buckets:
                self.world.spawn(functools.partial(_synchronise, association))

    def create_data_repository_task(self, params: Parameters) -> dict[str, Any]:
        file_system = self.lustre.find(params["FileSystemId"])
        kind = params["Type"]
        if kind not in TASK_TYPES:
            raise AwsError("UnsupportedOperation", f"task type {kind} is not part of the rehearsal, only {TASK_TYPES}")
        if not self.associations_of(file_system.file_system_id):
            raise bad_request(f"File system '{file_system.file_system_id}' has no data repository association")
        for task in self.tasks.values():
            if task.file_system_id == file_system.file_system_id and task.lifecycle in ("PENDING", "EXECUTING"):
                raise AwsError("DataRepositoryTaskExecuting", f"An existing task, {task.task_id}, is executing")
        task_id = f"task-{secrets.token_hex(9)[:17]}"
        arn = f"arn:aws:fsx:{self.world.region}:{self.world.account}:task/{task_id}"
        paths = [path.strip("/") for path in params.get("Paths") or [""]]
        task = Task(task_id, arn, file_system.file_system_id, kind, paths, params.get("Report") or {"Enabled": False})
        self.tasks[task_id] = task
        self.lustre.backend.tagger.tag_resource(arn, params.get("Tags") or [])
        self.world.schedule_once(TASK_QUEUE_S, lambda: self.world.spawn(lambda: self._execute(task)))
        return {"DataRepositoryTask": task.describe(self.lustre.tags_of(arn))}

    def _execute(self, task: Task) -> None:
        with self.world.lock:
            if task.lifecycle != "PENDING":
                return
            task.lifecycle, task.times["StartTime"] = "EXECUTING", time.time()
            links = [
                (association.path.strip("/"), association.link)
                for association in self.associations_of(task.file_system_id)
            ]
        for root, link in links:
            with link.busy:
                self._work(task, root, link)
        if task.report.get("Enabled"):
            self._report(task)
        with self.world.lock:
            outcome = "FAILED" if task.failures else "SUCCEEDED"
            task.lifecycle = "CANCELED" if task.lifecycle == "CANCELING" else outcome
            task.times["EndTime"] = time.time()

    def _work(self, task: Task, root: str, link: Link) -> None:
        if task.kind == "IMPORT_METADATA_FROM_REPOSITORY":
            count = link.pull(ARRIVALS)
            task.counts["TotalCount"] += count
            task.counts["SucceededCount"] += count
            return
        for relative in link.changes_of(ARRIVALS):
            if any(_is_below(f"{root}/{relative}".strip("/"), path) for path in task.paths):
                self._export(task, link, relative)

    def _export(self, task: Task, link: Link, relative: str) -> None:
        if task.lifecycle == "CANCELING":
            return
        task.counts["TotalCount"] += 1
        try:
            link.push(relative)
            task.counts["SucceededCount"] += 1
        except Exception as error:  # moto raises its own error for a deleted bucket
            task.counts["FailedCount"] += 1
            task.failures.append(f"{relative}: {error}")

    def _report(self, task: Task) -> None:
        bucket, _, prefix = task.report.get("Path", "").removeprefix("s3://").partition("/")
        key = f"{prefix.rstrip('/')}/{task.task_id}/failures.csv".lstrip("/")
        try:
            self.world.backend("s3").put_object(bucket, key, "\n".join(["path,error", *task.failures]).encode())
        except Exception as error:
            task.failures.append(f"report {task.report.get('Path')}: {error}")

    def describe_data_repository_tasks(self, params: Parameters) -> dict[str, Any]:
        matches = [self._task(key) for key in params.get("TaskIds") or self.tasks]
        matches = [task for task in matches if _passes(task, params.get("Filters"))]
        return {"DataRepositoryTasks": [task.describe(self.lustre.tags_of(task.arn)) for task in matches]}

    def _task(self, task_id: str) -> Task:
        try:
            return self.tasks[task_id]
        except KeyError:
            raise AwsError("DataRepositoryTaskNotFound", f"Task '{task_id}' does not exist.") from None

    def cancel_data_repository_task(self, params: Parameters) -> dict[str, Any]:
        task = self._task(params["TaskId"])
        if task.lifecycle not in ("PENDING", "EXECUTING"):
            raise AwsError("DataRepositoryTaskEnded", f"Task '{task.task_id}' is {task.lifecycle}")
        task.lifecycle = "CANCELED" if task.lifecycle == "PENDING" else "CANCELING"
        return {"TaskId": task.task_id, "Lifecycle": task.lifecycle}


def _synchronise(association: Association) -> None:
    link, export_events = association.link, association.events("AutoExportPolicy")
    with link.busy:
        if association.events("AutoImportPolicy"):
            link.pull(association.events("AutoImportPolicy"))
        for relative in link.changes_of(export_events, SETTLED_S):
            link.push(relative)
        if "DELETED" in export_events:
            link.push_deletions()


def _is_below(path: str, root: str) -> bool:
    return not root or path == root or path.startswith(root + "/")


def _passes(entry: Association | Task, filters: list[dict[str, Any]] | None) -> bool:
    state = {"file-system-id": entry.file_system_id, "task-lifecycle": entry.lifecycle}
    if isinstance(entry, Association):
        state["data-repository-type"] = "S3"
    return all(state.get(item["Name"], "") in item["Values"] for item in filters or [])

"""What rows cannot say about buckets and file systems."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import NotReady, ResourceCall
from infra.rehearsal.plugins.aws.resource import ResourceType


class BucketType(ResourceType):
    def create(self, call: ResourceCall) -> str:
        super().create(call)
        call.wait(lambda: self.find(call), f"bucket {call.id} to exist")
        if call.tags:
            self._put_tags(call)
        return call.id

    def _put_tags(self, call: ResourceCall) -> None:
        call.client().put_bucket_tagging(Bucket=call.id, Tagging={"TagSet": self.row.tagging.form(call.tags)})  # type: ignore[union-attr]

    def retag(self, call: ResourceCall, fresh: dict[str, str], stale: list[str]) -> None:
        """Set the tags as a whole: S3 has no other way."""
        if call.tags:
            self._put_tags(call)
        else:
            call.client().delete_bucket_tagging(Bucket=call.id)

    def delete(self, call: ResourceCall) -> None:
        if call.state.get("forceDestroy"):
            call.or_none(lambda: _empty(call))
        super().delete(call)


def _empty(call: ResourceCall) -> None:
    client = call.client()
    for page in client.get_paginator("list_object_versions").paginate(Bucket=call.id):
        versions = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        keys = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in versions]
        if keys:
            client.delete_objects(Bucket=call.id, Delete={"Objects": keys, "Quiet": True})
    for upload in call.list_all("list_multipart_uploads", "Uploads", Bucket=call.id):
        client.abort_multipart_upload(Bucket=call.id, Key=upload["Key"], UploadId=upload["UploadId"])


def _filtered_rules(call: ResourceCall) -> list[dict[str, Any]]:
    """Return the rules as S3 takes them: each needs a filter."""
    return [{"Filter": {"Prefix": ""}, **rule} for rule in call.request("rules").get("Rules", [])]


class BucketLifecycleType(ResourceType):
    names = {"filtered_rules": _filtered_rules}


def _without_backup(call: ResourceCall) -> bool | None:
    """Return None for a scratch file system: it has no backups, and AWS refuses the field."""
    scratch = str(call.state.get("deploymentType", "")).startswith("SCRATCH")
    return None if scratch else bool(call.state.get("skipFinalBackup", True))


class LustreFileSystemType(ResourceType):
    names = {"without_backup": _without_backup}

    def is_ready(self, call: ResourceCall) -> bool:
        """Return whether the file system is available and no update of it goes on."""
        actions = (self.find(call) or {}).get("AdministrativeActions") or []
        for action in actions:
            if action.get("Status") == "FAILED":
                raise NotReady(f"update of file system {call.id} FAILED: {action.get('FailureDetails')}")
        pending = any(action.get("Status") in ("PENDING", "IN_PROGRESS") for action in actions)
        return super().is_ready(call) and not pending


CLASSES: dict[str, type[ResourceType]] = {
    "aws:s3/bucket:Bucket": BucketType,
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": BucketLifecycleType,
    "aws:fsx/lustreFileSystem:LustreFileSystem": LustreFileSystemType,
}

"""Settings of a bucket, each a separate resource whose ID is the bucket's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input
from infra.rehearsal.plugins.wire import Props


@dataclass(frozen=True)
class Setting:
    name: str
    """The setting in the API's function names: `put_<name>`, `get_<name>`, `delete_<name>`."""
    body: Callable[[Call], dict[str, Any]]
    """Return the arguments of the put, besides the bucket."""
    found: Callable[[dict[str, Any]], dict[str, Any] | None]
    """Return the inputs' API fields from the answer of the get."""
    delete: str = ""

    def put(self, call: Call) -> str:
        client, bucket = call.client(), call.new["bucket"]
        write = getattr(client, f"put_{self.name}")
        # AWS may not know a new bucket everywhere yet.
        call.retry(lambda: write(Bucket=bucket, **self.body(call)), "NoSuchBucket", "OperationAborted")
        call.id = bucket
        return str(bucket)

    def update(self, call: Call) -> None:
        self.put(call)

    def read(self, call: Call) -> Props | None:
        answer = call.or_none(lambda: getattr(call.client(), f"get_{self.name}")(Bucket=call.id))
        found = self.found(answer) if answer else None
        return {**call.observed(found), "bucket": call.id} if found else None

    def drop(self, call: Call) -> None:
        erase = getattr(call.client(), self.delete or f"delete_{self.name}")
        call.destroy(lambda: erase(Bucket=call.id), "OperationAborted")


def _resource(token: str, inputs: dict[str, Input], setting: Setting, **more: Any) -> Resource:
    owned = {"bucket": Input(api=LOCAL, required=True, replaces=True), **inputs}
    actions = {"create": setting.put, "read": setting.read, "update": setting.update, "delete": setting.drop}
    return Resource(token=token, service="s3", inputs=owned, identity=("bucket",), **{**actions, **more})


def suspend_versioning(call: Call) -> None:
    """Suspend versioning, as the real plugin does: it cannot be removed."""
    stop = {"Status": "Suspended"}
    call.destroy(lambda: call.client().put_bucket_versioning(Bucket=call.id, VersioningConfiguration=stop))


def _lifecycle(call: Call) -> dict[str, Any]:
    rules = call.request("rules").get("Rules", [])
    return {"LifecycleConfiguration": {"Rules": [{"Filter": {"Prefix": ""}, **rule} for rule in rules]}}


def unlock(call: Call) -> None:
    """Remove the default retention, as the real plugin does: a bucket's lock cannot be removed."""
    bare = {"ObjectLockEnabled": "Enabled"}
    call.destroy(lambda: call.client().put_object_lock_configuration(Bucket=call.id, ObjectLockConfiguration=bare))


def _lock(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return None if the bucket has a lock without a rule: then nothing of ours exists."""
    found: dict[str, Any] = answer["ObjectLockConfiguration"]
    return found if found.get("Rule") else None


_LOCKED = ("objectLockEnabled", "rule")
_TRANSITION = {"days": Input(), "date": Input(kind=Conversion.TIME), "storageClass": Input(required=True)}
_NONCURRENT = {"noncurrentDays": Input(required=True), "newerNoncurrentVersions": Input()}
_SIZES = {"objectSizeGreaterThan": Input(), "objectSizeLessThan": Input()}
_RULE = {
    "id": Input(api="ID", required=True),
    "status": Input(required=True),
    "prefix": Input(),
    "filter": Input(
        fields={
            "prefix": Input(),
            "tag": Input(fields={"key": Input(required=True), "value": Input(required=True)}),
            "and": Input(fields={"prefix": Input(), "tags": Input(kind=Conversion.TAGS), **_SIZES}),
            **_SIZES,
        }
    ),
    "expiration": Input(
        fields={"days": Input(), "date": Input(kind=Conversion.TIME), "expiredObjectDeleteMarker": Input()}
    ),
    "transitions": Input(fields=_TRANSITION),
    "noncurrentVersionExpiration": Input(fields=_NONCURRENT),
    "noncurrentVersionTransitions": Input(fields={**_NONCURRENT, "storageClass": Input(required=True)}),
    "abortIncompleteMultipartUpload": Input(fields={"daysAfterInitiation": Input()}),
}
_ENCRYPTION = {
    "applyServerSideEncryptionByDefault": Input(
        fields={"sseAlgorithm": Input(api="SSEAlgorithm", required=True), "kmsMasterKeyId": Input(api="KMSMasterKeyID")}
    ),
    "bucketKeyEnabled": Input(),
}
_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")

RESOURCES = (
    _resource(
        "aws:s3/bucketVersioning:BucketVersioning",
        {
            "versioningConfiguration": Input(
                required=True, fields={"status": Input(required=True), "mfaDelete": Input(api="MFADelete")}
            )
        },
        Setting(
            "bucket_versioning",
            body=lambda call: call.request("versioningConfiguration"),
            found=lambda answer: {"VersioningConfiguration": answer} if answer.get("Status") else None,
        ),
        delete=suspend_versioning,
    ),
    _resource(
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        {"rules": Input(required=True, fields=_ENCRYPTION)},
        Setting(
            "bucket_encryption",
            body=lambda call: {"ServerSideEncryptionConfiguration": call.request("rules")},
            found=lambda answer: answer["ServerSideEncryptionConfiguration"],
        ),
    ),
    _resource(
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        {name: Input(default=False) for name in _BLOCKS},
        Setting(
            "public_access_block",
            body=lambda call: {"PublicAccessBlockConfiguration": call.request(*_BLOCKS)},
            found=lambda answer: answer["PublicAccessBlockConfiguration"],
        ),
    ),
    _resource(
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        {"rule": Input(required=True, fields={"objectOwnership": Input(required=True)})},
        Setting(
            "bucket_ownership_controls",
            body=lambda call: {"OwnershipControls": {"Rules": [call.request("rule")["Rule"]]}},
            found=lambda answer: {"Rule": answer["OwnershipControls"]["Rules"][0]},
        ),
    ),
    _resource(
        "aws:s3/bucketPolicy:BucketPolicy",
        {"policy": Input(required=True, kind=Conversion.JSON)},
        Setting("bucket_policy", body=lambda call: call.request("policy"), found=lambda answer: answer),
    ),
    _resource(
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        {"rules": Input(required=True, fields=_RULE)},
        Setting(
            "bucket_lifecycle_configuration",
            body=_lifecycle,
            found=lambda answer: answer,
            delete="delete_bucket_lifecycle",
        ),
    ),
    _resource(
        "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration",
        {
            "objectLockEnabled": Input(default="Enabled", replaces=True),
            "rule": Input(
                fields={
                    "defaultRetention": Input(
                        required=True, fields={"mode": Input(required=True), "days": Input(), "years": Input()}
                    )
                }
            ),
        },
        Setting(
            "object_lock_configuration",
            body=lambda call: {"ObjectLockConfiguration": call.request(*_LOCKED)},
            found=_lock,
        ),
        delete=unlock,
    ),
)

"""Settings of buckets as S3 shows them: AWS's defaults in a new bucket, and every field that was written.

moto makes buckets as before 2023, and keeps only the fields of a lifecycle rule that it knows.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/create-bucket-faq.html
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.model import ListShape, StructureShape
from moto.core.responses import ActionResult
from moto.core.utils import get_service_model
from moto.s3.exceptions import S3ClientError
from moto.s3.models import FakeBucket, FakeMultipart, PublicAccessBlock, S3Backend
from moto.s3.responses import S3Response

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

BY_S3 = {"Rule": {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": "false"}}
"""Every bucket's default encryption since 2023."""
SMALLEST_MOVED = "x-amz-transition-default-minimum-object-size"
UNLOCKED = "NoSuchObjectLockConfiguration"
CANONICAL_USER = "75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a"
"""The account's canonical user, as everywhere in moto."""
Answer = tuple[int, dict[str, Any], Any]


def _new(moto: Callable[..., FakeBucket], *args: Any, **kwargs: Any) -> FakeBucket:
    """Create a bucket with the defaults since April 2023: encrypted, not public, without access lists."""
    bucket = moto(*args, **kwargs)
    bucket.encryption = dict(BY_S3)
    bucket.public_access_block = PublicAccessBlock(True, True, True, True)  # type: ignore[arg-type]
    bucket.ownership_rule = "BucketOwnerEnforced"  # type: ignore[assignment]
    return bucket


def _plain_again(moto: Callable[..., None], backend: S3Backend, bucket_name: str) -> None:
    """Encrypt with S3's own keys after DeleteBucketEncryption: no bucket is unencrypted."""
    moto(backend, bucket_name)
    backend.get_bucket(bucket_name).encryption = dict(BY_S3)


def _keep_rules(moto: Callable[..., None], backend: S3Backend, bucket_name: str, rules: list[dict[str, Any]]) -> None:
    moto(backend, bucket_name, rules)
    shape = get_service_model("s3").operation_model("GetBucketLifecycleConfiguration").output_shape.members["Rules"]
    typed_rules = [convert_types(shape.member, rule) for rule in rules]  # type: ignore[attr-defined]
    for rule in typed_rules:
        rule.setdefault("ID", secrets.token_urlsafe(36))
    backend.get_bucket(bucket_name).written_rules = typed_rules  # type: ignore[attr-defined]


def convert_types(shape: Any, value: Any) -> Any:
    """Convert `value`, an element as xmltodict reads it, to the types and names of the model."""
    if isinstance(shape, StructureShape):
        fields = {}
        for name, member in shape.members.items():
            is_list = isinstance(member, ListShape)
            inner = member.member.serialization if is_list else {}  # type: ignore[attr-defined]
            key = inner.get("name") or member.serialization.get("name", name)
            if key in (value or {}):
                fields[name] = convert_types(member, value[key])
        return fields
    if isinstance(shape, ListShape):
        return [convert_types(shape.member, item) for item in (value if isinstance(value, list) else [value])]
    if shape.type_name == "boolean":
        return value == "true"
    return int(value) if shape.type_name in ("integer", "long") else value or ""


def opening_tags(world: World, name: str | None) -> dict[str, str]:
    """Return the bucket's tags if S3 heeds them in policies: only once ABAC is on.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/buckets-tagging.html
    """
    backend = world.backend("s3")
    if getattr(backend.buckets.get(name), "abac", "Disabled") != "Enabled":
        return {}
    return {tag["Key"]: tag["Value"] for tag in backend.get_bucket_tagging(name)["Tags"]}


def _keep_document(
    moto: Callable[..., Answer], response: S3Response, request: Any, bucket_name: str, query: Any
) -> Answer:
    if "abac" in query or "tagging" in query:
        bucket: Any = response.backend.get_bucket(bucket_name)
        if "tagging" in query and getattr(bucket, "abac", "Disabled") == "Enabled":
            raise S3ClientError("BadRequest", "with ABAC enabled a bucket's tags are set by TagResource")
        if "abac" in query:
            bucket.abac = "Enabled" if b"<Status>Enabled</Status>" in response.body else "Disabled"
            return 200, {}, ""
    answer = moto(response, request, bucket_name, query)
    if "lifecycle" in query:
        bucket = response.backend.get_bucket(bucket_name)
        bucket.smallest_moved = response.headers.get(SMALLEST_MOVED) or "all_storage_classes_128K"
    return answer


def _lifecycle(moto: Callable[..., Answer], response: S3Response) -> Answer:
    bucket: Any = response.backend.get_bucket(response.bucket_name)
    if not bucket.rules:
        return moto(response)
    response.data["Action"] = "GetBucketLifecycleConfiguration"
    document = {"Rules": bucket.written_rules, "TransitionDefaultMinimumObjectSize": bucket.smallest_moved}
    return response.serialized(ActionResult(document))


def _get(moto: Callable[..., Answer], response: S3Response, bucket_name: str, query: dict[str, Any]) -> Answer:
    """Answer GetBucketRequestPayment and GetBucketAbac; moto answers unknown operations with a list of objects."""
    if "abac" in query:
        response.data["Action"] = "GetBucketAbac"
        status = getattr(response.backend.get_bucket(bucket_name), "abac", "Disabled")
        return response.serialized(ActionResult({"AbacStatus": {"Status": status}}))
    if "requestPayment" in query:
        response.data["Action"] = "GetBucketRequestPayment"
        return response.serialized(ActionResult({"Payer": response.backend.get_bucket(bucket_name).payer}))
    return moto(response, bucket_name, query)


def _lock(moto: Callable[..., Answer], response: S3Response) -> Answer:
    """Show the object lock; a default retention has days or years, never both."""
    is_enabled, mode, days, years = response.backend.get_object_lock_configuration(response.bucket_name)
    document: dict[str, Any] = {"ObjectLockEnabled": "Enabled" if is_enabled else "Disabled"}
    if mode:
        document["Rule"] = {"DefaultRetention": {"Mode": mode} | ({"Years": years} if years else {"Days": days})}
    response.data["Action"] = "GetObjectLockConfiguration"
    return response.serialized(ActionResult({"ObjectLockConfiguration": document}))


def _get_of_object(moto: Callable[..., Answer], response: S3Response, query: dict[str, Any], key_name: str) -> Answer:
    """Answer GetObjectRetention, for which moto would send the object itself."""
    if "retention" not in query:
        return moto(response, query, key_name)
    key = response.backend.get_object(response.bucket_name, key_name, query.get("versionId", [None])[0])
    if key is None or not key.lock_mode:
        raise S3ClientError(UNLOCKED, "The specified object does not have a ObjectLock configuration")
    response.data["Action"] = "GetObjectRetention"
    retention = {"Mode": key.lock_mode, "RetainUntilDate": key.lock_until}
    return response.serialized(ActionResult({"Retention": retention}))


def _begin(moto: Callable[..., None], upload: Any, *args: Any, **kwargs: Any) -> None:
    moto(upload, *args, **kwargs)
    upload.initiated = datetime.now(UTC)


def _uploads(moto: Callable[..., Answer], response: S3Response) -> Answer:
    """List uploads with the times they began; moto says 2010 for all."""
    name, owner = response.bucket_name, {"ID": CANONICAL_USER}
    uploads = response.backend.list_multipart_uploads(name).values()
    prefix = response.querystring.get("prefix", [""])[0]
    rows = [
        {
            "Key": upload.key_name,
            "UploadId": upload.id,
            "Initiator": owner,
            "Owner": owner,
            "StorageClass": upload.storage or "STANDARD",
            "Initiated": upload.initiated,  # type: ignore[attr-defined]
            "ChecksumAlgorithm": upload.metadata.get("x-amz-checksum-algorithm"),
            "ChecksumType": upload.metadata.get("x-amz-checksum-type"),
        }
        for upload in uploads
        if upload.key_name.startswith(prefix)
    ]
    page = {"Bucket": name, "Prefix": prefix, "KeyMarker": "", "UploadIdMarker": "", "MaxUploads": 1000}
    response.data["Action"] = "ListMultipartUploads"
    return response.serialized(ActionResult(page | {"IsTruncated": False, "Uploads": rows}))


def install(world: World) -> None:
    wrap(S3Backend, "create_bucket", _new)
    wrap(S3Backend, "delete_bucket_encryption", _plain_again)
    wrap(S3Backend, "put_bucket_lifecycle_configuration", _keep_rules)
    wrap(S3Response, "_bucket_response_put", _keep_document)
    wrap(S3Response, "_bucket_response_get", _get)
    wrap(S3Response, "get_bucket_lifecycle", _lifecycle)
    wrap(S3Response, "get_object_lock_configuration", _lock)
    wrap(S3Response, "_key_response_get", _get_of_object)
    wrap(S3Response, "list_multipart_uploads", _uploads)
    wrap(FakeMultipart, "__init__", _begin)

"""Meaning of S3's answers about one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from infra.errors import PermanentError, first_line

Value = TypeVar("Value")
_DELETE_AT_ONCE = 1000
"""Objects of one `delete_objects` call: S3's limit."""


class Unreadable(PermanentError, ValueError):
    """An object of a record exists and cannot be read. What it says is unknown, never "nothing"."""

    def __init__(self, key: str, error: Exception) -> None:
        self.key, self.why = key, first_line(error)
        cure = "its earlier version may lie in the bucket: `aws s3api list-object-versions`; bring that back"
        super().__init__("an object of the record cannot be read", seen=f"{key}: {self.why}", cure=cure)


def is_precondition_failure(error: ClientError) -> bool:
    """Return True if a conditional write lost its race (412) or met a simultaneous write (409)."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (409, 412)


def is_missing(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404", "NoSuchBucket", "NotFound")


def or_none(act: Callable[[], Value]) -> Value | None:
    """Return None if there is no such object or bucket."""
    try:
        return act()
    except ClientError as error:
        if is_missing(error):
            return None
        raise


def object_or_none(s3: Any, bucket: str, key: str) -> bytes | None:
    """Return an object's content; None if there is no such object or bucket."""
    return or_none(lambda: bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read()))


def keys_below(s3: Any, bucket: str, prefix: str) -> list[str]:
    """Return the keys that begin with `prefix`."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [row["Key"] for page in pages for row in page.get("Contents", ())]


def delete_objects(s3: Any, bucket: str, targets: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Delete objects or versions; return S3's error for each that it refuses."""
    errors: list[dict[str, Any]] = []
    for start in range(0, len(targets), _DELETE_AT_ONCE):
        request = {"Objects": targets[start : start + _DELETE_AT_ONCE], "Quiet": True}
        errors += s3.delete_objects(Bucket=bucket, Delete=request).get("Errors", ())
    return errors

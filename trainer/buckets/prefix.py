"""A prefix of an S3 bucket: conditional writes, whole reads, removal with all versions, and patience.

Credentials and region come from the environment, as in every pod.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import StorageError, lasting
from trainer.events import emit

PATIENCE_S = 600.0
"""Time in which S3 may be away before a call fails: training goes on beside the wait."""
_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
_LONG_PAUSE_S = 20.0
_CONNECT_S, _READ_S = 5, 60
_TRIES = 5
_PARTS_AT_ONCE = 4
"""Of one upload: several ranks of a node upload at once, beside their training."""
_CHUNK_BYTES = 2**20
_DELETE_AT_ONCE = 1000
_COPIED_PART_BYTES = 256 * 2**20
_ABSENT = ("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "404", "InvalidRange", "416")
_FORBIDDEN = ("AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403")
_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Held:
    size_bytes: int
    modified_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class Prefix:
    """Names are relative to the prefix. Every call waits out what may pass, and raises `OSError` of the kind that a
    folder would raise."""

    url: str
    """`s3://bucket/prefix`, without a slash at its end."""
    patience_s: float = PATIENCE_S
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def listed(self, stem: str = "") -> dict[str, Held]:
        """Return name -> object, for the names that begin with `stem`."""
        rows = self._ask(lambda: self._pages("list_objects_v2", stem, "Contents"))
        return {
            row["Key"].removeprefix(f"{self._folder}/"): Held(row["Size"], row["LastModified"].timestamp())
            for row in rows
        }

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and entity tag; None if there is none."""

        def get() -> tuple[bytes, str]:
            answer = self._s3.get_object(**self._address(name))
            return answer["Body"].read(), answer["ETag"]

        try:
            return self._ask(get)
        except FileNotFoundError:
            return None

    def put(self, name: str, content: bytes, instead_of: str | None = None) -> bool:
        """Write an object in place of the one with the entity tag `instead_of`, or of none. Return False if another is
        there, which may be the own one after a lost answer."""
        condition = {"IfNoneMatch": "*"} if instead_of is None else {"IfMatch": instead_of}

        def send() -> bool:
            try:
                self._s3.put_object(**self._address(name), Body=content, **condition)
            except self._s3.exceptions.ClientError as error:
                if _code(error) in _TAKEN:
                    return False
                raise
            return True

        return self._ask(send)

    def upload(self, name: str, source: Path) -> None:
        """Upload a file, in parts if it is large."""
        from boto3.s3.transfer import TransferConfig

        place, limits = self._address(name), TransferConfig(max_concurrency=_PARTS_AT_ONCE)
        self._ask(lambda: self._s3.upload_file(str(source), place["Bucket"], place["Key"], Config=limits))

    def copy(self, source_name: str, name: str) -> None:
        """Have S3 copy an object, in parts if it is large: none of its bytes come here."""
        from boto3.s3.transfer import TransferConfig

        place, limits = self._address(name), TransferConfig(multipart_chunksize=_COPIED_PART_BYTES)
        source = self._address(source_name)
        self._ask(lambda: self._s3.copy(source, place["Bucket"], place["Key"], Config=limits))

    def digest(self, name: str) -> str:
        """Read an object and return its SHA-256."""

        def read() -> str:
            digest = hashlib.sha256()
            for piece in self._s3.get_object(**self._address(name))["Body"].iter_chunks(_CHUNK_BYTES):
                digest.update(piece)
            return digest.hexdigest()

        return self._ask(read)

    def read_part(self, name: str, start: int, end: int, write: Callable[[bytes, int], object]) -> None:
        """Pass the bytes [start, end) to `write` with their positions. Raises `StorageError` if there are fewer."""

        def read() -> None:
            position = start
            answer = self._s3.get_object(**self._address(name), Range=f"bytes={start}-{end - 1}")
            for piece in answer["Body"].iter_chunks(_CHUNK_BYTES):
                write(piece, position)
                position += len(piece)
            if position != end:
                raise StorageError("an object is shorter than its shard", f"{self.url}/{name} ended at byte {position}")

        self._ask(read)

    def remove(self, name: str) -> None:
        """Hide an object behind a delete marker; its versions stay until `forget`."""
        self._ask(lambda: self._s3.delete_object(**self._address(name)))

    def forget(self, stem: str) -> None:
        """Delete every version and delete marker of the names that begin with `stem`: they would bill on."""
        rows = self._ask(lambda: self._pages("list_object_versions", stem, "Versions", "DeleteMarkers"))
        versions = [{"Key": row["Key"], "VersionId": row["VersionId"]} for row in rows]
        for start in range(0, len(versions), _DELETE_AT_ONCE):
            batch = {"Objects": versions[start : start + _DELETE_AT_ONCE], "Quiet": True}
            answer = self._ask(partial(self._s3.delete_objects, Bucket=self._bucket, Delete=batch))
            for refusal in answer.get("Errors", ()):
                raise PermissionError(f"{refusal.get('Key')}: {refusal.get('Code')}")

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> list[str]:
        """Abort the unfinished uploads whose names `is_ours` accepts; return the names."""
        names = []
        for upload in self._ask(lambda: self._pages("list_multipart_uploads", "", "Uploads")):
            name = upload["Key"].removeprefix(f"{self._folder}/")
            if is_ours(name):
                self._ask(partial(self._abort, name, upload["UploadId"]))
                names.append(name)
        return names

    def _abort(self, name: str, upload: str) -> None:
        try:
            self._s3.abort_multipart_upload(**self._address(name), UploadId=upload)
        except self._s3.exceptions.ClientError as error:
            if _code(error) != "NoSuchUpload":
                raise

    def _pages(self, operation: str, stem: str, *kinds: str) -> list[dict[str, Any]]:
        pages = self._s3.get_paginator(operation).paginate(Bucket=self._bucket, Prefix=f"{self._folder}/{stem}")
        return [row for page in pages for kind in kinds for row in page.get(kind, ())]

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        deadline, has_emitted = time.monotonic() + self.patience_s, False
        for pause_s in chain(_PAUSES_S, repeat(_LONG_PAUSE_S)):
            try:
                return call()
            except (ClientError, BotoCoreError, Boto3Error) as error:
                trouble = kind_of(error)(f"{self.url}: {type(error).__name__}: {error}")
                if lasting(trouble) or time.monotonic() >= deadline:
                    raise trouble from error
                if not has_emitted:
                    emit("storage_away", place=self.url, why=str(trouble)[:300])
                has_emitted = True
            self.sleep(pause_s)
        raise AssertionError("the pauses have no end")

    def _address(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._folder}/{name}"}

    @property
    def _bucket(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def _folder(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[2]

    @cached_property
    def _s3(self) -> Any:
        import boto3
        from botocore.config import Config

        retries: Any = {"mode": "standard", "total_max_attempts": _TRIES}
        return boto3.client("s3", config=Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries=retries))


def _code(error: BaseException | None) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def kind_of(error: Exception) -> type[OSError]:
    """Return the error type of a folder: a missing or forbidden object is no outage."""
    # boto3 wraps the refusal of an upload in an error of its own.
    codes = {_code(error), _code(error.__context__)}
    if codes & set(_ABSENT):
        return FileNotFoundError
    return PermissionError if codes & set(_FORBIDDEN) else OSError

"""The archive bucket: place an object once, read it back, publish the manifest last, with retries.

An answer proves little: a call may have succeeded although its answer was lost, and a second archiver may be running.
So after any error the bucket is read, and its content counts only once it was read back.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError, HTTPClientError, IncompleteReadError

from infra.aws.parts import Altered
from infra.aws.transfer import Transfer
from infra.plain_files import open_plain, plain_bytes
from infra.record.objects import delete_objects, is_missing, is_precondition_failure, keys_below, object_or_none
from trainer.contract import COMMITTED_NAME, step_folder, step_of_folder
from trainer.contract.exits import limit_of
from trainer.contract.frozen import Frozen

DIGEST = "sha256"
"""Metadata key of an object's claimed digest."""
Answer = TypeVar("Answer")
Item = TypeVar("Item")


class ArchivedObject(Frozen):
    key: str
    size_bytes: int
    sha256: str
    version: str = ""
    """Version whose bytes were read back, if the bucket keeps versions."""


@dataclass(frozen=True)
class Content:
    """A file or bytes to place."""

    source: Path | bytes
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, body: bytes) -> Content:
        return cls(body, len(body), hashlib.sha256(body).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> Content:
        with open_plain(path) as file:
            return cls(path, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


class Unsound(Exception):
    """An object of the bucket is missing or does not have its digest."""


class Clash(Exception):
    """Another object is in the place of ours; it is never overwritten."""


@dataclass(frozen=True)
class ArchiveBucket:
    s3: Any
    bucket: str
    prefix: str
    """Folder of the campaign; all objects are below it."""
    say: Callable[..., None]
    tries: int = 5
    pause: timedelta = timedelta(seconds=0.5)
    """Time before the second try; doubled before each further one."""
    transfer: Transfer | None = None
    """Transfer of large objects; several buckets may share one, with its memory limit."""
    _transfer: Transfer = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_transfer", self.transfer or Transfer(self.s3, self.bucket))

    def place(self, name: str, content: Content, first_stays: bool = False) -> ArchivedObject:
        """Upload an object unless its name exists, and return the object of that name: nothing is ever overwritten.

        `first_stays` accepts an earlier try's object with any digest; else another digest raises `Clash`. The returned
        digest is only a claim: `read_back` proves it. Raises `Altered` if the source does not match `content`, or S3's
        last error.
        """
        key = f"{self.prefix}/{name}"

        def try_once() -> ArchivedObject:
            current = self._head(key)
            if current is None:
                if self._send(key, content):
                    self.say("uploaded", key=key, bytes=content.size_bytes)
                current = self._head(key)
            if current is None:
                raise Unsound(f"{key} was sent but is not there")
            is_same = (current.size_bytes, current.sha256) == (content.size_bytes, content.sha256)
            if not is_same and not (first_stays and current.sha256):
                content_text = f"{current.size_bytes} bytes, SHA-256 {current.sha256 or 'unknown'}"
                raise Clash(f"{key} holds {content_text}, wanted {content.size_bytes} bytes, {content.sha256}")
            return current

        return self.patiently(try_once)

    def copy_within(self, key: str, source_key: str, sha256: str) -> None:
        """Have S3 make an object from another one of the bucket; one that it does not make is still to be placed."""
        extra = {"Metadata": {DIGEST: sha256}, "MetadataDirective": "REPLACE"}
        try:
            self.s3.copy({"Bucket": self.bucket, "Key": source_key}, self.bucket, key, extra)
            self.say("copied in S3", key=key, source=source_key)
        except (ClientError, BotoCoreError) as error:
            self.say("not copied in S3", key=key, why=str(error)[:300])

    def read_back(self, item: ArchivedObject, target: Path | None) -> None:
        """Read every byte, into `target` if given; raise `Unsound` if they do not have the digest."""
        self.patiently(lambda: self._read(item, target))

    def place_of(self, name: str) -> str:
        return f"s3://{self.bucket}/{self.prefix}/{name}"

    def get(self, name: str) -> bytes | None:
        return self.patiently(lambda: object_or_none(self.s3, self.bucket, f"{self.prefix}/{name}"))

    def publish(self, name: str, body: bytes) -> bytes:
        """Write once; return the stored bytes: ours, or those of another writer that was first."""

        def try_once() -> bytes:
            try:
                self.s3.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}", Body=body, IfNoneMatch="*")
            except ClientError as error:
                if not is_precondition_failure(error):
                    raise
            # Read after a successful answer too: only the read proves the content.
            body_read = self.get(name)
            if body_read is None:
                raise Unsound(f"{name} was published but is not there")
            return body_read

        return self.patiently(try_once)

    def abort_uploads(self) -> int:
        """Abort every incomplete multipart upload below the prefix; return their number."""
        pages = self.s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        count = 0
        for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
            if not upload["Key"].startswith(f"{self.prefix}/"):
                continue
            try:
                target = {"Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                self.s3.abort_multipart_upload(**target)
                count += 1
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchUpload":
                    raise
        return count

    def patiently(self, call: Callable[[], Answer]) -> Answer:
        """Repeat an idempotent call while its error may pass; raise the last error."""
        pause = self.pause.total_seconds()
        for left in reversed(range(self.tries)):
            try:
                return call()
            except (ClientError, BotoCoreError, Unsound) as error:
                if left == 0 or not may_pass(error):
                    raise
                self.say("again", why=f"{type(error).__name__}: {error}"[:300], tries_left=left)
            time.sleep(pause)
            pause *= 2
        raise AssertionError("tries is at least 1")

    def _head(self, key: str) -> ArchivedObject | None:
        """Return the object under a key with its claimed digest; None if there is none."""
        try:
            head = self.s3.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        version = str(head.get("VersionId") or "").replace("null", "")
        claim = head.get("Metadata", {}).get(DIGEST, "")
        return ArchivedObject(key=key, size_bytes=head["ContentLength"], sha256=claim, version=version)

    def _send(self, key: str, content: Content) -> bool:
        """Return True if S3 accepted the object, False if another writer was first."""
        metadata, source = {DIGEST: content.sha256}, content.source
        try:
            if isinstance(source, Path) and content.size_bytes > self._transfer.part_bytes:
                if resumed_parts := self._transfer.upload(key, source, content.size_bytes, content.sha256, metadata):
                    self.say("resumed", key=key, parts_already_there=resumed_parts)
                return True
            body = source if isinstance(source, bytes) else _small(source, content)
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, Metadata=metadata, IfNoneMatch="*")
        except ClientError as error:
            if not is_precondition_failure(error):
                raise
            return False
        return True

    def _read(self, item: ArchivedObject, target: Path | None) -> None:
        object_key = {"Key": item.key} | ({"VersionId": item.version} if item.version else {})
        digest = hashlib.sha256()
        try:
            with contextlib.nullcontext() if target is None else target.open("wb") as file:
                if item.size_bytes > self._transfer.part_bytes:
                    self._transfer.download(object_key, item.size_bytes, file, 0, digest)
                else:
                    body = self.s3.get_object(Bucket=self.bucket, **object_key)["Body"].read()
                    digest.update(body)
                    if file is not None:
                        file.write(body)
        except Altered as error:
            raise Unsound(str(error)) from error
        except ClientError as error:
            if is_missing(error) or error.response["Error"]["Code"] in ("NoSuchVersion", "InvalidRange"):
                raise Unsound(f"{item.key} is not there") from error
            raise
        if digest.hexdigest() != item.sha256:
            raise Unsound(f"{item.key}: its bytes have {digest.hexdigest()}, wanted {item.sha256}")


def concurrently(call: Callable[[Item], Answer], items: Iterable[Item], at_once: int) -> Iterator[Answer]:
    """Yield the answers as they come; at most twice `at_once` calls wait. After an error no further call begins."""
    with ThreadPoolExecutor(at_once) as pool:
        running: set[Future[Answer]] = set()
        try:
            for item in items:
                running.add(pool.submit(call, item))
                if len(running) >= 2 * at_once:
                    finished_futures, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in finished_futures)
            yield from (future.result() for future in as_completed(running))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _small(source: Path, content: Content) -> bytes:
    try:
        body = plain_bytes(source)
    except OSError as error:
        if limit_of(error):
            raise
        raise Altered(f"{source.name} cannot be read: {error.strerror or error}") from error
    if (digest := hashlib.sha256(body).hexdigest()) != content.sha256:
        raise Altered(f"{source.name}: {digest}, not {content.sha256}")
    return body


def may_pass(error: Exception) -> bool:
    """Return True if the same call may succeed a moment later."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        passing = ("NoSuchUpload", "RequestTimeout", "BadDigest", "InvalidPart", "SlowDown", "InternalError")
        return status >= 500 or status in (409, 429) or error.response["Error"]["Code"] in passing
    if isinstance(error, BotoCoreError):
        return isinstance(error, (HTTPClientError, IncompleteReadError, FlexibleChecksumError))
    return True


def forget_copies(s3: Any, bucket: str, prefix: str, say: Callable[..., None], archived_step: int) -> int:
    """Remove the copies in a campaign's folder for which its golden checkpoint now stands: those of steps up to
    `archived_step`. A newer one stays: it was refused, and may be all that is left of its step. Each manifest goes
    first, so that no half removed copy is taken for a whole one. Return how many objects stay, -1 after an error."""
    try:
        keys_now = keys_below(s3, bucket, f"{prefix}/")
        steps = {step for key in keys_now if (step := _step_of(key, prefix)) is not None and step > archived_step}
        newer = tuple(f"{prefix}/{step_folder(step)}/" for step in steps)
        keys = [key for key in keys_now if not key.startswith(newer)]
        for manifest in (key for key in keys if key.endswith(f"/{COMMITTED_NAME}")):
            s3.delete_object(Bucket=bucket, Key=manifest)
        locks = forget_versions(s3, bucket, f"{prefix}/", newer)
    except (ClientError, BotoCoreError) as error:
        say("copies not removed", why=str(error)[:300])
        return -1
    if keys:
        say("copies removed", objects=len(keys), locked=locks)
    return locks + len(keys_now) - len(keys)


def _step_of(key: str, prefix: str) -> int | None:
    return step_of_folder(key.removeprefix(f"{prefix}/").partition("/")[0])


def forget_versions(s3: Any, bucket: str, prefix: str, exempt: tuple[str, ...] = ()) -> int:
    """Delete every version and delete marker below a prefix, but for keys that begin with one of `exempt`; return how
    many a lock keeps. A locked version gets a marker, and the bucket's lifecycle removes it when its lock is over."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    versions, markers, current = list[dict[str, str]](), list[dict[str, str]](), set[str]()
    for page in pages:
        for version in (version for version in page.get("Versions", ()) if not version["Key"].startswith(exempt)):
            versions.append({"Key": version["Key"], "VersionId": version["VersionId"]})
            current |= {version["Key"]} if version.get("IsLatest") else set()
        markers += [
            {"Key": version["Key"], "VersionId": version["VersionId"]} for version in page.get("DeleteMarkers", ())
        ]
    markers = [version for version in markers if not version["Key"].startswith(exempt)]
    refusals = delete_objects(s3, bucket, versions)
    locked_keys = {version["Key"] for version in refusals}
    delete_objects(s3, bucket, [{"Key": key} for key in sorted(locked_keys & current)])
    # The marker of a version that stays hides it.
    delete_objects(s3, bucket, [version for version in markers if version["Key"] not in locked_keys])
    return len(refusals)

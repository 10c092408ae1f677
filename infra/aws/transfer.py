"""Transfer of large objects to and from S3 in parts; a killed transfer does not repeat finished parts.

The source is read once: its SHA-256 is computed over the sent bytes, and an upload of other bytes than promised is
never completed. All transfers of one `Transfer` together have at most `at_once` parts under way. Each part is held
here and in the runtime, so memory stays below four times `at_once` parts (measured: `tests/bench/archive.py`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import mmap
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from botocore.exceptions import ClientError

from infra.aws.parts import Altered, PartTransfers
from infra.plain_files import open_plain
from trainer.contract.exits import limit_of
from trainer.contract.sealed import patient

MIB = 2**20
LARGEST_COUNT = 10_000
"""Most parts of one upload: S3's limit."""
_ALGORITHM = "CRC32C"
"""Checksum of each part: the fastest one that S3 and compatible stores have long supported."""


class Sends(Protocol):
    """Sender of single parts, such as `Parts`."""

    def put(
        self, part: dict[str, Any], headers: dict[str, str], body: BinaryIO, size: int
    ) -> Future[dict[str, str]]: ...

    def get(self, source: dict[str, Any], start: int, into: memoryview, total: int) -> Future[int]: ...


@dataclass(frozen=True)
class UploadPart:
    number: int
    size: int
    etag: str
    checksum: str
    """Base64 CRC32C; empty if the endpoint does not report it."""


@dataclass(frozen=True)
class Transfer:
    s3: Any
    bucket: str
    part_bytes: int = 16 * MIB
    """At least S3's minimum of 5 MiB; larger if an object would need more than 10,000 parts."""
    at_once: int = 16
    parts: Sends | None = None
    _slots: threading.BoundedSemaphore = field(init=False)
    _idle: list[mmap.mmap] = field(init=False, default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", self.parts or PartTransfers(self.s3))
        object.__setattr__(self, "_slots", threading.BoundedSemaphore(self.at_once))

    def part_size(self, size: int) -> int:
        smallest = -(-size // LARGEST_COUNT)
        return max(self.part_bytes, -(-smallest // MIB) * MIB)

    def upload(self, key: str, source: Path, size: int, sha256: str, metadata: dict[str, str]) -> int:
        """Upload a file in parts, continuing an earlier upload of this key; return how many parts were there already.

        S3 refuses with 412 if the key has an object. Raises `Altered` if the file has another size or digest, and S3's
        errors as boto3 does.
        """
        upload, stored_parts = self._begin(key, metadata)
        digest, pending, parts = hashlib.sha256(), deque[Future[UploadPart]](), list[UploadPart]()
        try:
            for number, content in enumerate(self._contents(source, size, digest), 1):
                pending.append(self._send(key, upload, number, content, stored_parts.get(number)))
                del content
                while pending and pending[0].done():
                    parts.append(pending.popleft().result())
        finally:
            for left in pending:
                left.exception()
        parts += [left.result() for left in pending]
        if digest.hexdigest() != sha256:
            raise Altered(f"{source.name}: {digest.hexdigest()}, not {sha256}")
        self._complete(key, upload, parts)
        tags = {part.number: part.etag for part in stored_parts.values()}
        return sum(tags.get(part.number) == part.etag for part in parts)

    def _contents(self, source: Path, size: int, digest: Any) -> Iterator[bytes]:
        """Yield the parts of a file, each read once a slot is free; the consumer gives the slot back."""
        step = self.part_size(size)
        try:
            if (actual_size := patient(source.lstat).st_size) != size:
                raise Altered(f"{source.name}: {actual_size} bytes, not {size}")
            for offset in range(0, size, step):
                self._slots.acquire()
                try:
                    content = patient(partial(_piece, source, offset, min(step, size - offset)))
                    if len(content) != min(step, size - offset):
                        raise Altered(f"{source.name} ended at byte {offset + len(content)}")
                except BaseException:
                    self._slots.release()
                    raise
                digest.update(content)
                yield content
        except OSError as error:
            if limit_of(error):
                raise
            raise Altered(f"{source.name} cannot be read: {error.strerror or error}") from error

    def download(self, source: dict[str, str], size: int, file: BinaryIO | None, start: int, digest: Any) -> None:
        """Write bytes from `start` on in order into `file` (None: nowhere) and `digest`, many parts ahead.

        Raises S3's errors as boto3 does; the bytes written until then are correct, and a later call can continue.
        """
        step, ahead = self.part_size(size), deque[tuple[Future[int], memoryview]]()
        next_offset, position, hashing = start, start, ThreadPoolExecutor(1, thread_name_prefix="digest")
        try:
            while position < size:
                # It waits for one slot and takes others only if free, so that transfers do not starve each other.
                while next_offset < size and (self._slots.acquire(blocking=not ahead)):
                    length = min(step, size - next_offset)
                    ahead.append(self._get({"Bucket": self.bucket, **source}, next_offset, length, size))
                    next_offset += length
                coming, content = ahead[0]
                try:
                    coming.result()
                    # Both release the GIL: a part is hashed while it is written.
                    digest_job = hashing.submit(digest.update, content)
                    try:
                        if file is not None:
                            file.write(content)
                    finally:
                        digest_job.result()
                    position += len(content)
                finally:
                    ahead.popleft()
                    self._give_back(content)
        finally:
            hashing.shutdown()
            for coming, content in ahead:
                coming.exception()
                self._give_back(content)

    def _get(self, source: dict[str, str], start: int, length: int, total: int) -> tuple[Future[int], memoryview]:
        assert self.parts is not None
        content = memoryview(self._buffer(length))[:length]
        try:
            return self.parts.get(source, start, content, total), content
        except BaseException:
            self._give_back(content)
            raise

    def _buffer(self, length: int) -> mmap.mmap:
        """Return a buffer for a part; reuse an idle one, so that no page is requested twice from the kernel."""
        buffer: mmap.mmap | None = None
        with contextlib.suppress(IndexError):
            buffer = self._idle.pop()
        if buffer is None or len(buffer) < length:
            buffer = mmap.mmap(-1, max(length, self.part_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            buffer.madvise(mmap.MADV_HUGEPAGE)
        return buffer

    def _give_back(self, content: memoryview) -> None:
        """Release the slot and keep the buffer; there are at most as many buffers as slots."""
        assert isinstance(content.obj, mmap.mmap)
        self._idle.append(content.obj)
        self._slots.release()

    def _begin(self, key: str, metadata: dict[str, str]) -> tuple[str, dict[int, UploadPart]]:
        """Return the upload to continue and its parts by number, or a new upload."""
        pages = self.s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=key)
        uploads = [upload for page in pages for upload in page.get("Uploads", ()) if upload["Key"] == key]
        for upload in sorted(uploads, key=lambda entry: str(entry.get("Initiated")), reverse=True):
            try:
                return upload["UploadId"], self._parts_of(key, upload["UploadId"])
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchUpload":
                    raise
        answer = self.s3.create_multipart_upload(
            Bucket=self.bucket, Key=key, Metadata=metadata, ChecksumAlgorithm=_ALGORITHM
        )
        return answer["UploadId"], {}

    def _parts_of(self, key: str, upload: str) -> dict[int, UploadPart]:
        pages = self.s3.get_paginator("list_parts").paginate(Bucket=self.bucket, Key=key, UploadId=upload)
        return {
            part["PartNumber"]: UploadPart(
                part["PartNumber"], part["Size"], part["ETag"], part.get("ChecksumCRC32C", "")
            )
            for page in pages
            for part in page.get("Parts", ())
        }

    def _send(
        self, key: str, upload: str, number: int, content: bytes, stored_part: UploadPart | None
    ) -> Future[UploadPart]:
        """Send one part unless S3 has it; release its slot when it is done."""
        from awscrt.checksums import crc32c

        result: Future[UploadPart] = Future()
        checksum = base64.b64encode(crc32c(content).to_bytes(4, "big")).decode()
        if stored_part is not None and _is(stored_part, content, checksum):
            self._slots.release()
            result.set_result(UploadPart(number, stored_part.size, stored_part.etag, checksum))
            return result
        part = {"Bucket": self.bucket, "Key": key, "UploadId": upload, "PartNumber": number}
        size = len(content)

        def finish(answer: Future[dict[str, str]]) -> None:
            self._slots.release()
            if (error := answer.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(UploadPart(number, size, answer.result().get("etag", ""), checksum))

        assert self.parts is not None
        try:
            headers = {"x-amz-checksum-crc32c": checksum}
            answer = self.parts.put({**part, "ChecksumCRC32C": checksum}, headers, io.BytesIO(content), size)
        except BaseException:
            self._slots.release()
            raise
        answer.add_done_callback(finish)
        return result

    def _complete(self, key: str, upload: str, finished_parts: list[UploadPart]) -> None:
        parts = [
            {"PartNumber": part.number, "ETag": part.etag, "ChecksumCRC32C": part.checksum} for part in finished_parts
        ]
        self.s3.complete_multipart_upload(
            Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
        )


def _piece(source: Path, offset: int, size: int) -> bytes:
    """Return a part of a plain file. It is opened for each: what an evicted client has open stays unreadable."""
    with open_plain(source) as file:
        file.seek(offset)
        return file.read(size)


def _is(stored_part: UploadPart, content: bytes, checksum: str) -> bool:
    """Return True if S3's part is this one: by its checksum, else by the MD5 in an endpoint's entity tag."""
    if stored_part.size != len(content):
        return False
    if stored_part.checksum:
        return stored_part.checksum == checksum
    return stored_part.etag.strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()

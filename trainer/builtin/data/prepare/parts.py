"""The finished parts of a preparation in S3, each with the digests of its files: what one worker made, all others use,
and none makes again."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.builtin.data.store import write_whole
from trainer.errors import StorageError

_THREADS = 16
_TRIES = 3
_SHA256, _DOCUMENTS = "sha256", "documents"


class Parts:
    """`done/<part>` packs a part's small files and is written last; `files/<name>` is one large file."""

    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        self._s3, self._bucket, self._prefix = s3, bucket, prefix

    def names(self, beginning: str) -> set[str]:
        """Return the names of the finished parts that begin so."""
        folder = f"{self._prefix}done/"
        with _translate_errors(f"s3://{self._bucket}/{folder}"):
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder + beginning)
            return {row["Key"].removeprefix(folder) for page in pages for row in page.get("Contents", ())}

    def keep(self, name: str, files: Sequence[Path], large: Iterable[Path], documents: int) -> None:
        """Upload a part."""
        with _translate_errors(f"s3://{self._bucket}/{self._prefix}done/{name}"):
            self._run_in_threads(lambda path: self._upload(f"files/{path.name}", path.read_bytes()), large)
            self._upload(f"done/{name}", _pack(files), {_DOCUMENTS: str(documents)})

    def fetch_part(self, name: str, targets: Mapping[str, Path]) -> int:
        """Write a part's small files to their places, the last one last; return the number of its documents."""
        content, metadata = self._get(f"done/{name}")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                inner = tar.extractfile(member)
                assert inner is not None, "only files are packed"
                write_whole(targets[member.name], inner.read())
        return int(metadata[_DOCUMENTS])

    def fetch(self, paths: Iterable[Path]) -> None:
        """Bring large files to their places, but those that are there."""
        self._run_in_threads(
            lambda path: write_whole(path, self._get(f"files/{path.name}")[0]),
            [path for path in paths if not path.exists()],
        )

    def agree(self, path: Path) -> None:
        """Let the first worker's file stand for all: upload it if there is none, then take what is there."""
        from botocore.exceptions import ClientError

        try:
            self._upload(f"files/{path.name}", path.read_bytes(), IfNoneMatch="*")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (409, 412):
                raise
        write_whole(path, self._get(f"files/{path.name}")[0])

    def publish(self, prefix: str, files: Mapping[str, str], final_objects: Mapping[str, bytes]) -> None:
        """Copy large files below a prefix of the bucket, within S3, which tells their digests; then put what is to be
        written last, in order. `files`: name -> SHA-256. Raises `StorageError` for a file with another digest."""

        def copy(name: str) -> None:
            source = {"Bucket": self._bucket, "Key": f"{self._prefix}files/{name}"}
            with _translate_errors(place := f"s3://{self._bucket}/{prefix}{name}"):
                answer = self._s3.copy_object(
                    Bucket=self._bucket, Key=f"{prefix}{name}", CopySource=source, ChecksumAlgorithm="SHA256"
                )
            actual_digest = base64.b64decode(answer["CopyObjectResult"].get("ChecksumSHA256", "")).hex()
            if actual_digest != files[name]:
                raise _damage_error(place, f"{actual_digest}, wanted {files[name]}")

        self._run_in_threads(copy, files)
        for name, content in final_objects.items():
            self.put(f"{prefix}{name}", content)

    def put(self, key: str, content: bytes, metadata: Mapping[str, str] = {}, **fields: str) -> None:
        """Put an object; S3 refuses it if it arrives with another digest."""
        digest = hashlib.sha256(content)
        self._s3.put_object(
            Bucket=self._bucket,
            Key=key,
            Body=content,
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
            Metadata={_SHA256: digest.hexdigest(), **metadata},
            **fields,
        )

    def _upload(self, name: str, content: bytes, metadata: Mapping[str, str] = {}, **fields: str) -> None:
        self.put(f"{self._prefix}{name}", content, metadata, **fields)

    def _get(self, name: str) -> tuple[bytes, dict[str, str]]:
        """Return an object that has its digest, and its metadata."""
        place = f"s3://{self._bucket}/{self._prefix}{name}"
        with _translate_errors(place):
            for _ in range(_TRIES):
                answer = self._s3.get_object(Bucket=self._bucket, Key=f"{self._prefix}{name}")
                content, metadata = answer["Body"].read(), answer["Metadata"]
                actual_digest = hashlib.sha256(content).hexdigest()
                if actual_digest == metadata.get(_SHA256):
                    return content, metadata
        raise _damage_error(place, f"{actual_digest}, wanted {metadata.get(_SHA256)}")

    def _run_in_threads(self, function: Callable[[Any], None], things: Iterable[Any]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(function, things))


def _pack(files: Sequence[Path]) -> bytes:
    """Return a tar without times and owners: equal files give equal bytes."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            entry, content = tarfile.TarInfo(path.name), path.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _damage_error(place: str, detail: str) -> StorageError:
    return StorageError("a part is damaged", f"{place}: {detail}", "remove it; the same command makes it again")


@contextmanager
def _translate_errors(place: str) -> Iterator[None]:
    """Name the object where S3 refuses or does not answer."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        cure = "see the role of the pods and the bucket's policy and key; the same command continues"
        raise StorageError("the parts cannot be used", f"{place}: {error}", cure) from error

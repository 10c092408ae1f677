"""Sources of prepared shards: a folder, for example on Lustre, or S3. Both are read as streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from trainer.buckets.prefix import kind_of

_CHUNK_BYTES = 2**20
_CONNECT_S, _READ_S = 5, 20


class ShardSource(Protocol):
    def read(self, name: str) -> Iterator[bytes]:
        """Yield the file's content in pieces. Raises `OSError` for any error, also in the middle."""

    def __str__(self) -> str: ...


class FolderSource:
    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> Iterator[bytes]:
        with (self._root / name).open("rb", buffering=0) as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece

    def __str__(self) -> str:
        return str(self._root)


class BucketSource:
    """`s3://bucket/prefix`, with the environment's credentials and endpoint."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._made: Any = None

    def read(self, name: str) -> Iterator[bytes]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client().get_object(Bucket=self._bucket, Key=f"{self._prefix}{name}")
            yield from answer["Body"].iter_chunks(_CHUNK_BYTES)
        except (ClientError, BotoCoreError) as error:
            raise kind_of(error)(f"{type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return self._url

    def _client(self) -> Any:
        if self._made is None:
            import boto3
            from botocore.config import Config

            config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries={"total_max_attempts": 1})
            self._made = boto3.client("s3", config=config)
        return self._made


def source_of(place: str, mount: Path) -> ShardSource:
    """Return the source at `place` of the configuration, or the data mount if that is empty."""
    if place.startswith("s3://"):
        return BucketSource(place)
    return FolderSource(Path(place) if place else mount)

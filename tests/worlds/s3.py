"""S3 in memory: conditional writes, a clock of its own, and weather."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def refusal(code: str, status: int, operation: str = "PutObject", message: str = "not now") -> ClientError:
    told = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, operation)  # type: ignore[arg-type]


class Time:
    """Seconds that go by only when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 1000.0)

    def go(self, seconds: float) -> None:
        self.seconds += seconds


class FakeS3:
    meta = SimpleNamespace(region_name="eu-north-1")

    def __init__(self, time: Time) -> None:
        self.time = time
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.away: ClientError | None = None
        """What every request is answered, while the weather is bad."""
        self.unheard = 0
        """So many of the next writes land, and are answered with an error."""
        self.heard: Callable[[str, str], None] = lambda service, date: None

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, **conditions: Any) -> dict[str, Any]:
        self._weather()
        there = self.objects.get(Key)
        if "IfNoneMatch" in conditions and there is not None:
            raise refusal("PreconditionFailed", 412)
        if "IfMatch" in conditions and (there is None or _tag(there[0]) != conditions["IfMatch"]):
            raise refusal("PreconditionFailed", 412)
        self.objects[Key] = (bytes(Body), self.time.wall())
        self.metadata[Key] = dict(conditions.get("Metadata") or {})
        if self.unheard:
            self.unheard -= 1
            raise refusal("SlowDown", 503)
        return {"ETag": _tag(bytes(Body)), **self._dated()}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._weather()
        if Key not in self.objects:
            raise refusal("NoSuchKey", 404, "GetObject")
        body, written = self.objects[Key]
        told = {"ETag": _tag(body), "LastModified": written, "Metadata": self.metadata.get(Key, {})}
        return {"Body": io.BytesIO(body), **told, **self._dated()}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._weather()
        self.objects.pop(Key, None)
        return self._dated()

    def get_paginator(self, _: str) -> Any:
        return SimpleNamespace(paginate=self._pages)

    def _pages(self, *, Bucket: str, Prefix: str, Delimiter: str = "") -> Iterator[dict[str, Any]]:
        self._weather()
        rest = {key: key.removeprefix(Prefix) for key in sorted(self.objects) if key.startswith(Prefix)}
        below = {key for key, name in rest.items() if Delimiter and Delimiter in name}
        folders = sorted({rest[key].partition(Delimiter)[0] for key in below})
        yield {
            "Contents": [{"Key": key, "LastModified": self.objects[key][1]} for key in rest if key not in below],
            "CommonPrefixes": [{"Prefix": f"{Prefix}{folder}{Delimiter}"} for folder in folders],
        }

    def _weather(self) -> None:
        if self.away is not None:
            raise self.away
        self.heard("s3", format_datetime(self.time.wall(), usegmt=True))

    def _dated(self) -> dict[str, Any]:
        return {"ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(self.time.wall(), usegmt=True)}}}


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'

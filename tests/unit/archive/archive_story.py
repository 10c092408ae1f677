"""S3 and the shared tier in memory, for the archive: what was sent, what was read, and what went wrong on the way."""

from __future__ import annotations

import hashlib
import io
import json
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError, HTTPClientError

from infra.archive import archive
from infra.archive.bucket import ArchiveBucket, Content
from infra.aws.parts import Altered
from infra.aws.transfer import MIB, Transfer
from tests.manifests import manifest_of, seal, shard_at
from trainer.contract import attempt_folder, step_folder

CAMPAIGN, IDENTITY, PREFIX = "tiny", "own", "campaigns/tiny/own"
BODY = b"a shard's bytes"
DIGEST = hashlib.sha256(BODY).hexdigest()
LARGE = bytes(range(256)) * (10 * 1024) + b"the rest"
TRIES = 3


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Call")  # type: ignore[typeddict-item]


class S3:
    """Buckets as a dictionary. `spoiled` objects are stored as other bytes than were sent, `lost` ones not at all."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.spoiled = self.lost = self.cut_off = 0
        self.version = "null"
        self.asked_versions: list[str] = []

    def put_object(self, Key: str, Body: bytes, Metadata: dict[str, str] | None = None, **rest: Any) -> None:
        self._write(Key, bytes(Body), Metadata or {}, rest)

    def _write(self, key: str, body: bytes, metadata: dict[str, str], rest: dict[str, Any]) -> None:
        self.calls.append(f"put {key.removeprefix(f'{PREFIX}/')}")
        if rest.get("IfNoneMatch") == "*" and key in self.held:
            raise refused("PreconditionFailed", 412)
        if self.lost:
            self.lost -= 1
            return
        if self.spoiled:
            self.spoiled -= 1
            body = b"?" + body[1:]
        self.held[key] = (body, metadata)
        if self.cut_off:
            self.cut_off -= 1
            raise HTTPClientError(error="the answer was lost")

    def head_object(self, Key: str, **_: Any) -> dict[str, Any]:
        if Key not in self.held:
            raise refused("404", 404)
        body, metadata = self.held[Key]
        return {"ContentLength": len(body), "Metadata": metadata, "VersionId": self.version}

    def get_object(self, Key: str, **rest: Any) -> dict[str, Any]:
        self.calls.append(f"get {Key.removeprefix(f'{PREFIX}/')}")
        self.asked_versions.append(rest.get("VersionId", ""))
        if Key not in self.held:
            raise refused("NoSuchKey", 404)
        return {"Body": io.BytesIO(self.held[Key][0])}

    def get_paginator(self, operation: str) -> Any:
        """One row a page, the first page empty."""
        return SimpleNamespace(paginate=lambda **asked: [{}, *getattr(self, f"_{operation}")(**asked)])

    def _list_objects_v2(self, Prefix: str, **_: Any) -> list[dict[str, Any]]:
        keys = [key for key in sorted(self.held) if key.startswith(Prefix) and not key.startswith(PREFIX)]
        return [{"Contents": [{"Key": key}]} for key in keys]  # of the record, which is another bucket's

    def _list_object_versions(self, Prefix: str, **_: Any) -> list[dict[str, Any]]:
        keys = [key for key in sorted(self.held) if key.startswith(Prefix)]
        return [{"Versions": [{"Key": key, "VersionId": self.version, "IsLatest": True}]} for key in keys]

    def delete_object(self, Key: str, **_: Any) -> None:
        self.calls.append(f"delete {Key}")
        self.held.pop(Key, None)

    def delete_objects(self, Delete: dict[str, Any], **_: Any) -> dict[str, Any]:
        for one in Delete["Objects"]:
            self.delete_object(one["Key"])
        return {}

    def _list_multipart_uploads(self, Prefix: str, **_: Any) -> list[dict[str, Any]]:
        found = [(name, one) for name, one in self.uploads.items() if one["key"].startswith(Prefix)]
        return [{"Uploads": [{"Key": one["key"], "UploadId": name, "Initiated": name}]} for name, one in found]

    def _list_parts(self, Key: str, UploadId: str, **_: Any) -> list[dict[str, Any]]:
        if self.uploads[UploadId].get("ended"):
            raise refused("NoSuchUpload", 404)
        parts = self.uploads[UploadId]["parts"].items()
        return [{"Parts": [{"PartNumber": n, "Size": len(body), "ETag": _tag(body)}]} for n, body in parts]

    def create_multipart_upload(self, Key: str, Metadata: dict[str, str], **_: Any) -> dict[str, str]:
        name = f"upload-{len(self.uploads)}"
        self.uploads[name] = {"key": Key, "metadata": Metadata, "parts": {}}
        return {"UploadId": name}

    def complete_multipart_upload(self, Key: str, UploadId: str, MultipartUpload: Any, **rest: Any) -> None:
        upload = self.uploads[UploadId]
        bodies = [upload["parts"][part["PartNumber"]] for part in MultipartUpload["Parts"]]
        assert [part["ETag"] for part in MultipartUpload["Parts"]] == [_tag(body) for body in bodies]
        self._write(Key, b"".join(bodies), upload["metadata"], rest)
        del self.uploads[UploadId]

    def abort_multipart_upload(self, Key: str, UploadId: str, **_: Any) -> None:
        if self.uploads[UploadId].get("ended"):
            raise refused(self.uploads[UploadId]["ended"], 404)
        del self.uploads[UploadId]


class Wire:
    """Parts to and from that S3, one at a time; `cut`: so many are sent before the line breaks."""

    def __init__(self, s3: S3) -> None:
        self.s3, self.sent, self.got = s3, list[int](), list[int]()
        self.cut: int | None = None

    def put(self, where: dict[str, Any], headers: dict[str, str], body: Any, size: int) -> Future[dict[str, str]]:
        answer: Future[dict[str, str]] = Future()
        if self.cut is not None and len(self.sent) >= self.cut:
            answer.set_exception(HTTPClientError(error="cut off"))
            return answer
        content = body.read()
        assert len(content) == size and headers["x-amz-checksum-crc32c"] == where["ChecksumCRC32C"]
        self.sent.append(where["PartNumber"])
        self.s3.uploads[where["UploadId"]]["parts"][where["PartNumber"]] = content
        answer.set_result({"etag": _tag(content)})
        return answer

    def get(self, where: dict[str, Any], start: int, into: memoryview, of: int) -> Future[int]:
        answer: Future[int] = Future()
        self.got.append(start)
        body = self.s3.held[where["Key"]][0]
        if len(body) != of:
            answer.set_exception(Altered(f"{len(body)} bytes, not {of}"))
            return answer
        into[:] = body[start : start + len(into)]
        answer.set_result(len(into))
        return answer


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def bucket_of(s3: S3, wire: Wire, said: list[tuple[str, dict[str, Any]]]) -> ArchiveBucket:
    def say(event: str, **fields: Any) -> None:
        said.append((event, fields))

    return ArchiveBucket(s3, "b", PREFIX, say, TRIES, timedelta(0), Transfer(s3, "b", MIB, 2, wire))


def a_file(folder: Path, body: bytes = LARGE) -> tuple[Path, Content]:
    path = folder / "large"
    path.write_bytes(body)
    return path, Content.of_file(path)


def site_at(root: Path) -> Any:
    """A campaign's record, data and configuration, and an archive that is empty."""
    s3, said = S3(), list[tuple[str, dict[str, Any]]]()
    bucket = bucket_of(s3, Wire(s3), said)
    for record in ("spec.json", "live.json"):
        s3.held[f"campaigns/{CAMPAIGN}/{record}"] = (b'{"spent_usd": 12.5, "owner": "ann"}', {})
    data = root / "data"
    data.mkdir()
    (data / "validation-00000.bin").write_bytes(BODY)
    (data / "tokenizer.json").write_text("{}")
    held = {"file": "validation-00000.bin", "sha256": DIGEST}
    (data / "manifest.json").write_text(json.dumps({"validation": [held], "unigram_loss": 6.2}))
    (root / "train.json").write_text("{}")
    (root / "work").mkdir()
    return SimpleNamespace(s3=s3, bucket=bucket, said=said, root=root, data=data)


def commit(site: Any, step: int, loss: float | None = 2.25, identity: str = IDENTITY) -> Path:
    path = site.root / "shared" / CAMPAIGN / step_folder(step) / attempt_folder(1) / "a.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY + b"%d" % step)
    told = {"campaign": CAMPAIGN, "identity": identity, "evaluation_loss": loss}
    seal(path.parent.parent, manifest_of(step, (shard_at(path),), **told))
    return path


def archiver(
    site: Any, restored: float = 2.25, here: float | Exception = 2.25, committed: int = -1, tolerance: float = 0.0
) -> Any:
    def evaluate(folder: Path, out: Path | None) -> float:
        if out is not None:
            out.mkdir()
            (out / "model.safetensors").write_bytes(next(folder.rglob("a.pt")).read_bytes())
        if site.root / "work" in folder.parents:
            return restored
        if isinstance(here, Exception):
            raise here
        return here

    names = {
        "campaign": CAMPAIGN,
        "identity": IDENTITY,
        "committed_step": committed,
        "region": "r",
        "tolerance": tolerance,
    }
    config = archive.ArchiveConfig(**names, state_bucket="b", archive_bucket="b", image_manifest="images/none.json")
    places = archive.Places(site.root / "shared", site.root / "train.json", site.data)
    return archive.Archiver(config, site.bucket, site.root / "work", places, archive.Model(evaluate))

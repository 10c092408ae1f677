"""The archiver over S3 in memory: nothing is overwritten, every byte is read back, and a wrong one is no archive."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
)

from infra.actions import archive
from infra.actions.archive_bucket import ArchiveBucket, ArchivedObject, Clash, Content, Unsound, may_pass
from infra.actions.archive_manifest import MANIFEST_NAME, Proof
from infra.actions.parts import Altered
from infra.actions.transfer import MIB, Transfer
from infra.errors import PermanentError
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
        found = [key for key in sorted(self.held) if key.startswith(Prefix) and not key.startswith(PREFIX)]
        return [{"Contents": [{"Key": key}]} for key in found]  # of the record, which is another bucket's

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


@pytest.fixture
def s3() -> S3:
    return S3()


@pytest.fixture
def wire(s3: S3) -> Wire:
    return Wire(s3)


@pytest.fixture
def said() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def bucket(s3: S3, wire: Wire, said: list[Any]) -> ArchiveBucket:
    def say(event: str, **fields: Any) -> None:
        said.append((event, fields))

    return ArchiveBucket(s3, "b", PREFIX, say, TRIES, timedelta(0), Transfer(s3, "b", MIB, 2, wire))


def a_file(folder: Path, body: bytes = LARGE) -> tuple[Path, Content]:
    path = folder / "large"
    path.write_bytes(body)
    return path, Content.of_file(path)


# Single objects


def test_what_was_sent_once_is_not_sent_again_and_its_version_is_the_one_that_is_read(
    bucket: ArchiveBucket, s3: S3
) -> None:
    s3.version = "v7"
    first = bucket.place("a", Content.of(BODY))
    assert first == bucket.place("a", Content.of(BODY)) and s3.calls == ["put a"]
    assert first == ArchivedObject(key=f"{PREFIX}/a", size_bytes=len(BODY), sha256=DIGEST, version="v7")
    bucket.read_back(first, None)
    assert s3.asked_versions == ["v7"]
    s3.version = "null"
    assert bucket.place("b", Content.of(BODY)).version == ""


@pytest.mark.parametrize("lost", [1, 2])
def test_an_object_that_was_sent_and_is_not_there_is_sent_again(bucket: ArchiveBucket, s3: S3, lost: int) -> None:
    s3.lost = lost
    assert bucket.place("a", Content.of(BODY)).size_bytes == len(BODY)
    assert s3.calls == ["put a"] * (lost + 1)
    s3.held.clear()
    s3.lost = TRIES
    with pytest.raises(Unsound, match="is not there"):
        bucket.place("a", Content.of(BODY))


def test_an_upload_whose_answer_was_lost_counts_when_it_is_there(bucket: ArchiveBucket, s3: S3) -> None:
    s3.cut_off = 1
    assert bucket.place("a", Content.of(BODY)).sha256 == DIGEST
    assert s3.calls == ["put a"]


@pytest.mark.parametrize("claims", [(BODY + b"!", DIGEST), (BODY, None), (BODY, "0" * 64)])
@pytest.mark.parametrize("first_stays", [False, True])
def test_an_object_that_claims_other_bytes_is_an_error_and_stays(
    claims: tuple[bytes, str | None], first_stays: bool, bucket: ArchiveBucket, s3: S3
) -> None:
    body, digest = claims
    held = s3.held[f"{PREFIX}/a"] = (body, {"sha256": digest} if digest else {})
    if first_stays and digest:
        assert bucket.place("a", Content.of(BODY), first_stays=True).sha256 == digest
    else:
        with pytest.raises(Clash, match=f"holds {len(body)} bytes"):
            bucket.place("a", Content.of(BODY), first_stays=first_stays)
    assert s3.held[f"{PREFIX}/a"] == held and s3.calls == []


def test_who_is_first_between_the_look_and_the_write_is_not_overwritten(
    bucket: ArchiveBucket, s3: S3, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = s3.put_object

    def late(**asked: Any) -> None:
        s3.held[f"{PREFIX}/a"] = (BODY, {"sha256": DIGEST})
        send(**asked)

    monkeypatch.setattr(s3, "put_object", late)
    assert bucket.place("a", Content.of(BODY)).sha256 == DIGEST
    assert [event for event, _ in said] == []
    with pytest.raises(Clash):
        bucket.place("a", Content.of(BODY.upper()))


@pytest.mark.parametrize("body", [BODY, LARGE])
def test_an_object_of_other_bytes_or_none_is_unsound(bucket: ArchiveBucket, s3: S3, wire: Wire, body: bytes) -> None:
    item = ArchivedObject(key=f"{PREFIX}/a", size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
    if body is BODY:
        with pytest.raises(Unsound, match="is not there"):
            bucket.read_back(item, None)
    for wrong in (body.upper(), body[:-1], body + b"!"):
        s3.held[item.key] = (wrong, {"sha256": item.sha256})
        with pytest.raises(Unsound):
            bucket.read_back(item, None)
    s3.held[item.key] = (body, {})
    bucket.read_back(item, None)


def test_what_is_read_back_is_written_where_it_is_wanted(bucket: ArchiveBucket, tmp_path: Path, wire: Wire) -> None:
    _, content = a_file(tmp_path)
    for name, what in (("small", Content.of(BODY)), ("large", content)):
        bucket.read_back(bucket.place(name, what), tmp_path / f"{name}-back")
    assert (tmp_path / "small-back").read_bytes() == BODY and (tmp_path / "large-back").read_bytes() == LARGE
    assert wire.got == [0, MIB, 2 * MIB]


def test_who_publishes_first_is_believed(bucket: ArchiveBucket, s3: S3) -> None:
    assert bucket.publish("manifest", b"first") == b"first"
    assert bucket.publish("manifest", b"second") == b"first" == bucket.get("manifest")
    s3.held.clear()
    s3.lost = TRIES
    with pytest.raises(Unsound, match="is not there"):
        bucket.publish("manifest", b"third")
    assert bucket.get("manifest") is None and bucket.place_of("m") == f"s3://b/{PREFIX}/m"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (refused("Whatever", 500), True),
        (refused("Whatever", 503), True),
        (refused("Whatever", 499), False),
        (refused("OperationAborted", 409), True),
        (refused("TooMany", 429), True),
        (refused("NoSuchUpload", 404), True),
        (refused("RequestTimeout"), True),
        (refused("BadDigest"), True),
        (refused("InvalidPart"), True),
        (refused("SlowDown"), True),
        (refused("InternalError"), True),
        (refused("AccessDenied", 403), False),
        (HTTPClientError(error="cut off"), True),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), True),
        (FlexibleChecksumError(error_msg="other"), True),
        (NoCredentialsError(), False),
        (Unsound("bytes"), True),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, passes: bool, bucket: ArchiveBucket) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    assert may_pass(error) is passes
    with pytest.raises(type(error)):
        bucket.patiently(fail)
    assert len(calls) == (TRIES if passes else 1)


def test_pauses_double(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("infra.actions.archive_bucket.time.sleep", pauses.append)
    bucket = ArchiveBucket(None, "b", PREFIX, lambda *_, **__: None)
    with pytest.raises(Unsound):
        bucket.patiently(lambda: (_ for _ in ()).throw(Unsound("no")))
    assert pauses == [0.5, 1, 2, 4]


def test_uploads_below_the_prefix_are_aborted_and_no_others(bucket: ArchiveBucket, s3: S3) -> None:
    for name, key in (("1", f"{PREFIX}/a"), ("2", f"{PREFIX}/b"), ("3", f"{PREFIX}-other/a"), ("4", f"{PREFIX}/c")):
        s3.uploads[name] = {"key": key, "metadata": {}, "parts": {}}
    s3.uploads["2"]["ended"] = "NoSuchUpload"
    assert bucket.abort_uploads() == 2 and set(s3.uploads) == {"2", "3"}
    s3.uploads["2"]["ended"] = "AccessDenied"
    with pytest.raises(ClientError):
        bucket.abort_uploads()


# Objects in parts


def test_a_cut_off_upload_goes_on_with_the_parts_that_are_missing(
    bucket: ArchiveBucket, s3: S3, wire: Wire, tmp_path: Path, said: list[Any]
) -> None:
    _, content = a_file(tmp_path)
    wire.cut = 2
    with pytest.raises(HTTPClientError):
        bucket.place("large", content)
    assert len(s3.uploads) == 1 and not s3.held
    wire.cut, wire.sent = None, []
    assert bucket.place("large", content).sha256 == content.sha256
    assert wire.sent == [3] and s3.held[f"{PREFIX}/large"] == (LARGE, {"sha256": content.sha256}) and not s3.uploads
    assert ("resumed", {"key": f"{PREFIX}/large", "parts_already_there": 2}) in said


def test_parts_of_other_bytes_and_uploads_of_other_keys_are_not_taken_over(
    bucket: ArchiveBucket, s3: S3, wire: Wire, tmp_path: Path
) -> None:
    _, content = a_file(tmp_path)
    s3.uploads["old"] = {"key": f"{PREFIX}/large-2", "metadata": {}, "parts": {1: LARGE[:MIB]}}
    s3.uploads["ended"] = {"key": f"{PREFIX}/large", "metadata": {}, "parts": {}, "ended": "NoSuchUpload"}
    digest = {"sha256": content.sha256}
    s3.uploads["a"] = {"key": f"{PREFIX}/large", "metadata": digest, "parts": {1: b"?" * MIB, 2: LARGE[MIB : 2 * MIB]}}
    bucket.place("large", content)
    assert wire.sent == [1, 3] and s3.held[f"{PREFIX}/large"][0] == LARGE and "old" in s3.uploads


def test_a_file_that_is_no_longer_what_was_promised_is_never_completed(
    bucket: ArchiveBucket, s3: S3, tmp_path: Path
) -> None:
    for before in (LARGE, BODY):
        path, content = a_file(tmp_path, before)
        for after in (b"?" + before[1:], before + b"!", before[:-1]):
            path.write_bytes(after)
            with pytest.raises(Altered):
                bucket.place("large", content)
        path.unlink()
        with pytest.raises(Altered, match="cannot be read"):
            bucket.place("large", content)
        (tmp_path / "else").write_bytes(before)
        path.symlink_to(tmp_path / "else")
        with pytest.raises(Altered):
            bucket.place("large", content)
        path.unlink()
    assert not s3.held
    path, content = a_file(tmp_path)
    bucket.place("large", content)  # every slot was given back


def test_parts_grow_where_there_would_be_more_than_ten_thousand() -> None:
    transfer: Any = Transfer(None, "b", 16 * MIB, 2, Wire(S3()))
    assert transfer.part_size(1) == transfer.part_size(160_000 * MIB) == 16 * MIB
    assert transfer.part_size(160_000 * MIB + 1) == 17 * MIB


# The archiver


@pytest.fixture
def site(s3: S3, bucket: ArchiveBucket, tmp_path: Path) -> Any:
    for record in ("spec.json", "live.json"):
        s3.held[f"campaigns/{CAMPAIGN}/{record}"] = (b'{"spent_usd": 12.5, "owner": "ann"}', {})
    data = tmp_path / "data"
    data.mkdir()
    (data / "validation-00000.bin").write_bytes(BODY)
    (data / "tokenizer.json").write_text("{}")
    held = {"file": "validation-00000.bin", "sha256": DIGEST}
    (data / "manifest.json").write_text(json.dumps({"validation": [held], "unigram_loss": 6.2}))
    (tmp_path / "train.json").write_text("{}")
    (tmp_path / "work").mkdir()
    return SimpleNamespace(s3=s3, bucket=bucket, root=tmp_path, data=data)


def commit(site: Any, step: int, loss: float | None = 2.25, identity: str = IDENTITY) -> Path:
    path = site.root / "shared" / CAMPAIGN / step_folder(step) / attempt_folder(1) / "a.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY + b"%d" % step)
    told = {"campaign": CAMPAIGN, "identity": identity, "evaluation_loss": loss}
    seal(path.parent.parent, manifest_of(step, (shard_at(path),), **told))
    return path


def archiver(site: Any, restored: float = 2.25, here: float | Exception = 2.25, committed: int = -1) -> Any:
    def evaluate(folder: Path) -> float:
        if site.root / "work" in folder.parents:
            return restored
        if isinstance(here, Exception):
            raise here
        return here

    def export(folder: Path, out: Path) -> None:
        out.mkdir()
        (out / "model.safetensors").write_bytes(next(folder.rglob("a.pt")).read_bytes())

    names = {"campaign": CAMPAIGN, "identity": IDENTITY, "committed_step": committed, "region": "r"}
    config = archive.ArchiveConfig(**names, state_bucket="b", archive_bucket="b", image_manifest="images/none.json")
    places = archive.Places(site.root / "shared", site.root / "train.json", site.data)
    return archive.Archiver(config, site.bucket, site.root / "work", places, archive.Model(evaluate, export))


def test_all_that_is_placed_is_read_back_before_the_manifest_is_written(site: Any) -> None:
    commit(site, 30)
    manifest = archiver(site).run()
    calls = site.s3.calls
    sent = [call.removeprefix("put ") for call in calls if call.startswith("put ")]
    assert sent[-1] == MANIFEST_NAME and len(sent) == len(set(sent)) == len(manifest.objects) + 1
    assert {f"golden/{step_folder(30)}/{name}" for name in ("attempt-0001/a.pt", "manifest.json")} <= set(sent)
    assert {"train.json", "data/tokenizer.json", "data/validation-00000.bin", "record/spec.json"} <= set(sent)
    assert {"huggingface/model.safetensors", "huggingface/README.md"} <= set(sent)
    published = calls.index(f"put {MANIFEST_NAME}")
    assert all(f"get {name}" in calls[calls.index(f"put {name}") : published] for name in sent[:-1])
    assert (manifest.proof, manifest.step, manifest.reference_evaluation_loss) == (Proof.RECORDED, 30, 2.25)
    # Of all that came back only the checkpoint is needed again.
    kept = [path.relative_to(site.root / "work").parts[0] for path in (site.root / "work").rglob("*") if path.is_file()]
    assert (
        set(kept) <= {"golden", "huggingface", "logs"}
        and (site.root / "work/golden" / step_folder(30) / "attempt-0001/a.pt").read_bytes() == BODY + b"30"
    )


def test_who_comes_again_reads_everything_back_and_sends_nothing(site: Any) -> None:
    commit(site, 30)
    first = archiver(site).run()
    site.s3.calls.clear()
    assert archiver(site, restored=9.9).run() == first
    assert sorted(call.removeprefix("get ") for call in site.s3.calls) == sorted(
        [MANIFEST_NAME, *(item.key.removeprefix(f"{PREFIX}/") for item in first.objects)]
    )
    key = first.objects[0].key
    site.s3.held[key] = (b"?", site.s3.held[key][1])
    with pytest.raises(Unsound):
        archiver(site).run()


def test_bytes_that_come_back_wrong_are_no_archive(site: Any) -> None:
    commit(site, 30)
    site.s3.spoiled = 1
    with pytest.raises(PermanentError, match="something else lies in the archive"):
        archiver(site).run()
    assert f"{PREFIX}/{MANIFEST_NAME}" not in site.s3.held


@pytest.mark.parametrize("recorded", [None, 2.5])
def test_another_loss_after_the_read_back_is_no_archive(site: Any, recorded: float | None) -> None:
    commit(site, 30, loss=recorded)
    with pytest.raises(PermanentError, match="does not evaluate as the one that was archived"):
        archiver(site, restored=2.5000000000000004, here=2.5).run()
    assert f"{PREFIX}/{MANIFEST_NAME}" not in site.s3.held
    proof = archiver(site, restored=2.5, here=2.5).run().proof
    assert proof is (Proof.EVALUATED if recorded is None else Proof.RECORDED)


def test_a_step_that_does_not_evaluate_is_refused_only_where_its_bytes_are_wrong(site: Any) -> None:
    commit(site, 20)
    shard = commit(site, 30, loss=None)
    with pytest.raises(PermanentError, match="torch says no"):
        archiver(site, here=PermanentError("torch says no", seen="", cure="")).run()
    shard.write_bytes(shard.read_bytes().upper())
    manifest = archiver(site, here=PermanentError("torch says no", seen="", cure="")).run()
    assert manifest.step == 20 and manifest.accounts_for == 30 and "its digest" in manifest.refused[0]


def test_the_newest_sound_step_is_carried_and_newer_ones_are_refused_by_name(site: Any) -> None:
    commit(site, 10)
    commit(site, 20)
    commit(site, 30).unlink()
    other = commit(site, 40)
    other.write_bytes(other.read_bytes().upper())
    commit(site, 50, identity="other")
    (site.root / "shared" / CAMPAIGN / step_folder(60)).mkdir()
    manifest = archiver(site, committed=50).run()
    assert manifest.step == 20 and manifest.accounts_for == 50
    assert [row.partition(":")[0] for row in manifest.refused] == [step_folder(step) for step in (50, 40, 30)]
    assert not any(step_folder(10) in item.key for item in manifest.objects)
    assert [path.name for path in (site.root / "work/golden").iterdir()] == [step_folder(20)]


def test_a_step_without_shards_is_none_and_no_step_at_all_is_an_error(site: Any) -> None:
    with pytest.raises(PermanentError, match="no sound checkpoint"):
        archiver(site).run()
    folder = commit(site, 30).parent.parent
    seal(folder, manifest_of(30, (), campaign=CAMPAIGN, identity=IDENTITY))
    with pytest.raises(PermanentError, match="it names no shards"):
        archiver(site).run()


def test_a_newer_step_that_the_record_or_the_tier_knows_forbids_an_older_archive(site: Any) -> None:
    commit(site, 30)
    with pytest.raises(PermanentError, match="is not on the shared tier"):
        archiver(site, committed=31).run()
    archiver(site, committed=30).run()
    with pytest.raises(PermanentError, match="older than what was trained"):
        archiver(site, committed=31).run()
    commit(site, 32)
    with pytest.raises(PermanentError, match="newest committed step: 32"):
        archiver(site).run()


def test_whoever_publishes_first_has_the_archive_if_it_is_sound_and_not_older(site: Any) -> None:
    commit(site, 30)
    first = archiver(site).run()
    site.s3.calls.clear()
    ours = first.model_copy(update={"tokens": 1})
    assert archiver(site)._publish(ours) == first
    assert len([call for call in site.s3.calls if call.startswith("get ")]) == 1 + len(first.objects)
    commit(site, 40)
    with pytest.raises(PermanentError, match="older than what was trained"):
        archiver(site)._publish(ours)


def test_uploads_of_killed_tries_end_with_the_archive_and_do_not_spoil_it(site: Any) -> None:
    commit(site, 30)
    site.s3.uploads["killed"] = {"key": f"{PREFIX}/golden/x", "metadata": {}, "parts": {}}
    archiver(site).run()
    assert not site.s3.uploads
    site.s3.uploads["killed"] = {"key": f"{PREFIX}/x", "metadata": {}, "parts": {}, "ended": "AccessDenied"}
    archiver(site).run()


def test_a_disk_without_room_is_told_before_anything_is_sent(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    size = commit(site, 30).stat().st_size
    free: Callable[[int], None] = lambda left: monkeypatch.setattr(  # noqa: E731
        archive.shutil, "disk_usage", lambda _: SimpleNamespace(free=left)
    )
    free(size - 1)
    with pytest.raises(PermanentError, match="does not fit"):
        archiver(site).run()
    assert not any(call.startswith("put") for call in site.s3.calls)
    free(size)
    archiver(site).run()


def test_a_shard_that_changed_refuses_its_step_and_another_file_ends_the_archive(site: Any) -> None:
    path, content = a_file(site.root, BODY)
    path.write_bytes(BODY.upper())
    with pytest.raises(archive.SourceLost):
        archiver(site)._place(f"golden/{step_folder(30)}/a.pt", content)
    with pytest.raises(PermanentError, match="changed or went"):
        archiver(site)._place("train.json", content)


@pytest.mark.parametrize("name", ["record/live.json", "huggingface/README.md", "train.json"])
def test_a_record_that_moved_on_stands_as_it_was_first_placed(site: Any, name: str) -> None:
    first = archiver(site)._place(name, Content.of(BODY))
    if name == "train.json":
        with pytest.raises(PermanentError):
            archiver(site)._place(name, Content.of(BODY.upper()))
    else:
        assert archiver(site)._place(name, Content.of(BODY.upper())) == first

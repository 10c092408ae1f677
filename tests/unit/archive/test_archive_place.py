"""The archive's bucket over S3 in memory: nothing is overwritten, every byte is read back, no part is sent twice."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
)

from infra.archive.bucket import ArchiveBucket, ArchivedObject, Clash, Content, Unsound, may_pass
from infra.aws.parts import Altered
from infra.aws.transfer import MIB, Transfer
from tests.unit.archive.archive_story import BODY, DIGEST, LARGE, PREFIX, S3, TRIES, Wire, a_file, bucket_of, refused


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
    return bucket_of(s3, wire, said)


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


def test_what_was_sent_is_said_and_what_was_there_is_not(
    bucket: ArchiveBucket, said: list[Any], tmp_path: Path
) -> None:
    _, content = a_file(tmp_path)
    for name, what in (("small", Content.of(BODY)), ("large", content)):
        bucket.place(name, what)
        assert said == [("uploaded", {"key": f"{PREFIX}/{name}", "bytes": what.size_bytes})]
        said.clear()
        bucket.place(name, what)
        assert said == []


def test_what_s3_refuses_is_raised_in_its_own_words_and_not_tried_again(
    bucket: ArchiveBucket, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def denied(**how: Any) -> None:
        asked.append(how["Key"].rpartition("/")[2])
        raise refused("AccessDenied", 403)

    sound = bucket.place("sound", Content.of(BODY))
    for call in ("put_object", "head_object", "get_object"):
        monkeypatch.setattr(s3, call, denied)
    for work in (
        lambda: bucket.publish("manifest", b"one"),
        lambda: bucket.place("a", Content.of(BODY)),
        lambda: bucket.read_back(sound, None),
        lambda: bucket.get("manifest"),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            work()
    monkeypatch.setattr(s3, "head_object", lambda **_: (_ for _ in ()).throw(refused("404", 404)))
    with pytest.raises(ClientError, match="AccessDenied"):
        bucket.place("b", Content.of(BODY))
    assert asked == ["manifest", "a", "sound", "manifest", "b"]


@pytest.mark.parametrize("code", ["NoSuchKey", "NoSuchVersion", "InvalidRange"])
def test_an_object_whose_version_or_length_is_gone_is_unsound(
    bucket: ArchiveBucket, s3: S3, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    item = bucket.place("a", Content.of(BODY))
    monkeypatch.setattr(s3, "get_object", lambda **_: (_ for _ in ()).throw(refused(code)))
    with pytest.raises(Unsound, match=f"{PREFIX}/a is not there"):
        bucket.read_back(item, None)


def test_a_manifest_whose_answer_was_lost_counts_when_it_is_there(bucket: ArchiveBucket, s3: S3) -> None:
    s3.cut_off = 1
    assert bucket.publish("manifest", b"first") == b"first"
    assert [call for call in s3.calls if call.startswith("put")] == ["put manifest"] * 2, "the second is refused"


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
def test_only_what_may_pass_is_tried_again(
    error: Exception, passes: bool, bucket: ArchiveBucket, said: list[Any]
) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    assert may_pass(error) is passes
    with pytest.raises(type(error)):
        bucket.patiently(fail)
    assert len(calls) == (TRIES if passes else 1)
    why = f"{type(error).__name__}: {error}"
    assert said == ([("again", {"why": why, "tries_left": left}) for left in (2, 1)] if passes else [])


def test_pauses_double(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("infra.archive.bucket.time.sleep", pauses.append)
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

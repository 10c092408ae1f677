"""What the archive's bucket asks of S3, request by request: how large, of which version, and once more after what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import HTTPClientError

from infra.archive.bucket import ArchiveBucket, Content, Unsound
from infra.aws.transfer import MIB
from tests.unit.archive.archive_story import BODY, LARGE, PREFIX, S3, Wire, a_file, bucket_of


@pytest.fixture
def s3() -> S3:
    return S3()


@pytest.fixture
def wire(s3: S3) -> Wire:
    return Wire(s3)


@pytest.fixture
def bucket(s3: S3, wire: Wire) -> ArchiveBucket:
    return bucket_of(s3, wire, [])


@pytest.mark.parametrize("call", ["head_object", "put_object", "get_object"])
def test_a_line_that_breaks_once_is_tried_again(
    bucket: ArchiveBucket, s3: S3, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    sound, broken = getattr(s3, call), list[str]()

    def breaks_once(**how: Any) -> Any:
        if not broken:
            broken.append(how["Key"])
            raise HTTPClientError(error="cut off")
        return sound(**how)

    monkeypatch.setattr(s3, call, breaks_once)
    bucket.read_back(bucket.place("a", Content.of(BODY)), None)
    assert broken == [f"{PREFIX}/a"]


def test_a_mistake_of_ours_is_raised_at_once(bucket: ArchiveBucket) -> None:
    calls: list[int] = []

    def mistaken() -> None:
        calls.append(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bucket.patiently(mistaken)
    assert calls == [1]


@pytest.mark.parametrize("size", [1, MIB])
def test_a_file_of_one_part_is_sent_and_read_in_one_piece(
    bucket: ArchiveBucket, s3: S3, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path, content = a_file(tmp_path, b"x" * size)
    item = bucket.place("a", content)
    bucket.read_back(item, tmp_path / "back")
    assert s3.held[item.key][0] == (tmp_path / "back").read_bytes() == path.read_bytes()
    assert s3.calls == ["put a", "get a"] and not wire.sent and not wire.got


def test_a_version_is_asked_for_only_where_there_is_one(
    bucket: ArchiveBucket, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, asked, get = bucket.place("a", Content.of(BODY)), list[dict[str, Any]](), s3.get_object

    def noted(**how: Any) -> dict[str, Any]:
        asked.append(how)
        return get(**how)

    monkeypatch.setattr(s3, "get_object", noted)
    bucket.read_back(item, None)
    bucket.read_back(item.model_copy(update={"version": "v7"}), None)
    where = {"Bucket": "b", "Key": f"{PREFIX}/a"}
    assert asked == [where, {**where, "VersionId": "v7"}]


def test_a_large_object_of_another_length_is_told_as_such(bucket: ArchiveBucket, s3: S3, tmp_path: Path) -> None:
    _, content = a_file(tmp_path)
    item = bucket.place("large", content)
    s3.held[item.key] = (LARGE[:-1], {})
    with pytest.raises(Unsound, match=f"{len(LARGE) - 1} bytes, not {len(LARGE)}"):
        bucket.read_back(item, None)


def test_all_uploads_of_a_page_are_aborted_though_an_endpoint_lists_others_between_them(
    bucket: ArchiveBucket, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"Key": key, "UploadId": key} for key in (f"{PREFIX}-other/a", f"{PREFIX}/a", f"{PREFIX}/b")]
    monkeypatch.setattr(s3, "_list_multipart_uploads", lambda **_: [{"Uploads": rows}])
    aborted: list[str] = []
    monkeypatch.setattr(s3, "abort_multipart_upload", lambda **how: aborted.append(how["UploadId"]))
    assert bucket.abort_uploads() == 2 and aborted == [f"{PREFIX}/a", f"{PREFIX}/b"]

"""The archive's source where checkpoints and data lie in S3: whole steps only, and held-out data beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.archive.from_s3 import BucketSource, places_of
from infra.archive.settings import ArchiveConfig
from infra.checkpoints.place import Altered, BucketPlace, bucket_place
from infra.errors import PermanentError
from tests.manifests import manifest_of
from tests.part import part
from trainer.contract import COMMITTED_NAME, Shard, step_folder

TIER, DATA = "s3://archive/copies/tiny/id", "s3://data/datasets/d"
Said = list[dict[str, Any]]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with mock_aws():
        made = boto3.client("s3", region_name="us-east-1")
        for bucket in ("archive", "data"):
            made.create_bucket(Bucket=bucket)
        yield made


def put(s3: Any, step: int, *, manifest: bool = True, spoil: bytes | None = None) -> None:
    prefix, content = f"copies/tiny/id/{step_folder(step)}", f"of step {step}".encode()
    shard = Shard(file="attempt-0001/a.pt", size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), rank=0)
    s3.put_object(Bucket="archive", Key=f"{prefix}/{shard.file}", Body=content if spoil is None else spoil)
    if manifest:
        sealed = manifest_of(step, (shard,)).serialize()
        s3.put_object(Bucket="archive", Key=f"{prefix}/{COMMITTED_NAME}", Body=sealed)


def source(s3: Any, root: Path, committed: int, said: Said) -> BucketSource:
    config = part(ArchiveConfig, campaign="tiny", identity="", committed_step=committed, shared_tier=TIER)
    return BucketSource(config, s3, root / "tiny", lambda event, **told: said.append({"event": event, **told}))


def test_the_newest_step_comes_whole_to_the_disk_and_goes_again(s3: Any, tmp_path: Path) -> None:
    for step in (10, 20):
        put(s3, step)
    put(s3, 30, manifest=False)  # its node died on the way
    said: Said = []
    found = source(s3, tmp_path, 10, said).sound()
    folder, manifest = next(found)
    assert manifest.step == 20 and (folder / "attempt-0001/a.pt").read_bytes() == b"of step 20"
    assert next(found)[1].step == 10 and not folder.exists(), "one step at a time has room"


@pytest.mark.parametrize("spoil", [b"of step 2X", b"short"])
def test_a_damaged_step_is_refused_by_name_and_the_one_before_is_taken(spoil: bytes, s3: Any, tmp_path: Path) -> None:
    put(s3, 10)
    put(s3, 20, spoil=spoil)
    said: Said = []
    one = source(s3, tmp_path, 20, said)
    one._bucket.__dict__["tries"] = 1
    folder, manifest = next(one.sound())
    assert manifest.step == 10 and one.refused[0].startswith("step-00000020:")
    assert not (tmp_path / "tiny/step-00000020").exists() and folder.exists()


class Ranges:
    """Downloads as the transfer does, in one range."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3

    def download(self, key: dict[str, str], size: int, file: Any, start: int, digest: Any) -> None:
        answer = self._s3.get_object(Bucket="archive", **key, Range=f"bytes={start}-{size - 1}")
        content = answer["Body"].read()
        digest.update(content)
        if file is not None:
            file.write(content)
            file.flush()


@pytest.mark.parametrize(
    ("left", "kept_bytes"),
    [(b"", 0), (b"of st", 5), (b"of step 20", 10), (b"of step 20 and more", 0), (b"?? st", 0)],
)
def test_what_an_earlier_try_left_is_gone_on_from_where_it_is_the_beginning(
    left: bytes, kept_bytes: int, s3: Any, tmp_path: Path
) -> None:
    put(s3, 20)
    place = BucketPlace(s3, "archive", "copies/tiny/id", Ranges(s3))  # type: ignore[arg-type]
    (shard,) = place.manifest(20).shards
    (tmp_path / ".a.pt.partial").write_bytes(left)
    assert place.fetch(20, shard, tmp_path / "a.pt") == kept_bytes
    assert (tmp_path / "a.pt").read_bytes() == b"of step 20" and len(list(tmp_path.iterdir())) == 1


def test_what_is_missing_or_altered_in_the_bucket_is_said(s3: Any, tmp_path: Path) -> None:
    put(s3, 20, spoil=b"of step 2X")
    place = BucketPlace(s3, "archive", "copies/tiny/id", Ranges(s3))  # type: ignore[arg-type]
    (shard,) = place.manifest(20).shards
    with pytest.raises(Altered, match=f"not {shard.sha256}"):
        place.fetch(20, shard, tmp_path / "a.pt")
    assert not list(tmp_path.iterdir()) and str(place.fault(20, shard)).startswith("SHA-256 ")
    with pytest.raises(Altered, match=r"gone\.json: missing"):
        place.content(20, "gone.json")


def test_a_step_that_the_watch_distrusts_is_refused_although_its_bytes_are_whole(s3: Any, tmp_path: Path) -> None:
    for step in (10, 20):
        put(s3, step)
    ban = json.dumps({"attempt": 1, "first": 15, "last": 20, "why": "the loss rose"}).encode()
    s3.put_object(Bucket="archive", Key="copies/tiny/id/watch/ban-0001-00000015.json", Body=ban)
    one = source(s3, tmp_path, 20, [])
    assert next(one.sound())[1].step == 10
    assert one.refused == ["step-00000020: the watch distrusts it: the loss rose"]


def test_a_step_that_the_record_knows_and_nobody_finds_ends_the_archive(s3: Any, tmp_path: Path) -> None:
    put(s3, 10)
    with pytest.raises(PermanentError, match="newest committed checkpoint is not on the shared tier"):
        next(source(s3, tmp_path, 20, []).sound())


def test_held_out_data_and_tokenizer_come_from_the_data_bucket(s3: Any, tmp_path: Path) -> None:
    files = {"tokenizer.json": b"{}", "held.bin": b"1", "held.idx": b"2", "train.bin": b"much"}
    shard = {"file": "held.bin", "sha256": "x", "index_sha256": "y"}
    files["manifest.json"] = json.dumps({"validation": [shard]}).encode()
    for name, content in files.items():
        s3.put_object(Bucket="data", Key=f"datasets/d/{name}", Body=content)
    config = part(ArchiveConfig, campaign="tiny", shared_tier=TIER, data_source=DATA)
    places = places_of(config, s3, tmp_path, lambda event, **told: None)
    assert {path.name for path in places.data.iterdir()} == {*files} - {"train.bin"}
    s3.delete_object(Bucket="data", Key="datasets/d/held.idx")
    (tmp_path / "again").mkdir()
    with pytest.raises(PermanentError, match=r"held\.idx"):
        places_of(config, s3, tmp_path / "again", lambda event, **told: None)


def test_the_steward_sees_the_tier_as_it_sees_a_folder(s3: Any) -> None:
    assert bucket_place(s3, "") is None
    place = bucket_place(s3, TIER)
    assert isinstance(place, BucketPlace) and place.newest() == -1
    put(s3, 10)
    put(s3, 20)
    put(s3, 30, manifest=False)
    assert place.newest() == 20
    rows = [(row.tier, row.step, row.committed) for row in place.shared_rows("tiny")]
    assert rows == [("shared", 30, False), ("shared", 20, True), ("shared", 10, True)]
    (shard,) = place.manifest(20).shards
    place.send(20, shard, s3, "data", "carried")
    assert s3.get_object(Bucket="data", Key="carried")["Body"].read() == b"of step 20"
    with pytest.raises(OSError, match="no such bucket"):
        BucketPlace(s3, "gone", "copies", place.transfer).newest()

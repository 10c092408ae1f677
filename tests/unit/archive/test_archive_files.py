"""What the archive takes from disks and records: plain files only, the held-out data, the record; and whose it is."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.archive import files, model
from infra.archive.bucket import ArchiveBucket, ArchivedObject, Content
from infra.archive.files import workspace
from infra.archive.manifest import ArchiveManifest, EvaluationProof, parse
from infra.archive.surroundings import held_out, records_of
from infra.errors import PermanentError
from infra.plain_files import has_size, open_plain, plain_bytes, sha256_of

BODY = b"held out"
DIGEST = hashlib.sha256(BODY).hexdigest()


# Files


def test_a_plain_file_is_read_and_nothing_else_is(tmp_path: Path) -> None:
    plain, link, pipe = tmp_path / "plain", tmp_path / "link", tmp_path / "pipe"
    plain.write_bytes(BODY)
    link.symlink_to(plain)
    os.mkfifo(pipe)  # nobody writes into it: who opened it like a file would wait for ever
    assert plain_bytes(plain) == BODY and sha256_of(plain) == DIGEST and has_size(plain, len(BODY))
    assert not has_size(plain, len(BODY) + 1)
    for other in (link, pipe, tmp_path, tmp_path / "none"):
        with pytest.raises(OSError):
            open_plain(other)
        assert sha256_of(other) is None
    for other in (link, pipe, tmp_path, tmp_path / "none"):
        size = other.stat().st_size if other.exists() else 0
        assert not has_size(other, size)


def test_what_is_no_plain_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="not a plain file"):
            open_plain(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_run_has_a_folder_of_its_own_and_clears_away_what_killed_ones_left(tmp_path: Path) -> None:
    dead, older, other = tmp_path / "archive-dead", tmp_path / "archive-older", tmp_path / "checkpoints"
    for folder in (dead, older, other):
        folder.mkdir()
        (folder / "shard").write_bytes(BODY)
    (tmp_path / "archive-file").write_bytes(b"no folder")
    os.mkfifo(tmp_path / "archive-pipe")  # nobody writes into it: who opened it like a file would wait for ever
    with workspace(tmp_path) as mine:
        assert mine.parent == tmp_path and mine.is_dir() and not list(mine.iterdir())
        assert not dead.exists() and not older.exists() and (other / "shard").read_bytes() == BODY
        (mine / "shard").write_bytes(BODY)
        with workspace(tmp_path) as second:
            assert second != mine and (mine / "shard").exists(), "one that runs is left alone"
        assert not second.exists() and mine.exists()
    assert not mine.exists()


def test_a_run_s_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "archive-dead").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with workspace(tmp_path), workspace(tmp_path):
        assert len(os.listdir("/proc/self/fd")) == before + 2, "a lock for each that runs"
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_cleared_away_is_left_and_a_mistake_of_ours_is_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def end(error: Exception) -> None:
        (tmp_path / "archive-dead").mkdir(exist_ok=True)
        monkeypatch.setattr(files, "shutil", SimpleNamespace(rmtree=lambda _: (_ for _ in ()).throw(error)))
        with workspace(tmp_path) as mine:
            assert mine.is_dir()

    end(PermissionError("not ours"))
    with pytest.raises(KeyError, match="mine"):
        end(KeyError("mine"))


def test_a_link_is_no_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "archive-link").symlink_to(tmp_path / "others")
    with workspace(tmp_path):
        assert (tmp_path / "archive-link").is_symlink() and (tmp_path / "others").is_dir()


# Data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    told = [
        {"file": "validation-0.bin", "sha256": "a" * 64},
        {"file": "validation-1.bin", "sha256": "b" * 64, "index_sha256": "c" * 64},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"train": [{"file": "train-0.bin"}], "validation": told}))
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    for name in ("validation-0.bin", "validation-1.bin", "validation-1.idx", "train-0.bin", "validation-2.bin"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_held_out_data_come_with_the_digests_of_their_manifest_and_training_data_stay(data: Path) -> None:
    found = held_out(data)
    assert set(found) == {"manifest.json", "tokenizer.json", "validation-0.bin", "validation-1.bin", "validation-1.idx"}
    # The manifest's word, not what the file holds by now: else a spoiled file would be archived as sound.
    told = {name: (one.source, one.size_bytes, one.sha256) for name, one in found.items() if name.startswith("v")}
    assert told == {
        "validation-0.bin": (data / "validation-0.bin", 16, "a" * 64),
        "validation-1.bin": (data / "validation-1.bin", 16, "b" * 64),
        "validation-1.idx": (data / "validation-1.idx", 16, "c" * 64),
    }
    assert found["tokenizer.json"] == Content(b"{}", 2, hashlib.sha256(b"{}").hexdigest())
    assert found["manifest.json"].source == (data / "manifest.json").read_bytes()


@pytest.mark.parametrize("lost", ["validation-0.bin", "validation-1.idx"])
def test_a_held_out_shard_that_is_missing_is_no_archive(data: Path, lost: str) -> None:
    (data / lost).unlink()
    with pytest.raises(PermanentError, match="held-out shard is missing") as told:
        held_out(data)
    assert lost in str(told.value.seen)


# The model

LOSS = '{"evaluation_loss": 2.25}'


def test_the_model_is_evaluated_and_exported_by_one_process_of_the_trainers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **how: Any) -> Any:
        assert how == {"capture_output": True, "text": True}
        asked.append(words)
        return SimpleNamespace(returncode=0, stdout=f"a warning of torch\n{LOSS}\nanother\n", stderr="")

    monkeypatch.setattr(model.subprocess, "run", run)
    loss = model.evaluate(tmp_path)
    assert loss == 2.25 and isinstance(loss, float)
    assert model.evaluate(tmp_path, tmp_path / "out") == 2.25
    where = ["--config", "/config/train.json", "--data", "/data"]
    assert asked[0] == [sys.executable, "-m", "trainer.builtin.evaluate", "--checkpoint", str(tmp_path), *where]
    assert asked[1:] == [[*asked[0], "--export", str(tmp_path / "out")]]


@pytest.mark.parametrize("code", [1, -9])
@pytest.mark.parametrize(("output", "what"), [("", "could not be evaluated"), (f"{LOSS}\n", "could not be exported")])
def test_a_program_that_fails_ends_the_archive_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, output: str, what: str
) -> None:
    answer = subprocess.CompletedProcess([], code, output, "early" * 200 + "its last words")
    monkeypatch.setattr(model.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(PermanentError, match=what) as told:
        model.evaluate(tmp_path, tmp_path / "out")
    seen = str(told.value.seen)
    assert seen.endswith("its last words") and len(seen) <= 500


# The manifest


def manifest(**told: Any) -> ArchiveManifest:
    plain = {"campaign": "tiny", "identity": "own", "step": 40, "tokens": 1, "proof": EvaluationProof.RECORDED}
    plain |= {"recorded_evaluation_loss": 2.0, "reference_evaluation_loss": 2.0, "restored_evaluation_loss": 2.0}
    return ArchiveManifest.model_validate({**plain, "objects": (), "refused": (), **told})


def test_an_archive_accounts_for_what_it_holds_and_for_what_it_names_as_refused() -> None:
    one = manifest(refused=("step-00000050: no shard", "step-00000060: spoiled", "a note"))
    assert one.accounts_for == 60 and manifest().accounts_for == 40
    assert [step for step in (0, 40, 41, 50, 55, 60, 61) if one.names(step)] == [40, 50, 60]
    assert manifest(refused=("step-00000030: x",)).accounts_for == 40
    assert manifest(refused=("step-000000500: x",)).names(50) is False


def test_the_objects_of_a_folder_are_those_below_it() -> None:
    keys = ["c/golden/step-1/a", "c/huggingface/golden.txt", "c/record/golden-x/a", "c/train.json"]
    objects = tuple(ArchivedObject(key=key, size_bytes=1, sha256="") for key in keys)
    assert [item.key for item in manifest(objects=objects).below("golden")] == ["c/golden/step-1/a"]


def test_only_a_sound_manifest_of_this_very_campaign_is_taken() -> None:
    body = manifest().model_dump_json().encode()
    assert parse(body, "tiny", "own") == manifest()
    for campaign, identity, word in (("tiny-2", "own", "of another campaign"), ("tiny", "other", "of this name")):
        with pytest.raises(PermanentError, match=word):
            parse(body, campaign, identity)
    with pytest.raises(PermanentError, match="of this name"):
        parse(body, "tiny")
    old = manifest(identity="")
    assert parse(old.model_dump_json().encode(), "tiny") == old
    for damaged in (body[:-1], b"", b"{}", body.replace(b'"step":40', b'"step":"?"')):
        with pytest.raises(PermanentError, match="is damaged"):
            parse(damaged, "tiny", "own")


# The record


class Record(SimpleNamespace):
    """The campaign's part of a state bucket; reads fail so many times before they are answered."""

    bucket, prefix = "state", "campaigns/tiny"

    def keys(self, below: str) -> list[str]:
        assert below == ""
        return [key for key in self.held if key.startswith(f"{self.prefix}/")]

    def get(self, key: str) -> bytes | None:
        body: bytes | None = self.held.get(key)
        return body


@pytest.fixture
def record() -> Iterator[Record]:
    own = {"spec.json": b"spec", "events/1.json": b"one", "plan.json": b"plan", "leases/x": b"?", "bake/y": b"?"}
    own |= {
        "requests/z": b"?",
        "carried/z": b"?",
        "logs/pod-a/000000.log": b"first ",
        "logs/pod-a/000001.log": b"second",
    }
    own |= {"logs/pod-b/000000.log": b"other"}
    own |= {f"series/{name}.om.gz": name.encode() for name in ("1000000900-1000001800", "1000000000-1000000900")}
    bodies = {f"campaigns/tiny/{name}": body for name, body in own.items()}
    yield Record(held=bodies | {"images/i.json": b"image", "campaigns/tiny-2/spec.json": b"?"})


def test_the_record_is_archived_with_the_series_and_each_pods_log_in_one_piece(record: Record, tmp_path: Path) -> None:
    bucket: Any = ArchiveBucket(None, "a", "p", lambda *_, **__: None, 1, timedelta(0))
    records = records_of(bucket, record, "images/i.json", tmp_path)  # type: ignore[arg-type]
    assert set(records) == {
        "record/spec.json", "record/events/1.json", "record/plan.json", "record/images/i.json",
        "record/logs/pod-a.log", "record/logs/pod-b.log", "record/series.om.gz",
    }  # fmt: skip
    assert records["record/spec.json"].source == b"spec" and records["record/images/i.json"].source == b"image"
    path = records["record/logs/pod-a.log"].source
    assert isinstance(path, Path) and path.read_bytes() == b"first second" and tmp_path in path.parents
    assert records["record/logs/pod-a.log"].sha256 == hashlib.sha256(b"first second").hexdigest()
    path = records["record/series.om.gz"].source
    assert isinstance(path, Path) and path.read_bytes() == b"1000000000-10000009001000000900-1000001800"
    again = records_of(bucket, record, "images/none.json", tmp_path)  # type: ignore[arg-type]
    assert set(again) == set(records) - {"record/images/i.json"}, "a try after a killed one"


def test_a_campaign_without_a_spec_has_no_record_to_archive(record: Record, tmp_path: Path) -> None:
    del record.held["campaigns/tiny/spec.json"]
    bucket: Any = ArchiveBucket(None, "a", "p", lambda *_, **__: None, 1, timedelta(0))
    with pytest.raises(PermanentError, match="record cannot be found") as told:
        records_of(bucket, record, "images/i.json", tmp_path)  # type: ignore[arg-type]
    assert "in state" in str(told.value.seen)

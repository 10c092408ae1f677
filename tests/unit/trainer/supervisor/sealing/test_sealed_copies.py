"""What is sealed stays as it was, whatever the job does to its own files."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.supervisor_tier import IDENTITY, JobDisk, put
from trainer.contract.checkpoint import parse_manifest
from trainer.contract.sealed import serialize
from trainer.supervisor import seal
from trainer.supervisor.formats import files_of
from trainer.supervisor.sealing import copying


def test_three_steps_of_one_file_that_is_written_in_place_are_three(disk: JobDisk) -> None:
    for step in (10, 20, 30):
        with open(disk.own / "ckpt.pt", "w") as file:
            file.write(f"{step} " + "x" * 20_000)
        if step == 10:
            (disk.own / "ckpt.pt").touch()
        disk.seal("ckpt.pt", step)
    (disk.own / "ckpt.pt").write_text("torn")
    for step in (30, 20, 10):
        assert disk.fault(step) == "" and disk.laid_back(step).read_text().split()[0] == str(step)


def test_a_job_that_writes_into_what_was_laid_back_spoils_no_sealed_step(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "ten")
    disk.seal("step-10")
    with open(disk.laid_back() / "state", "r+") as file:
        file.write("torn")
    assert disk.fault() == ""


def test_a_sealed_file_has_no_name_in_the_jobs_folder(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "ten")
    disk.seal("step-10")
    assert {path.stat().st_nlink for path in disk.shards()} == {1}
    disk.laid_back()
    assert {path.stat().st_nlink for path in disk.shards()} == {1}


@pytest.mark.parametrize("way", ["reference", "direct", "not direct", "direct refused"])
@pytest.mark.parametrize("size", [0, 1, 2**21, 2**21 + 1, 3 * 2**21 + 5])
def test_every_way_to_copy_gives_the_same_bytes_and_their_digest(
    way: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    content = os.urandom(size)
    source.write_bytes(content)
    set_flags, write, invalid = fcntl.fcntl, os.pwrite, OSError(22, "Invalid argument")

    def clone(writing: int, request: int, reading: int) -> int:  # as a file system that can would do it
        assert request == 0x40049409
        write(writing, content, 0)
        return 0

    def flagged(file: int, command: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise invalid
        return set_flags(file, command, flags)

    def written(file: int, chunk: memoryview, offset: int) -> int:
        if set_flags(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise invalid
        return write(file, chunk, offset)

    if way == "reference":
        monkeypatch.setattr(copying.fcntl, "ioctl", clone)
    if way == "not direct":
        monkeypatch.setattr(copying.fcntl, "fcntl", flagged)
    if way == "direct refused":
        monkeypatch.setattr(os, "pwrite", written)
    assert copying.copy(source, target) == copying.digest_of(source) == copying.digest_of(target)
    assert target.read_bytes() == content


def test_a_copy_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"1" * 10)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "pwrite", lambda *given: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"):
        copying.copy(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_step_that_is_sealed_again_in_one_attempt_replaces_all_of_the_first(
    disk: JobDisk,
) -> None:
    for text in ("one", "two", "three"):
        put(disk.own / "step-10/state", text)
        put(disk.own / f"step-10/{text}", text)
        manifest = disk.seal("step-10")
    assert disk.fault() == "" and (disk.laid_back() / "state").read_text() == "three"
    assert len(disk.shards()) == 5 == len(parse_manifest(manifest.read_bytes()).shards)


def test_a_sealing_that_fails_leaves_the_earlier_one_of_the_step(
    disk: JobDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(disk.own / "step-10/state", "one")
    first_manifest = disk.seal("step-10").read_bytes()
    put(disk.own / "step-10/state", "two")
    sync = seal.sync

    def fails(folder: Path) -> None:
        sync(folder)
        if folder.name == "step-00000010" and (folder / seal.MANIFEST).read_bytes() != first_manifest:
            raise OSError(5, "Input/output error")

    for attempt in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(seal, "sync", fails)
            with pytest.raises(OSError, match="Input/output"):
                disk.seal("step-10", attempt=attempt)
        assert disk.fault() == "" and len(disk.shards()) == 2
        assert (disk.tier / "step-00000010/manifest.json").read_bytes() == first_manifest


def test_a_newer_attempt_seals_a_step_again_and_an_older_one_does_not(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "one")
    disk.seal("step-10")
    put(disk.own / "step-10/state", "two")
    assert parse_manifest(disk.seal("step-10", attempt=3).read_bytes()).attempt == 3
    with pytest.raises(ValueError, match="attempt 3 has sealed this step"):
        disk.seal("step-10", attempt=2)
    assert disk.fault() == "" and {path.parent.name for path in disk.shards()} == {"attempt-0003"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: put(root / "a", "A"), "a was written"),
        (lambda root: put(root / "more", "m"), "more came"),
        (lambda root: (root / "empty").mkdir(), "empty came"),
        (lambda root: (root / "l").symlink_to("a"), "l came"),
        (lambda root: (put(root / "b.tmp", "b"), (root / "b.tmp").rename(root / "b")), "b was written"),
        (lambda root: os.utime(root / "a", (1, 1)), "a was written"),
    ],
)
def test_a_checkpoint_that_changes_after_its_first_file_was_copied_is_not_sealed(
    change: Callable[[Path], object], said: str, disk: JobDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = disk.own / "step-10"
    for name in "ab":
        put(root / name, name)
    checkpoint = seal.copy_checkpoint

    def late(*given: Any) -> Any:
        rows = checkpoint(*given)
        change(root)
        return rows

    monkeypatch.setattr(seal, "copy_checkpoint", late)
    with pytest.raises(ValueError, match=said):
        disk.seal("step-10")
    assert seal.committed(disk.tier) == [] and not (disk.tier / "step-00000010").exists()


def test_a_file_that_is_written_while_it_is_copied_is_not_sealed(
    disk: JobDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest = put(disk.own / "step-10/a", "a" * 100), copying._digest

    def slow(*given: Any) -> Any:
        made = digest(*given)
        with open(path, "r+") as file:
            file.write("b")
        return made

    monkeypatch.setattr(copying, "_digest", slow)
    with pytest.raises(ValueError, match="a was written while it was sealed"):
        disk.seal("step-10")
    assert not (disk.tier / "step-00000010").exists()


def test_a_checkpoint_that_the_job_removes_while_it_is_copied_is_whole_all_the_same(
    disk: JobDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        put(disk.own / "step-10" / name, name)
    copy = copying.copy

    def removed_first(source: Path, *given: Any) -> Any:
        for path in list((disk.own / "step-10").glob("*")):
            path.unlink(missing_ok=True)
        return copy(source, *given)

    monkeypatch.setattr("trainer.supervisor.sealing.survey.copy", removed_first)
    disk.seal("step-10")
    assert disk.fault() == "" and sorted(path.name for path in disk.laid_back().iterdir()) == ["a", "b", "c"]


def test_what_is_gone_altogether_is_no_difference(disk: JobDisk) -> None:
    root = put(disk.own / "step-10/a", "a").parent
    survey = seal.survey_of(root, files_of(root), disk.own, False)
    put(root / "b", "b")
    assert seal.difference(survey, root, files_of(root), disk.own, False) == "b came while it was copied"
    shutil.rmtree(root)
    assert seal.difference(survey, root, [root / "a"], disk.own, False) == ""


def test_a_part_of_a_folder_is_sealed_and_laid_back_without_what_stands_beside(disk: JobDisk) -> None:
    files = [put(disk.own / "run/ckpt_10.pt", "ten"), put(disk.own / "run/deep/opt_10.pt", "opt")]
    put(disk.own / "run/log.txt", "log")
    seal.seal(disk.own / "run", files, disk.own, disk.tier, 10, IDENTITY, 0, None, part=True)
    assert len(disk.shards()) == 3 and disk.fault() == ""
    put(files[0], "torn")
    put(disk.own / "run/log.txt", "longer")
    files[1].unlink()
    root = disk.laid_back()
    assert [path.read_text() for path in files] == ["ten", "opt"] and (root / "log.txt").read_text() == "longer"


def test_a_step_in_the_older_form_is_read_and_laid_back(disk: JobDisk) -> None:
    rows = []
    for name, text in (("step-10%2F%2F.metadata", "m"), ("step-10%2F%2Fdeep%2Fshard", "s")):
        put(disk.tier / "step-00000010/attempt-0001" / name, text)
        digest = sha256(text.encode()).hexdigest()
        rows.append({"file": f"attempt-0001/{name}", "size_bytes": 1, "sha256": digest, "rank": 0})
    put(disk.tier / "step-00000010/manifest.json", serialize(IDENTITY, 10, 0, None, rows).decode())
    assert disk.fault() == "" and seal.origin(disk.tier, 10) == "step-10"
    assert (disk.laid_back() / "deep/shard").read_text() == "s"


def test_a_manifest_or_a_tree_that_leads_out_is_refused(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "s")
    path = disk.seal("step-10")
    shards = json.loads(path.read_text())["shards"]
    for file in ("../../own/step-10/state", "/etc/hostname", "attempt-0001/../../../x", "attempt-0001/deep/x"):
        path.write_bytes(serialize(IDENTITY, 10, 0, None, [{**shards[0], "file": file}]))
        assert "is no file of a step" in disk.fault()


def test_a_manifest_that_is_spoilt_keeps_no_step_from_being_sealed_again(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "s")
    disk.seal("step-10").write_text("{}")
    assert disk.fault() == "no manifest: KeyError: 'seal'"
    (disk.tier / "step-00000010/manifest.json").write_text("{")
    manifest = disk.seal("step-10", attempt=2)
    assert disk.fault() == "" and {row.rank for row in parse_manifest(manifest.read_bytes()).shards} == {0}
    assert {path.parent.name for path in disk.shards()} == {"attempt-0002"}


def test_a_tier_that_cannot_be_seen_for_a_moment_loses_no_step(disk: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk.own / "step-10/state", "s")
    disk.seal("step-10")
    lstat = os.lstat

    def fails(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(disk.tier / "step-00000010")):
            raise OSError(5, "Input/output error")
        return lstat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fails)
        assert seal.committed(disk.tier) == [10]
        with pytest.raises(OSError, match="Input/output error"):
            seal.in_size(disk.tier / "step-00000010", is_whole=False)
    assert seal.in_size(disk.tier / "step-00000010") and disk.fault() == ""


def test_a_note_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size) or fsync(file))
    seal.publish(tmp_path / "note", b"12345")
    assert sizes[0] == 5 and (tmp_path / "note").read_bytes() == b"12345"


def test_what_cannot_be_removed_keeps_no_attempt_from_beginning(disk: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk.tier / "step-00000010/attempt-0001/half", "h")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda *given, **more: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        seal.tidy(disk.tier)
    assert seal.started_steps(disk.tier) == [10] and seal.committed(disk.tier) == []
    seal.tidy(disk.tier)
    assert seal.started_steps(disk.tier) == []


def test_what_is_laid_back_is_on_the_disk_under_its_name(disk: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk.own / "runs/step-10/state", "s")
    disk.seal("runs/step-10")
    syncs: list[tuple[Path, bool]] = []
    sync = seal.sync
    monkeypatch.setattr(
        seal, "sync", lambda folder: syncs.append((folder, (disk.own / "runs/step-10").exists())) or sync(folder)
    )
    shutil.rmtree(disk.own / "runs/step-10")
    disk.laid_back()
    assert syncs[-1] == (disk.own / "runs", True)


def test_what_an_earlier_sealing_left_in_other_attempts_goes_with_the_new_manifest(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "one")
    for attempt in (1, 2, 5):
        put(disk.tier / f"step-00000010/attempt-000{attempt}/left", "over")
    disk.seal("step-10", attempt=2)
    disk.seal("step-10", attempt=4)
    assert [path.name for path in sorted((disk.tier / "step-00000010").iterdir())] == ["attempt-0004", "manifest.json"]

"""Folders that a supervisor copies to its node's disk before the job starts: whole, once, and only what fits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worlds.supervisor_tier import JobNode
from trainer.contract import ExitCode
from trainer.supervisor import staging
from trainer.supervisor.job import Job
from trainer.supervisor.staging import Unstaged

FILES = {"a.bin": b"a" * 3000, "deep/er/b.bin": b"b" * 20, "empty": b""}
ALL = FILES | {"newest": FILES["deep/er/b.bin"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "source" / "newest").symlink_to("deep/er/b.bin")
    return tmp_path / "source"


def stage(source: Path, limit: int = 1 << 20) -> list[dict[str, Any]]:
    """Stage the folder beside itself; return what was said."""
    said: list[dict[str, Any]] = []
    target = source.parent / "disk/corpus"
    staging.stage("corpus", source, target, limit, lambda event, **f: said.append({"event": event, **f}), lambda: False)
    return said


def content(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of all files but links, by os.walk alone."""
    paths = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if not path.is_symlink()}


def test_all_files_are_there_with_what_links_lead_to_and_what_was_done_is_said(source: Path) -> None:
    first, last = stage(source)
    copy = source.parent / "disk/corpus"
    assert content(copy) == ALL and not (copy / "newest").is_symlink()
    assert (first["event"], first["bytes"], first["kept_files"]) == ("staging", 3040, 0)
    assert (last["event"], last["mount"], last["bytes"], last["files"]) == ("staged", "corpus", 3040, 4)


def test_a_later_attempt_on_the_node_copies_what_has_changed_and_a_new_node_copies_all(source: Path) -> None:
    stage(source)
    (source / "a.bin").write_bytes(b"c" * 3000)
    (source / "deep/er/b.bin").unlink()
    (source / "newest").unlink()
    os.utime(source / "a.bin", ns=(1, 1))
    inode = (source.parent / "disk/corpus/empty").stat().st_ino
    assert stage(source)[0]["bytes"] == 3000
    copy = source.parent / "disk/corpus"
    assert content(copy) == {"a.bin": b"c" * 3000, "empty": b""} and (copy / "empty").stat().st_ino == inode
    shutil.rmtree(copy)
    assert stage(source)[0]["bytes"] == 3000 and content(copy) == {"a.bin": b"c" * 3000, "empty": b""}


def test_a_copy_that_was_broken_off_or_has_another_size_is_made_again(source: Path) -> None:
    stage(source)
    copy = source.parent / "disk/corpus"
    (copy / "a.bin.bivouac-partial").write_bytes(b"a")
    os.truncate(copy / "deep/er/b.bin", 7)
    assert stage(source)[0]["bytes"] == 20 and content(copy) == ALL


def test_a_folder_that_became_a_file_is_replaced_by_it(source: Path) -> None:
    stage(source)
    shutil.rmtree(source / "deep")
    (source / "newest").unlink()
    (source / "deep").write_bytes(b"file")
    stage(source)
    assert content(source.parent / "disk/corpus")["deep"] == b"file"


@pytest.mark.parametrize("kind", ["empty", "large", "no room", "link to a folder", "pipe"])
def test_what_cannot_be_staged_is_refused_with_the_reason(
    kind: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = {"empty": "no file", "large": "size_gib", "no room": "needs 3040 bytes more",
              "link to a folder": "neither a file", "pipe": "neither a file"}[kind]  # fmt: skip
    if kind == "empty":
        shutil.rmtree(source)
        source.mkdir()
    elif kind == "no room":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3039))
    elif kind == "link to a folder":
        (source / "deep/out").symlink_to("er")
    elif kind == "pipe":
        os.mkfifo(source / "pipe")
    with pytest.raises(Unstaged, match=reason):
        stage(source, limit=3039 if kind == "large" else 1 << 20)


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(source: Path) -> None:
    with pytest.raises(FileNotFoundError):
        stage(source / "not mounted")


@pytest.mark.parametrize("change", ["a file comes", "a file goes", "a file is written anew"])
def test_a_source_that_changes_meanwhile_is_copied_as_it_is_in_the_end(
    change: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, names = staging._copy, list[str]()

    def alter(path: Path, *others: Any) -> int:
        names.append(path.name)
        if len(names) == 1 and change == "a file comes":
            (source / "late").write_bytes(b"late")
        elif len(names) == 1 and change == "a file goes":
            path.unlink()
        elif len(names) == 1:
            size = copy(path, *others)
            path.write_bytes(b"anew")
            return size
        return copy(path, *others)

    monkeypatch.setattr(staging, "_copy", alter)
    stage(source)
    copies = content(source.parent / "disk/corpus")
    assert copies == content(source) | {"newest": FILES["deep/er/b.bin"]} and copies != ALL
    assert max(names.count(name) for name in names) <= 2, "what had been copied stays"


def test_a_source_that_never_stands_still_is_storage_and_no_fault_of_the_user(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, numbers = staging._copy, iter(range(1000))

    def change(path: Path, *others: Any) -> int:
        (source / f"late-{next(numbers)}").write_bytes(b"late")
        return copy(path, *others)

    monkeypatch.setattr(staging, "_copy", change)
    end = job_that_stages(source, tmp_path, 10_000)._stage()
    assert end is not None and end.code == ExitCode.STORAGE and "changed while it was copied" in end.detail


@pytest.mark.parametrize("target", ["gone.bin", "/data/of/another/machine", "itself"])
def test_a_link_to_nothing_ends_the_job_as_the_users_fault_and_names_both_ends(
    target: str, source: Path, tmp_path: Path
) -> None:
    (source / "deep/itself").symlink_to(target)
    end = job_that_stages(source, tmp_path, 10_000)._stage()
    assert end is not None and end.code == ExitCode.USER
    assert f"{source}/deep/itself is a link to {target}" in end.detail


def test_a_read_that_fails_ends_the_copy_with_its_own_error(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: Any) -> int:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(staging, "_copy", fail)
    with pytest.raises(OSError, match="Input/output error"):
        stage(source)


def job_that_stages(source: Path, tmp_path: Path, limit: int) -> Job:
    node = JobNode(tmp_path / "node")
    folders = {"staging": (str(source.parent), str(tmp_path / "disk")), "staged": {source.name: limit}}
    return Job({**node.job.config, **folders}, node.job.place, node.tier.parent, node.job.run_folder, node.tier)


def test_the_job_starts_after_its_folders_are_there_and_not_without(source: Path, tmp_path: Path) -> None:
    end = job_that_stages(source, tmp_path, 10)._stage()
    assert end is not None and end.code == ExitCode.USER and "size_gib" in end.detail
    assert job_that_stages(source, tmp_path, 10_000)._stage() is None
    assert content(tmp_path / "disk/source") == ALL


def test_a_copy_in_progress_is_a_sign_of_life_and_a_stop_ends_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_that_stages(source, tmp_path, 10_000)
    seen: list[Any] = []
    copy = staging._copy

    def look(*known: Any) -> int:
        job.heard = 0.0
        seen.append(job.status()["ranks"][0])
        job.stopping = "SIGTERM"
        return copy(*known)

    monkeypatch.setattr(staging, "_copy", look)
    end = job._stage()
    assert end is not None and end.code == ExitCode.INTERRUPTED
    assert seen[0]["alive"] and seen[0]["heartbeat_age_s"] == 0.0 and not job.status()["ranks"][0]["alive"]

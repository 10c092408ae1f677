"""What a node answers of the checkpoints on its own disk: rows, and a verdict on every byte of one step."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.supervisor_tier import TREE, JobDisk, put
from trainer.supervisor.sealing import listing


@pytest.fixture
def sealed(disk: JobDisk, monkeypatch: pytest.MonkeyPatch) -> JobDisk:
    """Two sealed steps, one of two files; the test's own priority stays as it is."""
    monkeypatch.setattr(listing.family, "give_way", lambda: None)
    put(disk.own / "ten.pt", "ten")
    disk.seal("ten.pt", 10)
    put(disk.own / "twenty/a", "aaaa"), put(disk.own / "twenty/b", "bb")
    disk.seal("twenty", 20)
    return disk


def answer(disk: JobDisk | None, path: str) -> tuple[int, Any] | None:
    said = listing.answer(path, None if disk is None else disk.tier, "tiny", "n0")
    return None if said is None else (said[0], json.loads(said[1]) if said[0] == 200 else said[1].decode())


def verdict(disk: JobDisk, step: int = 20) -> dict[str, Any]:
    said = answer(disk, f"{listing.VERDICTS}{step}")
    assert said is not None and said[0] == 200
    return dict(said[1])


def shard(disk: JobDisk, step: int, content: str) -> Path:
    (path,) = [path for path in disk.shards(step) if path.name != TREE and path.read_text() == content]
    return path


def size_of(disk: JobDisk, step: int) -> int:
    return sum(path.stat().st_size for path in disk.shards(step))


def test_the_steps_of_the_disk_are_listed_and_none_where_all_is_on_the_shared_tier(sealed: JobDisk) -> None:
    said = answer(sealed, listing.CHECKPOINTS)
    assert said is not None and said[0] == 200
    rows = said[1]["rows"]
    assert [(row["step"], row["tier"], row["node"], row["committed"]) for row in rows] == [
        (20, "local", "n0", True), (10, "local", "n0", True)
    ]  # fmt: skip
    assert answer(None, listing.CHECKPOINTS) == (200, {"rows": []})


@pytest.mark.parametrize(
    "path", ["/", "/checkpoints/", "/verdicts", "/verdicts/", "/verdicts/x", "/verdicts/-1", "/v/20"]
)
def test_another_path_is_somebody_elses(sealed: JobDisk, path: str) -> None:
    assert answer(sealed, path) is None


def test_a_step_that_is_not_here_has_no_verdict(sealed: JobDisk) -> None:
    assert answer(sealed, f"{listing.VERDICTS}30") is None and answer(None, f"{listing.VERDICTS}20") is None


def test_every_byte_of_a_sound_step_is_counted(sealed: JobDisk) -> None:
    for step in (10, 20):
        row: dict[str, object] = {
            "tier": "local",
            "node": "n0",
            "step": step,
            "bytes": size_of(sealed, step),
            "faults": [],
        }
        assert verdict(sealed, step) == row


def test_a_damaged_shard_is_named_with_the_jobs_own_file(sealed: JobDisk) -> None:
    path = shard(sealed, 20, "aaaa")
    path.write_text("aaaX")
    digest = hashlib.sha256(b"aaaX").hexdigest()
    name = f"{path.parent.name}/{path.name} (twenty/a)"
    assert verdict(sealed)["faults"] == [[name, f"4 of 4 bytes, SHA-256 {digest}"]]
    path.write_text("a")
    (fault,) = verdict(sealed)["faults"]
    assert fault[1].startswith("1 of 4 bytes, ") and verdict(sealed)["bytes"] == size_of(sealed, 20)
    assert verdict(sealed, 10)["faults"] == []


def test_without_its_tree_a_shard_has_its_own_name_alone(sealed: JobDisk) -> None:
    path = shard(sealed, 20, "aaaa")
    path.write_text("aaaX")
    (tree,) = [other for other in sealed.shards(20) if other.name == TREE]
    tree.write_text("{}")
    assert f"{path.parent.name}/{path.name}" in [name for name, _ in verdict(sealed)["faults"]]


def test_a_tree_that_is_spoilt_hides_no_other(sealed: JobDisk) -> None:
    path = shard(sealed, 20, "aaaa")
    path.write_text("aaaX")
    put(path.with_name("tree-+.json"), "{}")
    assert [name for name, _ in verdict(sealed)["faults"]] == [f"{path.parent.name}/{path.name} (twenty/a)"]


def test_a_long_fault_is_cut(sealed: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise ValueError("x" * 1000)

    monkeypatch.setattr(listing, "read_manifest", refuses)
    assert verdict(sealed)["faults"] == [["manifest.json", "x" * 300]]


def test_another_nodes_shard_is_no_fault_and_one_that_cannot_be_read_is(sealed: JobDisk) -> None:
    path = shard(sealed, 20, "aaaa")
    whole = size_of(sealed, 20)
    path.unlink()
    assert verdict(sealed)["faults"] == [] and verdict(sealed)["bytes"] == whole - 4
    os.symlink("/dev/null", path)
    (fault,) = verdict(sealed)["faults"]
    assert fault[0].endswith("(twenty/a)") and fault[1] == f"unreadable: {os.strerror(40)}"


@pytest.mark.parametrize("content", [b"{}", b"spoilt"])
def test_a_manifest_that_is_spoilt_is_the_fault(sealed: JobDisk, content: bytes) -> None:
    put(sealed.tier / "step-00000020/manifest.json", content)
    (fault,) = verdict(sealed)["faults"]
    assert fault[0] == "manifest.json" and fault[1] and verdict(sealed)["bytes"] == 0


def test_one_step_is_read_at_a_time_and_the_next_one_after_it(sealed: JobDisk) -> None:
    with listing._ONE_AT_A_TIME:
        assert answer(sealed, f"{listing.VERDICTS}20") == (429, "another step is being read\n")
        assert answer(sealed, listing.CHECKPOINTS) is not None, "a list reads no shard"
    assert verdict(sealed)["faults"] == []


def test_a_reading_gives_way_to_the_training(sealed: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    monkeypatch.setattr(listing.family, "give_way", lambda: calls.append("gave way"))
    verdict(sealed)
    assert calls == ["gave way"]

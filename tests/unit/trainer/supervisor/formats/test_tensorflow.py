"""TensorFlow's checkpoints: an index, data files that its name counts, and a tracker."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.trainer.supervisor.formats.test_other_frameworks import END_OF_TABLE, save_under, tensorflow
from tests.worlds.checkpoint_files import WatchedJob, half
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import forget_later
from trainer.supervisor.formats.files import tensorflow_candidates
from trainer.supervisor.formats.layouts import View
from trainer.supervisor.formats.tree import Finished, listing


def test_a_checkpoint_of_tensorflow_waits_for_all_of_its_files_and_the_end_of_its_index(job: WatchedJob) -> None:
    tensorflow(job.folder, 10, 1)
    index = job.folder / "ckpt-1.index"
    whole = index.read_bytes()
    half(index)
    assert job.look() == []
    index.write_bytes(whole)
    (job.folder / "ckpt-1.data-00001-of-00002").unlink()
    assert job.look() == []
    put(job.folder / "ckpt-1.data-00001-of-00002", b"y")
    assert [root for _, root in job.look()] == ["."]


@pytest.mark.parametrize(
    "folder",
    [
        "ckpt-2_temp",
        "ckpt-2_temp_0123456789abcdef0123456789abcdef",
        "ckpt-2_temp_0123456789abcdef0123456789abcd05",
        "step-2_temp_0123456789abcdef0123456789abcdef",
    ],
)
def test_a_devices_part_of_tensorflows_save_is_no_checkpoint_and_goes_at_a_restart(
    folder: str, job: WatchedJob
) -> None:
    save_under(job.folder, "ckpt-1")
    sealed_at = time.time() - 1.0
    put(job.folder / folder / "part-00000-of-00002.data-00000-of-00001")
    put(job.folder / folder / "part-00000-of-00002.index", b"table" * 9 + END_OF_TABLE)
    job.recogniser.ended = True
    job.at(10)
    assert len(job.look()) == 1
    restored = tuple(sorted(job.folder.glob("ckpt-1.*")))
    forget_later("auto", job.folder, Finished(10, job.folder, restored), sealed_at)
    assert {path.name for path in job.folder.iterdir()} == {*(path.name for path in restored), "checkpoint"}


def test_an_index_of_something_else_is_no_checkpoint(job: WatchedJob) -> None:
    put(job.folder / "embeddings_10.index", b"faiss" * 9 + END_OF_TABLE)
    assert job.look() == []


@pytest.mark.parametrize("names_gone", [True, False])
def test_tensorflow_finds_the_restored_one_and_never_what_is_gone(names_gone: bool, tmp_path: Path) -> None:
    for stem in ("ckpt-1", "ckpt-2"):
        save_under(tmp_path, stem)
    if not names_gone:
        (tmp_path / "checkpoint").unlink()  # the disk is new
    files = tuple(sorted(tmp_path.glob("ckpt-1.*")))
    forget_later("auto", tmp_path, Finished(10, tmp_path, files))
    assert (tmp_path / "checkpoint").read_text().splitlines()[0] == 'model_checkpoint_path: "ckpt-1"'
    forget_later("auto", tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_tensorflows_tracker_names_the_restored_one_and_no_older_one_of_its_series(tmp_path: Path) -> None:
    for stem in ("ckpt-2", "ckpt-1"):
        save_under(tmp_path, stem)
    forget_later("auto", tmp_path, Finished(20, tmp_path, tuple(sorted(tmp_path.glob("ckpt-2.*")))))
    assert (tmp_path / "checkpoint").read_text().splitlines()[0] == 'model_checkpoint_path: "ckpt-2"'


@pytest.mark.parametrize("name", ["best", "other-7"])
def test_tensorflows_tracker_keeps_the_name_of_another_series_that_is_there(name: str, tmp_path: Path) -> None:
    for stem in ("ckpt-1", name):
        save_under(tmp_path, stem)
    names_other = (tmp_path / "checkpoint").read_text()
    forget_later("auto", tmp_path, Finished(10, tmp_path, tuple(sorted(tmp_path.glob("ckpt-1.*")))))
    assert (tmp_path / "checkpoint").read_text() == names_other and (tmp_path / f"{name}.index").exists()


def test_an_index_that_is_older_than_its_data_is_of_the_save_before(job: WatchedJob) -> None:
    save_under(job.folder, "cp.ckpt")
    index = job.folder / "cp.ckpt.index"
    os.utime(index, (index.stat().st_atime, index.stat().st_mtime - 60))
    assert job.look() == []
    put(index, index.read_bytes())
    assert [root for _, root in job.look()] == ["."]


@pytest.mark.parametrize("shards", [1, 2])
def test_tensorflows_second_save_under_one_name_within_a_second_is_sealed_as_itself(
    shards: int, job: WatchedJob
) -> None:
    job.recogniser.settles_at_once = False
    data = [job.folder / f"cp.ckpt.data-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    index, begun_s = job.folder / "cp.ckpt.index", time.time() - 0.9

    def write(path: Path, content: bytes, after_s: float) -> None:
        os.utime(put(path, content), (begun_s + after_s,) * 2)

    job.recogniser.told_steps.note(10, begun_s)
    for path in data:
        write(path, b"1", 0.1)
    write(index, b"table" * 9 + END_OF_TABLE, 0.2)
    assert job.look() == [(10, ".")]
    job.recogniser.told_steps.note(11, begun_s + 0.3)
    for path in data:
        write(path, b"2", 0.4)
        assert job.look() == [], "the index is of the save before"
    write(index, b"tablf" * 9 + END_OF_TABLE, 0.5)
    assert job.look() == [(11, ".")]


@pytest.mark.parametrize("lead_ns", [0, -500_000_000])
def test_an_index_that_is_no_younger_than_its_data_has_to_rest(lead_ns: int, job: WatchedJob) -> None:
    """It may be that of the save before, or of a node whose clock is behind."""
    job.recogniser.settles_at_once = False
    tensorflow(job.folder, 10, 1)
    index = job.folder / "ckpt-1.index"
    data_ns = max(path.stat().st_mtime_ns for path in job.folder.glob("ckpt-1.data-*"))
    os.utime(index, ns=(data_ns + lead_ns,) * 2)
    assert job.look() == []
    job.recogniser.settles_at_once = True
    assert [root for _, root in job.look()] == ["."]


@pytest.mark.parametrize("gone", ["ckpt-1.index", "ckpt-1.data-00001-of-00002"])
def test_a_checkpoint_of_tensorflow_that_is_removed_during_a_look_is_not_whole(gone: str, job: WatchedJob) -> None:
    tensorflow(job.folder, 10, 1)
    view = View(job.folder, listing(job.folder), True, 1, False)
    (job.folder / gone).unlink()
    assert [candidate.ready() for candidate in tensorflow_candidates(view)] == [False]

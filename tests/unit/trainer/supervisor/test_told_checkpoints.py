"""A step that the job tells is sealed as the step it was, or not at all; other nodes follow node 0."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.worlds.supervisor_tier import JobDisk, RunningJob, put
from trainer.contract.checkpoint import parse_manifest
from trainer.supervisor import seal
from trainer.supervisor.formats import Finished
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.shared import Sealing
from trainer.supervisor.sealing.survey import told_version


@pytest.mark.parametrize("sealed_first", [True, False])
def test_a_folder_that_is_told_and_then_written_again_never_spoils_the_step_it_was(
    disk: JobDisk, sealed_first: bool
) -> None:
    sealing, job, _ = disk.begin(1)
    put(disk.own / "save/a", "a of 10"), put(disk.own / "save/b", "b of 10")
    sealing.tell(Finished(10, disk.own / "save"))
    if sealed_first:
        sealing.look()
    put(disk.own / "save/a", "half of 20")
    sealing.look()
    sealing.finish(1)
    assert seal.committed(disk.tier) == ([10] if sealed_first else [])
    assert job.steps("not_sealed") == ([] if sealed_first else [10])
    if sealed_first:
        assert disk.fault(10) == "" and (disk.laid_back(10) / "a").read_text() == "a of 10"


def test_a_folder_that_gets_more_files_after_it_was_told_is_sealed_with_them(disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1)
    put(disk.own / "save/a", "a")
    sealing.tell(Finished(10, disk.own / "save"))
    put(disk.own / "save/b", "b")
    sealing.look()
    assert (disk.laid_back(10) / "b").read_text() == "b"


def test_a_file_that_is_told_and_then_written_again_is_not_sealed_as_the_step_it_was(disk: JobDisk) -> None:
    sealing, job, _ = disk.begin(1)
    disk.save(sealing, 10)
    sealing.look()
    disk.save(sealing, 20)
    put(disk.own / "ckpt.pt", "half of 30")
    sealing.look()
    assert seal.committed(disk.tier) == [10] and job.steps("not_sealed") == [20]
    disk.save(sealing, 30), disk.save(sealing, 40)
    sealing.look()
    assert seal.committed(disk.tier) == [40, 10], "step 30 was never seen"
    assert job.steps("committed") == [10, 40] and job.steps("not_sealed") == [20]
    disk.save(sealing, 50)
    (disk.own / "ckpt.pt").unlink()
    sealing.look()
    assert job.steps("not_sealed") == [20] and not sealing.told, "the job has removed it itself"


def test_what_was_written_again_before_its_telling_was_heard_is_not_sealed(disk: JobDisk) -> None:
    sealing, job, _ = disk.begin(1)
    root = put(disk.own / "step-10/deep/a", "four").parents[1]
    put(root / "b", "six"), os.utime(root / "b", ns=(0, 10**18)), os.utime(root / "deep/a", ns=(0, 2 * 10**18))
    (root / "gone").symlink_to("nothing"), os.mkfifo(root / "pipe")
    assert told_version(root) == [2, 7, 2 * 10**18] and told_version(root / "b") == [1, 3, 10**18]
    assert told_version(root / "nothing") == [0, 0, 0]
    (root / "gone").unlink(), (root / "pipe").unlink()
    sealing.tell(Finished(10, root), [2, 7, 2 * 10**18 - 1])
    sealing.look()
    assert job.steps("not_sealed") == [10] and seal.committed(disk.tier) == []
    sealing.tell(Finished(10, root), [2, 7, 2 * 10**18])
    sealing.look()
    assert seal.committed(disk.tier) == [10]


def test_a_told_folder_to_which_a_rank_adds_its_file_is_sealed_as_it_stands(disk: JobDisk) -> None:
    sealing, job, _ = disk.begin(1)
    put(disk.own / "step-10/rank-0", "0")
    sealing.tell(Finished(10, disk.own / "step-10"))
    put(disk.own / "step-10/rank-1", "1")
    sealing.look()
    assert job.steps("committed") == [10] and not job.steps("not_sealed") and len(disk.shards()) == 3


def test_another_node_takes_up_what_node_0_has_chosen_and_seals_nothing(disk: JobDisk) -> None:
    put(disk.own / "step-10/state", "s"), put(disk.own / "step-10/DONE", "")
    put(disk.tier / "step-00000020/attempt-0001/half", "h")
    place = Place("tiny", 1, "n1", "127.0.0.1", 1, 2, 1, "127.0.0.1:1", "", "")
    checkpoints = {"format": "marker", "folder": str(disk.own), "keep": 3}
    job = RunningJob()
    sealing = Sealing({"identity": "one", "config_digest": "c", "checkpoints": checkpoints}, place, disk.tier, job, 1)
    assert not sealing.busy, "nothing is copied yet"
    waits: list[tuple[str, float]] = []

    def chosen(path: Path, seconds: float) -> None:
        waits.append((path.name, seconds))
        put(path, json.dumps({"step": 10, "path": "/own/step-10"}))

    job.wait_for = chosen  # type: ignore[method-assign]
    assert (sealing.resume(), sealing.committed) == ("/own/step-10", 10)
    assert sealing.resume(2) == "/own/step-10" and [name for name, _ in waits] == [
        "attempt-0001.json",
        "attempt-0001-generation-2.json",
    ]
    assert 600 <= waits[0][1] <= 3600, "node 0 reads all of a checkpoint meanwhile"
    sealing.committed = -1
    sealing.look()
    assert seal.started_steps(disk.tier) == [20] and not job.events, "all that is for node 0 to do"
    job.stopping = "SIGTERM"
    assert sealing.resume() == "" and sealing.committed == -1


def test_a_file_in_a_folder_of_its_own_comes_back_to_a_new_disk(disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1)
    sealing.tell(Finished(10, put(disk.own / "runs/a/ckpt.pt", "ten")))
    sealing.look()
    shutil.rmtree(disk.own)
    resume = disk.begin(2)[2]
    assert resume == str(disk.own / "runs/a/ckpt.pt") and Path(resume).read_text() == "ten"


def test_what_the_job_left_at_its_end_is_sealed_and_accounted_for(disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1, "marker")
    put(disk.own / "step-10/state", "s"), put(disk.own / "step-10/DONE", ""), put(disk.own / "strange/file", "?")
    assert sealing.committed == -1
    sealing.put_off[10] = time.monotonic() + 900
    sealing.look()
    assert seal.committed(disk.tier) == [] and sealing.accounts.now is not None
    sealing.finish(0)
    assert seal.committed(disk.tier) == [10] and sealing.accounts.now.entries == ("strange",)


def test_a_tier_without_room_is_told_with_the_room_that_is_left(disk: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    sealing, job, _ = disk.begin(1)
    disk.save(sealing, 10)
    with monkeypatch.context() as full:
        full.setattr(seal, "publish", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        sealing.look()
    (event,) = (event for event in job.events if event["event"] == "not_sealed")
    assert event["step"] == 10 and "No space left on device; " in event["why"] and "MiB" in event["why"]
    assert sealing.waits(10) and not sealing.busy and job.steps("committed") == []
    sealing.finish(0)
    assert job.steps("committed") == [10], "the last try is at the end"


def test_a_step_that_is_told_again_is_sealed_again_and_the_same_one_is_not(disk: JobDisk) -> None:
    sealing, job, _ = disk.begin(1)
    disk.save(sealing, 10, "first")
    sealing.look()
    disk.save(sealing, 10, "second")
    sealing.look()
    sealing.tell(Finished(10, disk.own / "ckpt.pt"))
    sealing.look()
    assert job.steps("committed") == [10, 10] and disk.laid_back().read_text() == "second"
    relaunch, job, resume = disk.begin(2)
    assert Path(resume).read_text() == "second" and job.steps("committed") == []
    relaunch.tell(Finished(10, Path(resume)))
    relaunch.look()
    manifest = parse_manifest((disk.tier / "step-00000010/manifest.json").read_bytes())
    assert job.steps("committed") == [10] and manifest.attempt == 2 and disk.fault() == ""


def test_a_file_that_changes_after_it_looked_finished_is_not_sealed_as_its_step(
    disk: JobDisk,
) -> None:
    sealing, job, _ = disk.begin(1, form="marker")
    for step in (10, 20):
        put(disk.own / f"step-{step}/state", str(step))
        put(disk.own / f"step-{step}/DONE")
    note_event = job.emit

    def write_again(event: str, **fields: object) -> None:
        """The job goes on while the first of two is sealed."""
        note_event(event, **fields)
        if event == "committed" and fields["step"] == 10:
            put(disk.own / "step-20/state", "half of thirty")

    job.emit = write_again  # type: ignore[method-assign]
    sealing.look()
    assert job.steps("committed") == [10] and not (disk.tier / "step-00000020").exists()
    assert [event["why"] for event in job.of("not_sealed")] == ["step-20 has changed since it was found finished"]

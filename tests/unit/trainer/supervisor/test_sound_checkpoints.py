"""A restart takes the newest step that is sound, and what is damaged counts for no retention."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.supervisor_tier import TREE, JobDisk, put
from trainer.supervisor import seal
from trainer.supervisor.sealing.shared import NoSoundSeal


def test_a_damaged_step_that_is_done_again_after_a_restart_in_place_is_sealed_anew(disk: JobDisk) -> None:
    sealing, job, _ = disk.begin(1)
    for step in (10, 20):
        disk.save(sealing, step)
        sealing.look()
    shard = next(path for path in disk.shards(20) if path.name != TREE)
    shard.write_text("??")
    assert Path(sealing.resume(generation=1)).read_text() == "10" and job.steps("refused_step") == [20]
    disk.save(sealing, 20)
    sealing.look()
    assert disk.fault(20) == "" and job.steps("committed") == [10, 20, 20]


def test_without_a_sound_sealed_step_the_job_does_not_begin_anew_and_half_seals_go(disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1)
    half = put(disk.tier / "step-00000020/attempt-0001/half", "x")
    assert disk.begin(2)[2] == "" and not half.parents[1].exists()
    disk.save(sealing, 10)
    sealing.look()
    next(path for path in disk.shards(10) if path.name != TREE).write_text("??")
    with pytest.raises(
        NoSoundSeal, match=r"none of its 1 sealed checkpoints is sound; step 10: .*ckpt\.pt: 2 of 2 bytes"
    ):
        disk.begin(3)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_newer_steps_count_for_no_retention(keep: int, disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1, keep=9)
    for step in (10, 40, 50, 60):
        disk.save(sealing, step)
        sealing.look()
    for step in (40, 50, 60):
        next(path for path in disk.shards(step) if path.name != TREE).write_text("??")
    relaunch, job, resume = disk.begin(2, keep=keep)
    assert Path(resume).read_text() == "10" and job.steps("refused_step") == [60, 50, 40]
    disk.save(relaunch, 20)
    relaunch.look()
    sound = [step for step in seal.committed(disk.tier) if not disk.fault(step)]
    assert sound == [20, 10][:keep]
    for step in (30, 40, 50, 60, 70):
        disk.save(relaunch, step)
        relaunch.look()
    assert seal.committed(disk.tier) == [70, 60, 50][:keep], "nothing damaged is left once the job is beyond"
    assert seal.started_steps(disk.tier) == seal.committed(disk.tier), "nor what takes room without a manifest"
    assert not [step for step in seal.committed(disk.tier) if disk.fault(step)]


def test_a_relaunch_that_keeps_fewer_counts_no_step_whose_file_is_gone(disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1, keep=9)
    for step in (10, 20, 30):
        disk.save(sealing, step)
        sealing.look()
    next(path for path in disk.shards(20) if path.name != TREE).unlink()
    relaunch, _, _ = disk.begin(2, keep=3)
    disk.save(relaunch, 40)
    relaunch.look()
    assert seal.committed(disk.tier) == [40, 30, 10]


def test_a_step_whose_manifest_is_spoilt_counts_for_no_retention(disk: JobDisk) -> None:
    for step in (10, 20, 30):
        put(disk.own / "ckpt.pt", str(step))
        disk.seal("ckpt.pt", step)
    put(disk.tier / "step-00000020/manifest.json", "{}")
    assert seal.keep(disk.tier, 2) == [20] and seal.committed(disk.tier) == [30, 10]
    put(disk.tier / "step-00000030/manifest.json", "spoilt")
    assert seal.keep(disk.tier, 1) == [] and seal.committed(disk.tier) == [30, 10], "newer than all that is sound"
    path = next(path for path in disk.shards(10) if path.name != TREE)
    path.write_bytes(path.read_bytes() + b"more")
    assert seal.keep(disk.tier, 1) == [], "where nothing is sound, nothing goes"


def test_a_full_tier_is_relieved_of_the_jobs_later_files_before_a_step_is_laid_back(
    disk: JobDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, _, _ = disk.begin(1, "marker")
    for step in (10, 20):
        put(disk.own / f"step-{step}/state", str(step)), put(disk.own / f"step-{step}/DONE", "")
        sealing.look() if step == 10 else None
    copy = seal.copy

    def full(source: Path, target: Path) -> object:
        if (disk.own / "step-20").exists():
            raise OSError(28, "No space left on device")
        return copy(source, target)

    monkeypatch.setattr(seal, "copy", full)
    assert Path(disk.begin(2, "marker")[2]).name == "step-10"
    assert sorted(path.name for path in disk.own.iterdir()) == ["step-10"], "and nothing half laid back"

"""Files of one folder: whether each is a checkpoint of its own or all are one, and what a restart takes of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, saved
from tests.worlds.checkpoint_files import job as job
from trainer.supervisor.formats.tree import Finished


def _written(path: Path, seconds_ago: float, **values: object) -> Path:
    saved(path, **values)
    os.utime(path, (time.time() - seconds_ago, time.time() - seconds_ago))
    return path


def test_the_ranks_files_of_a_step_are_one_checkpoint(job: WatchedJob) -> None:
    for step in (10, 20):
        for rank in (0, 1):
            saved(job.folder / f"model_ckpt_{step}_{rank}.pt")
    checkpoints = list(job.recogniser.finished_checkpoints("auto", job.folder, 2, -1))
    assert [(one.step, sorted(path.name for path in one.tops)) for one in checkpoints] == [
        (10, ["model_ckpt_10_0.pt", "model_ckpt_10_1.pt"]), (20, ["model_ckpt_20_0.pt", "model_ckpt_20_1.pt"]),
    ]  # fmt: skip


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("names", [("weights/net_{}.pt",), ("weights/netG_{}.pt", "weights/netD_{}.pt")])
def test_each_file_of_an_epoch_is_a_checkpoint_of_its_own(names: tuple[str, ...], first: int, job: WatchedJob) -> None:
    for epoch in range(4):
        job.recogniser.told_steps.note(100 * epoch + 100, time.time() - 1 + 100 * epoch)
        for name in names:
            _written(job.folder / name.format(first + epoch), -100 * epoch)
        (checkpoint,) = job.recogniser.finished_checkpoints("auto", job.folder, 1, job.committed)
        sealed_files = {path for top in checkpoint.tops for path in (top, *top.rglob("*")) if path.is_file()}
        assert sealed_files == {job.folder / name.format(first + epoch) for name in names}
        assert checkpoint.step > job.committed
        job.recogniser.note_sealed(checkpoint)
        job.committed = checkpoint.step


def test_the_only_file_that_a_job_keeps_is_sealed_whatever_its_number(job: WatchedJob) -> None:
    """Two lay there at the look before, as one folder with the step that was told."""
    for epoch in (0, 1):
        saved(job.folder / f"weights/net_{epoch}.pt")
    job.at(200)
    assert job.look() == [(200, "weights")]
    (job.folder / "weights/net_0.pt").unlink(), (job.folder / "weights/net_1.pt").unlink()
    job.recogniser.told_steps.note(300, time.time() - 1), saved(job.folder / "weights/net_2.pt")
    assert job.look() == [(300, "weights/net_2.pt")]


def test_files_of_epochs_go_on_with_told_steps_after_a_restart(job: WatchedJob) -> None:
    restored = _written(job.folder / "weights/net_3.pt", 0)
    job.recogniser.note_restored(Finished(400, restored))
    job.committed = 400
    _written(job.folder / "weights/net_2.pt", 20)
    job.at(400)
    assert job.look() == [], "nothing in this folder is newer"
    job.at(500), _written(job.folder / "weights/net_4.pt", -20)
    assert job.look() == [(500, "weights/net_4.pt")]


@pytest.mark.parametrize("ranks", [0, 2, 3])
def test_files_that_may_be_of_ranks_are_one_checkpoint(ranks: int, job: WatchedJob) -> None:
    for rank in range(2):
        _written(job.folder / f"weights/net_{rank}.pt", -20 * rank)
    assert [root for _, root in job.look(ranks)] == ["weights"]


def test_files_that_were_written_within_seconds_are_one_checkpoint(job: WatchedJob) -> None:
    for layer in range(3):
        _written(job.folder / f"weights/net_{layer}.pt", -5 * layer)
    assert [root for _, root in job.look()] == ["weights"]


def test_files_of_two_epochs_that_overlap_are_one_checkpoint(job: WatchedJob) -> None:
    for name, seconds in (("netG_0", 0), ("netD_0", 15), ("netG_1", 16), ("netD_1", 31)):
        _written(job.folder / f"weights/{name}.pt", -seconds)
    assert [root for _, root in job.look()] == ["weights"]


def test_files_of_steps_are_each_one_beside_a_file_without_a_number(job: WatchedJob) -> None:
    for name in ("average", "net_10", "net_20"):
        saved(job.folder / f"weights/{name}.pt")
    assert job.look() == [(10, "weights/net_10.pt"), (20, "weights/net_20.pt")]


def test_files_of_steps_are_each_one_beside_a_series_that_is_none(job: WatchedJob) -> None:
    for name in ("average_1", "average_2", "net_10", "net_20"):
        saved(job.folder / f"weights/{name}.pt")
    assert (20, "weights/net_20.pt") in job.look()


def test_files_of_which_two_came_within_seconds_are_one_checkpoint(job: WatchedJob) -> None:
    for number, seconds in enumerate((0, 5, 25)):
        _written(job.folder / f"weights/net_{number}.pt", -seconds)
    assert [root for _, root in job.look()] == ["weights"]


def test_files_of_one_folder_with_other_steps_in_them_are_each_one(job: WatchedJob) -> None:
    saved(job.folder / "saved/best.pt", step=10), saved(job.folder / "saved/last.pt", step=30)
    assert job.look() == [(10, "saved/best.pt"), (30, "saved/last.pt")]


def test_a_file_without_a_step_from_before_this_attempt_is_not_sealed(job: WatchedJob) -> None:
    _written(job.folder / "model.pt", 60)
    job.at(10)
    assert job.look() == []
    saved(job.folder / "model.pt", more=1)
    assert job.look() == [(10, "model.pt")]


def test_a_folder_with_nothing_newer_than_the_restored_file_is_no_later_step(
    job: WatchedJob,
) -> None:
    for rank in (2, 3):
        _written(job.folder / f"weights/net_{rank}.pt", 0)
    job.recogniser.note_restored(Finished(400, job.folder / "weights/net_3.pt"))
    job.committed = 400
    os.utime(job.folder / "weights/net_2.pt", (time.time() - 0.5,) * 2)
    job.at(410)
    assert job.look(ranks=2) == []


def test_files_that_are_numbered_from_0_have_the_steps_that_the_job_has_told(job: WatchedJob) -> None:
    sealed = []
    for epoch in range(5):
        job.recogniser.told_steps.note(100 * epoch + 100, time.time() - 1 + 100 * epoch)
        _written(job.folder / f"weights/net_{epoch}.pt", -100 * epoch)
        sealed += job.look()
    assert [step for step, _ in sealed] == [0, 1, 300, 400, 500], "two names may take turns"


@pytest.mark.parametrize("form", ["model_0.{}3.pt", "best_loss_1.{}.pth", "best-v{}.pt", "acc_{}1.5_model.pt"])
def test_files_that_differ_by_a_metric_or_a_version_are_a_checkpoint_each(form: str, job: WatchedJob) -> None:
    for step in (10, 20, 30):
        job.at(step)
        path = saved(job.folder / form.format(step // 10))
        assert job.look() == [(step, path.name)]


def test_files_of_ranks_behind_a_point_are_one_checkpoint_of_each_step(job: WatchedJob) -> None:
    for step in (10, 20):
        job.at(step)
        tops = [saved(job.folder / f"ckpt_{step}.{rank}.pt") for rank in (0, 1)]
        assert job.look(ranks=2) == [(step, ".")]
        assert job.recogniser.sealed_checkpoints(step)[-1].tops == tuple(tops)

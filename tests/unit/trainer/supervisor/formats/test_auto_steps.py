"""The step of a checkpoint that format auto finds: from its name, from its content, or as the job has told it."""

from __future__ import annotations

import os
import time

import pytest

from tests.worlds.checkpoint_files import (
    WatchedJob,
    accelerate,
    half,
    saved,
)
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import Finished


def test_a_step_in_the_name_counts_before_the_content_and_that_before_the_told_one(
    job: WatchedJob,
) -> None:
    saved(job.folder / "state-step=30.pt", step=31)
    job.at(50)
    assert job.look() == [(30, "state-step=30.pt")]
    put(job.folder / "model/config.json", "{}"), saved(job.folder / "model/weights.pt", step=40)
    put(job.folder / "model/notes.txt")
    assert job.look() == [(40, "model")]


def test_only_in_accelerates_own_folder_a_plain_number_counts_saves(job: WatchedJob) -> None:
    accelerate(job.folder / "run/checkpoint_30")
    job.at(50)
    assert job.look() == [(30, "run/checkpoint_30")]
    accelerate(job.folder / "checkpoints/checkpoint_31")
    assert job.look() == [(50, "checkpoints/checkpoint_31")]


def test_a_counter_of_epochs_or_saves_gets_the_step_that_was_told_before_its_write(job: WatchedJob) -> None:
    for epoch, step in ((0, 10), (1, 20), (9, 100), (10, 110)):
        job.at(step)
        saved(job.folder / f"epoch-{epoch}.pt", epoch=epoch)
        assert job.look() == [(step, f"epoch-{epoch}.pt")]
    accelerate(job.folder / "checkpoints/checkpoint_3")
    job.at(120)
    assert job.look() == [(120, "checkpoints/checkpoint_3")], "save_iteration is no step"


def test_the_first_epoch_of_a_job_that_counts_from_0_and_tells_no_step_is_step_0(job: WatchedJob) -> None:
    for epoch in (0, 1):
        put(job.folder / f"epoch-{epoch}/state"), put(job.folder / f"epoch-{epoch}/DONE", "")
        assert job.look() == [(epoch, f"epoch-{epoch}")]


def test_epochs_of_a_job_that_tells_no_step_keep_their_order(job: WatchedJob) -> None:
    for epoch in (2, 10, 1):
        put(job.folder / f"epoch-{epoch}/state"), put(job.folder / f"epoch-{epoch}/DONE", "")
    assert job.look() == [(1, "epoch-1"), (2, "epoch-2"), (10, "epoch-10")]


@pytest.mark.parametrize(
    "names",
    [
        ("ckpt_20261127_235900.pt", "ckpt_20261127_235930.pt", "ckpt_20261128_000010.pt", "ckpt_20261128_000050.pt"),
        (
            "ckpt-2026-11-27T23-59.bin", "ckpt-2026-11-28T00-01.bin", "ckpt-2026-12-01T00-00.bin",
            "ckpt-2027-01-01T00-00.bin",
        ),
        ("ckpt_1799999980.pt", "ckpt_1799999990.pt", "ckpt_1800000000.pt", "ckpt_1800000010.pt"),
        ("state.1799999980123.pkl", "state.1799999990001.pkl", "state.1800000000456.pkl", "state.1800000010789.pkl"),
    ],
)  # fmt: skip
def test_a_time_in_a_files_name_is_no_step_and_each_later_one_is_a_later_checkpoint(
    names: tuple[str, ...], job: WatchedJob
) -> None:
    for step, name in enumerate(names, 1):
        job.at(10 * step)
        put(job.folder / name, "no zip, no step inside")
        assert job.look() == [(10 * step, name)]


def test_a_time_in_a_name_is_no_step_of_a_job_that_has_told_none(job: WatchedJob) -> None:
    for number, name in enumerate(("ckpt_20261127T235900.bin", "ckpt_20261128T000100.bin")):
        put(job.folder / name, "no zip, no step inside")
        assert job.look() == [(number, name)]


@pytest.mark.parametrize("kind", ["file", "folder", "two files"])
def test_names_that_take_turns_get_the_steps_that_the_job_had_told(kind: str, job: WatchedJob) -> None:
    labels = []
    for turn, step in enumerate(range(10, 60, 10)):
        folder = job.folder / f"ckpt-{turn % 2}"
        paths = {
            "file": [job.folder / f"ckpt.{turn % 2}.bin"],
            "folder": [folder / "model.bin", folder / "optimizer.pt"],
            "two files": [job.folder / f"model_{turn % 2}.bin", job.folder / f"optim_{turn % 2}.bin"],
        }[kind]
        job.recogniser.told_steps.heard.append((step - 0.5, step))
        if kind == "folder" and turn < 2:
            put(folder / "words.txt", "the same", age_s=time.time() - 1)
        for path in paths:
            put(path, f"of step {step}")
            os.utime(path, (step, step))
        job.recogniser._begun = 0.0
        labels += [label for label, _ in job.look()]
        if step != 20:  # then there is no look before the next write
            assert job.look() == [], "it is sealed as it stands"
    assert labels == [0, 1, 30, 40, 50], "the first two names say nothing else"


@pytest.mark.parametrize("name", ["step-{}.bin", "step-{}"])
def test_a_name_that_says_its_step_takes_no_turns(name: str, job: WatchedJob) -> None:
    for step in (10, 30):
        path = job.folder / name.format(step)
        put(path if path.suffix else path / "DONE", "x", age_s=100)
    assert [step for step, _ in job.look()] == [10, 30]
    for age_s in (50, 40):
        job.recogniser.told_steps.heard.append((time.time() - age_s - 1, 140 - age_s))
        path = job.folder / name.format(10)
        put(path if path.suffix else path / "DONE", "written again", age_s=age_s)
        assert job.look() == []


def test_what_was_never_looked_at_stands_and_the_mean_time_of_steps_is_that_of_all(job: WatchedJob) -> None:
    assert job.recogniser.stands(Finished(10, saved(job.folder / "ckpt.pt")))
    assert job.recogniser.told_steps.seconds_apart == 0.0
    for at, step in ((100.0, 10), (101.0, 11), (109.0, 13)):
        job.recogniser.told_steps.heard.append((at, step))
    assert job.recogniser.told_steps.seconds_apart == 3.0


def test_a_step_that_nothing_names_is_larger_than_all_before_though_none_is_sealed_yet(job: WatchedJob) -> None:
    steps = []
    for name, heard in (("a", 10), ("b", 20), ("c", 15)):
        job.at(heard)
        put(job.folder / name / "weights.bin", "no zip"), put(job.folder / name / "DONE", "")
        steps += [checkpoint.step for checkpoint in job.recogniser.finished_checkpoints("marker", job.folder, 1, -1)][
            -1:
        ]
    assert steps == [10, 20, 21]


def test_a_job_that_begins_again_takes_no_turns(job: WatchedJob) -> None:
    for step in (10, 30):
        put(job.folder / f"ckpt_{step}.bin", "x", age_s=100)
    assert [step for step, _ in job.look()] == [10, 30] and job.look() == []
    job.at(10)
    put(job.folder / "ckpt_10.bin", "of a training that has begun again")
    assert job.look() == [], "what was sealed of step 30 stays the newest"


def test_files_whose_names_are_a_step_alone_are_checkpoints_and_those_of_ranks_are_not(job: WatchedJob) -> None:
    for rank in range(3):
        saved(job.folder / f"model/{rank}.pt")
    job.at(6)
    assert job.look() == [(6, "model")]
    for folder in ("checkpoints", "."):
        for step in (10, 20):
            saved(job.folder / folder / f"{step + 30 * (folder == '.'):07d}.pt")
    assert job.look() == [
        (10, "checkpoints/0000010.pt"), (20, "checkpoints/0000020.pt"), (40, "0000040.pt"), (50, "0000050.pt"),
    ]  # fmt: skip


def test_a_file_written_again_in_place_is_another_step_each_time(job: WatchedJob) -> None:
    for step in (10, 20):
        job.at(step)
        put(job.folder / "ckpt.pt", f"no zip, of step {step}")
        assert job.look() == [(step, "ckpt.pt")]
        assert job.look() == [], "it is sealed as it stands"
    saved(job.folder / "ckpt.pt", iter_num=30)
    assert job.look() == [(30, "ckpt.pt")]
    half(job.folder / "ckpt.pt")
    assert job.look() == []


def test_what_is_written_again_before_its_turn_comes_is_not_sealed_as_the_step_it_was(job: WatchedJob) -> None:
    saved(job.folder / "model.pt", at=1), saved(job.folder / "optimizer.pt", at=1)
    job.at(10)
    (checkpoints,) = job.recogniser.finished_checkpoints("auto", job.folder, 1, -1)
    assert job.recogniser.stands(checkpoints)
    saved(job.folder / "model.pt", at=2)
    assert not job.recogniser.stands(checkpoints)

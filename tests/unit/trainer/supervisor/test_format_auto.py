"""`format: auto` knows the checkpoints that scripts really write, and takes nothing half-written for one."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.worlds.checkpoint_files import (
    BESIDE,
    KINDS,
    WatchedJob,
    accelerate,
    dcp,
    deepspeed,
    half,
    huggingface,
    safetensors,
    saved,
)
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import FORMATS, Finished
from trainer.supervisor.formats import recognise as looks


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_recognised_whole_and_not_with_its_end_missing_or_half_written(
    kind: str, job: WatchedJob
) -> None:
    write, result, end = KINDS[kind]
    write(job.folder)
    assert job.look() == [result]
    fresh_look = WatchedJob(job.folder)
    content = (job.folder / end).read_bytes()
    (job.folder / end).unlink()
    if kind != "nanochat":  # its ranks are not known from one checkpoint
        assert fresh_look.look() == []
    (job.folder / end).write_bytes(content[: len(content) // 2])
    if content[:2] == b"PK" or end.endswith((".json", ".safetensors", "latest")):
        assert fresh_look.look() == []


def test_two_parts_of_dcp_are_one_checkpoint_that_waits_for_both(job: WatchedJob) -> None:
    dcp(job.folder / "step-10/model"), dcp(job.folder / "step-10/optim", metadata=False)
    assert job.look() == []
    put(job.folder / "step-10/optim/.metadata")
    assert job.look() == [(10, "step-10")]


def test_a_part_that_has_not_begun_is_waited_for_until_the_folder_has_settled(
    job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    job.recogniser.settles_at_once = False
    dcp(job.folder / "step-10/model")
    assert job.look() == []
    now[0] += looks.SETTLES_S - 0.1
    dcp(job.folder / "step-10/optim")
    assert job.look() == []
    now[0] += looks.SETTLES_S - 0.1
    assert job.look() == [], "it has changed meanwhile"
    now[0] += 0.2
    assert job.look() == [], "the job has told no step since: it may gather what it writes next"
    job.recogniser.told_steps.note(11)
    assert job.look() == [(10, "step-10")]


def test_a_job_that_tells_no_step_is_waited_for_longer(job: WatchedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    job.recogniser.settles_at_once = False
    saved(job.folder / "step-10/model.pt")
    assert job.look() == []
    now[0] += looks.QUIET_S - 0.1
    assert job.look() == []
    now[0] += 0.2
    assert job.look() == [(10, "step-10")]


def test_files_that_are_all_newer_than_the_save_before_count_once_the_job_trains_on(job: WatchedJob) -> None:
    job.recogniser.settles_at_once = False
    for step in (10, 20, 30):
        job.at(step)
        saved(job.folder / "model.pt", at=step)
        if step == 20:
            assert job.look() == [], "the optimizer's is of step 10"
        saved(job.folder / "optimizer.pt", at=step)
        assert job.look() == [], "the job may still write"
        job.recogniser.told_steps.heard.append((time.time() + 1, step + 1))
        assert [step for step, _ in job.look()] == ([] if step == 10 else [step]), "the first may lack a file"


def test_files_that_are_all_newer_than_the_folder_before_count_once_the_job_trains_on(
    job: WatchedJob,
) -> None:
    job.recogniser.settles_at_once = False
    for step in (10, 20):
        saved(job.folder / f"step-{step}/model.pt"), saved(job.folder / f"step-{step}/optimizer.pt")
        job.recogniser.told_steps.heard.append((time.time() + 1, step + 1))
        assert [step for step, _ in job.look()] == ([] if step == 10 else [20]), "the first may lack a file"


def test_of_a_job_that_has_failed_what_is_all_newer_than_the_save_before_counts(job: WatchedJob) -> None:
    job.recogniser.settles_at_once = False
    for step in (10, 20):
        job.at(step)
        saved(job.folder / "model.pt", at=step), saved(job.folder / "optimizer.pt", at=step)
        assert job.look() == []
    job.recogniser.failed = True
    assert [step for step, _ in job.look()] == [20]
    saved(job.folder / "model.pt", at=30)
    assert job.look() == [], "it failed before it wrote the optimizer"


def test_the_folder_that_dcp_writes_again_is_not_taken_while_old_and_new_files_lie_there(job: WatchedJob) -> None:
    dcp(job.folder / "latest")
    job.at(10)
    assert job.look() == [(10, "latest")]
    job.at(20)
    in_a_minute = time.time() + 60
    os.utime(put(job.folder / "latest/__0_0.distcp", "newer"), (in_a_minute, in_a_minute))
    assert job.look() == [], "`.metadata` is of the save before"
    os.utime(job.folder / "latest/.metadata", (in_a_minute, in_a_minute))
    assert [step for step, _ in job.look()] == [20]


def test_deepspeeds_fixed_tag_is_not_taken_while_a_rank_has_files_of_the_save_before(
    job: WatchedJob,
) -> None:
    deepspeed(job.folder / "mine", 10)
    assert job.look() == [(10, "mine")]
    optimizer = job.folder / "mine/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    old = time.time() - 60
    os.utime(optimizer, (old, old))
    saved(job.folder / "mine/mp_rank_00_model_states.pt", global_steps=20)
    assert job.look() == []
    os.utime(optimizer)
    assert job.look() == [(20, "mine")]


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


def test_a_marker_of_a_whole_run_is_none_of_a_checkpoint(job: WatchedJob) -> None:
    for name in ("run/DONE", "run/step-30/DONE", "run/step-30/rank-0/state", "run/step-40/logs/notes.txt"):
        put(job.folder / name, "")
    assert job.look() == [(30, "run/step-30")]


def test_megatrons_parts_and_those_of_an_index_are_waited_for(job: WatchedJob) -> None:
    dcp(job.folder / "step-30"), put(job.folder / "step-30/common.pt")
    table = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    safetensors(job.folder / "step-40/model-1.safetensors")
    put(job.folder / "step-40/model.safetensors.index.json", json.dumps(table))
    assert job.look() == []
    put(job.folder / "step-30/metadata.json", "{}"), safetensors(job.folder / "step-40/model-2.safetensors")
    assert job.look() == [(30, "step-30"), (40, "step-40")]


def test_one_folder_of_dcp_with_a_step_is_whole_at_once_and_others_have_to_rest(job: WatchedJob) -> None:
    dcp(job.folder / "step-30"), dcp(job.folder / "step-40/model"), dcp(job.folder / "step-40/optim")
    dcp(job.folder / "newest")
    settling = {candidate.root.name: candidate.settles for candidate in FORMATS["auto"](job.folder, 1, -1)}
    assert settling == {"step-30": False, "step-40": True, "newest": True}


def test_what_the_job_tells_itself_and_numbered_files_of_one_folder_are_each_their_own(job: WatchedJob) -> None:
    for step in (10, 20, 30):
        saved(job.folder / f"model/ckpt_{step}.pt")
    job.recogniser.named_by_job = {job.folder / "model/ckpt_20.pt"}
    assert job.look() == [(10, "model/ckpt_10.pt"), (30, "model/ckpt_30.pt")]


def test_what_is_sealed_counts_as_it_was_when_it_was_found(job: WatchedJob) -> None:
    for name in ("ckpt_10.pt", "model_20.pt"):
        saved(job.folder / name)
    checkpoints = list(job.recogniser.finished_checkpoints("auto", job.folder, 1, -1))
    for checkpoint in checkpoints:
        job.recogniser.note_sealed(checkpoint)
    assert job.recogniser.sealed_paths(20) == {job.folder / "ckpt_10.pt", job.folder / "model_20.pt"}
    assert job.recogniser.sealed_paths(19) == {job.folder / "ckpt_10.pt"}
    saved(job.folder / "model_20.pt", more=1)
    job.recogniser.note_sealed(checkpoints[-1])
    assert job.recogniser.sealed_paths(20) == {job.folder / "ckpt_10.pt"}, "what was sealed is the version before"


@pytest.mark.parametrize(("took", "rests"), [(0.01, 0.0), (0.02, 2.0), (0.5, 50.0), (9.0, 60.0)])
def test_looks_take_a_hundredth_of_a_core(
    took: float, rests: float, job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.recogniser.settles_at_once, used, now = False, [0.0], [1000.0]
    monkeypatch.setattr(looks.time, "thread_time", lambda: used[0])
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    saved(job.folder / "a_10.pt")
    for _ in job.recogniser.finished_checkpoints("marker", job.folder, 1, -1):
        pass
    assert not job.recogniser.rests
    monkeypatch.setattr(looks.time, "thread_time", iter([0.0, took]).__next__)
    assert list(job.recogniser.finished_checkpoints("marker", job.folder, 1, -1)) == []
    for later in (0.0, rests - 0.1, rests + 0.1):
        now[0] = 1000.0 + later
        assert job.recogniser.rests is (later < rests)


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


def test_what_was_laid_back_is_none_that_the_job_has_written_until_it_writes_again(job: WatchedJob) -> None:
    put(job.folder / "ckpt.pt", "no zip, of step 10")
    job.committed = 10
    job.recogniser.note_restored(Finished(10, job.folder / "ckpt.pt"))
    job.at(20)
    assert job.look() == []
    put(job.folder / "ckpt.pt", "no zip, written at step 20")
    assert job.look() == [(20, "ckpt.pt")]


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
        steps += [one.step for one in job.recogniser.finished_checkpoints("marker", job.folder, 1, -1)][-1:]
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


def test_all_files_of_state_with_one_number_are_one_checkpoint(job: WatchedJob) -> None:
    names = ["ema_0.9999_000030.pt", "model000030.pt", "opt000030.pt"]
    for name in (*names, "tokenizer_000030.pt"):
        saved(job.folder / name)
    (checkpoint,) = job.recogniser.finished_checkpoints("auto", job.folder, 1, -1)
    assert (checkpoint.step, sorted(path.name for path in checkpoint.files)) == (30, names)


def test_orbax_is_finished_with_its_rename(job: WatchedJob) -> None:
    writing = job.folder / "30.orbax-checkpoint-tmp-1"
    put(writing / "_CHECKPOINT_METADATA", "{}"), put(writing / "default/d/0a1b"), put(writing / "default/_METADATA")
    assert job.look() == []
    writing.rename(job.folder / "30")
    assert job.look() == [(30, "30")]
    put(job.folder / "runs/40/orbax.checkpoint", ""), put(job.folder / "runs/40/pytree/d/0a1b")
    assert job.look() == [(40, "runs/40")]


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


def test_files_without_numbers_are_one_checkpoint_together(job: WatchedJob) -> None:
    saved(job.folder / "model.pt"), saved(job.folder / "optimizer.pt")
    job.at(5)
    checkpoints = list(job.recogniser.finished_checkpoints("auto", job.folder, 1, -1))
    assert [
        (checkpoint.step, checkpoint.root, [path.name for path in checkpoint.files]) for checkpoint in checkpoints
    ] == [(5, job.folder, ["model.pt", "optimizer.pt"])]


def test_an_export_beside_numbered_checkpoints_is_none_to_go_on_from(job: WatchedJob) -> None:
    huggingface(job.folder / "checkpoint-30"), safetensors(job.folder / "model.safetensors")
    put(job.folder / "config.json", "{}"), put(job.folder / "trainer_state.json", '{"global_step": 30}')
    job.at(30)
    assert job.look() == [(30, "checkpoint-30")] and job.look() == []


def test_of_two_files_of_one_step_the_named_one_is_sealed_and_of_two_steps_both(job: WatchedJob) -> None:
    saved(job.folder / "epoch=1.ckpt", global_step=10, epoch=1), saved(job.folder / "last.ckpt", global_step=20)
    saved(job.folder / "epoch=2.ckpt", global_step=20, epoch=2)
    by_step = dict(job.look())  # the sealing takes the last one of a step
    assert by_step == {10: "epoch=1.ckpt", 20: "epoch=2.ckpt"}


@pytest.mark.parametrize("name", BESIDE)
def test_what_stands_beside_checkpoints_is_none(name: str, job: WatchedJob) -> None:
    put(job.folder / name)
    job.at(9)
    assert job.look() == []

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
    dcp,
    deepspeed,
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


@pytest.mark.parametrize(("name", "step", "doubt"), [("ckpt.pt", 13, 3), ("ckpt_11.pt", 11, 0)])
def test_a_step_that_lines_told_is_in_doubt_and_one_that_a_name_tells_is_not(
    name: str, step: int, doubt: int, job: WatchedJob
) -> None:
    written_s = saved(job.folder / name).stat().st_mtime
    for later_ms, number in enumerate(range(10, 14)):
        job.recogniser.told_steps.note(number, written_s + later_ms / 1000)
    assert [found_step for found_step, _ in job.look()] == [step] and job.recogniser.doubt_of(step) == doubt


def test_what_is_sealed_counts_as_it_was_when_it_was_found(job: WatchedJob) -> None:
    for name in ("ckpt_10.pt", "model_20.pt"):
        saved(job.folder / name)
    checkpoints = list(job.recogniser.finished_checkpoints("auto", job.folder, 1, -1))
    for checkpoint in checkpoints:
        job.recogniser.note_sealed(checkpoint)
    assert job.recogniser.sealed_checkpoints(20) == checkpoints
    assert job.recogniser.sealed_checkpoints(19) == checkpoints[:1]
    saved(job.folder / "model_20.pt", more=1)
    job.recogniser.note_sealed(checkpoints[-1])
    assert job.recogniser.sealed_checkpoints(20) == checkpoints[:1], "what was sealed is the version before"


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


def test_what_was_laid_back_is_none_that_the_job_has_written_until_it_writes_again(job: WatchedJob) -> None:
    put(job.folder / "ckpt.pt", "no zip, of step 10")
    job.committed = 10
    job.recogniser.note_restored(Finished(10, job.folder / "ckpt.pt"))
    job.at(20)
    assert job.look() == []
    put(job.folder / "ckpt.pt", "no zip, written at step 20")
    assert job.look() == [(20, "ckpt.pt")]


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

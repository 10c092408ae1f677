"""Several series of files in one folder: which are checkpoints, which step each has, and what is one checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, half, huggingface, saved
from tests.worlds.checkpoint_files import job as job
from tests.worlds.supervisor_tier import JobNode, put
from trainer.supervisor import seal
from trainer.supervisor.formats import forget_later, recognise
from trainer.supervisor.formats.names import STEP, Number, number_of
from trainer.supervisor.formats.tree import Finished


@pytest.mark.parametrize(
    ("model", "output"),
    [
        ("ckpt/step_{}.pt", "samples/step_{}.npz"),
        ("ckpt_{}.pt", "eval/predictions_step_{}.pt"),
        ("ckpt_{}.pt", "eval_outputs_step{}.pt"),
        ("run/model-{}.safetensors.pt", "run/embeddings/epoch_{}.pt"),
    ],
)
def test_what_a_run_makes_besides_is_never_sealed_in_the_models_place_and_is_told(
    model: str, output: str, tmp_path: Path
) -> None:
    node = JobNode(tmp_path)
    for step in (10, 20):
        saved(node.own / model.format(step))
        for beside in (step, step + 5):
            put(node.own / output.format(beside))
        node.job.sealing.look()
    account = node.end()
    newest = max(seal.committed(node.tier))
    assert newest == 20 and _paths(node, newest) == {model.format(20)}
    assert account.files > 0


def _paths(node: JobNode, step: int) -> set[str]:
    """The files of a sealed step, below the job's folder."""
    tree = seal.tree(node.tier, step)
    return {os.path.normpath(os.path.join(tree.root, name)) for name in tree.files}


@pytest.mark.parametrize(
    ("other", "mine"),
    [
        ("out/best/step_5.pt", "out/step_{}.pt"),
        ("checkpoints_of_teacher/ckpt_{}.pt", "out/step_{}.pt"),
        ("optim/step_{}.pt", "unet/step_{}.pt"),
        ("teacher_model/step_{}.pt", "student/step_{}.pt"),
    ],
)
def test_no_other_name_keeps_the_runs_own_files_from_being_sealed(other: str, mine: str, tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    saved(node.own / other.format(5)), saved(node.own / other.format(6))
    for step in (10, 20):
        saved(node.own / mine.format(step))
        node.job.sealing.look()
    node.end()
    assert mine.format(20) in _paths(node, max(seal.committed(node.tier)))


@pytest.mark.parametrize("output", ["samples/step_{}.npz", "samples_step_{}.pt"])
def test_one_file_that_is_written_again_is_the_model_and_no_numbered_output(output: str, job: WatchedJob) -> None:
    for step in (10, 20):
        job.at(step), saved(job.folder / "model.pt", loss=step), saved(job.folder / output.format(step))
        assert job.look() == [(step, "model.pt")]


def test_a_part_that_every_other_save_has_holds_nothing_up(job: WatchedJob) -> None:
    for step in range(10, 70, 10):
        saved(job.folder / f"weights_{step}.pt")
        if step % 20 == 0:
            saved(job.folder / f"ema_{step}.pt")
        assert [found for found, _ in job.look()] == [step]


def test_what_lacks_a_part_counts_once_the_job_has_ended_well(job: WatchedJob) -> None:
    for step in (10, 20):
        saved(job.folder / f"weights_{step}.pt"), saved(job.folder / f"optimizer_{step}.pt"), job.look()
    saved(job.folder / "weights_30.pt")
    assert job.look() == []
    job.recogniser.ended = True
    assert job.look() == [(30, "weights_30.pt")]


def test_networks_of_a_gan_are_one_checkpoint(job: WatchedJob) -> None:
    saved(job.folder / "netG_10.pth"), saved(job.folder / "netD_10.pth")
    assert job.look() == [(10, ".")]


def test_names_of_pix2pix_count_epochs(job: WatchedJob) -> None:
    job.at(100), saved(job.folder / "run/5_net_G.pth"), saved(job.folder / "run/5_net_D.pth")
    assert job.look() == [(100, "run")]


def test_what_is_downloaded_into_the_series_of_the_run_overtakes_nothing(job: WatchedJob) -> None:
    job.recogniser.planned_steps = 60
    saved(job.folder / "model_100000.pth")
    job.look()
    for step in (10, 20, 9000):
        job.recogniser.told_steps.note(step, time.time() - 1), saved(job.folder / f"model_{step}.pth")
        assert [found for found, _ in job.look()] == [step]


def test_saves_between_two_rare_lines_keep_their_steps(job: WatchedJob) -> None:
    now = time.time()
    for step in (1, 2, 3):
        job.recogniser.told_steps.note(step, now - 1000 + step)
    saved(job.folder / "ckpt_900.pt")
    assert job.look() == [(900, "ckpt_900.pt")]


def test_a_frameworks_own_step_stands_however_little_the_job_tells(job: WatchedJob) -> None:
    job.at(1), job.at(2)
    huggingface(job.folder / "checkpoint-50000")
    assert job.look() == [(50000, "checkpoint-50000")]


def test_numbers_of_micro_batches_are_kept(job: WatchedJob) -> None:
    for told in (10, 20, 30):
        job.at(told), saved(job.folder / f"ckpt_{8 * told}.pt")
        assert job.look() == [(8 * told, f"ckpt_{8 * told}.pt")]


def test_a_number_of_micro_batches_is_no_foreign_one(job: WatchedJob) -> None:
    now = time.time()
    job.recogniser.told_steps.note(9, now - 1.0), job.recogniser.told_steps.note(10, now)
    saved(job.folder / "ckpt_80.pt")
    assert job.look() == [(80, "ckpt_80.pt")]


def test_epoch_and_step_without_words_are_one_checkpoint_each(job: WatchedJob) -> None:
    sealed = []
    for told, name in ((100, "ckpt_1_100.pt"), (200, "ckpt_1_200.pt"), (300, "ckpt_2_100.pt"), (400, "ckpt_2_200.pt")):
        job.at(told), saved(job.folder / name)
        sealed += job.look()
    assert [name for _, name in sealed] == ["ckpt_1_100.pt", "ckpt_1_200.pt", "ckpt_2_100.pt", "ckpt_2_200.pt"]
    assert [step for step, _ in sealed] == sorted(step for step, _ in sealed)


def test_an_older_file_of_a_series_of_which_nothing_is_sealed_is_not_known_as_older(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    saved(node.own / "nets/encoder_state_10.pt")
    saved(node.own / "ckpt_20.pt")
    node.job.sealing.recogniser.named_by_job.add(node.own / "nets")  # it is not sealed
    assert node.end().entries == ("nets",) and seal.committed(node.tier) == [20]


@pytest.mark.parametrize("values", [{"steps": 1000, "epoch": 1}, {"num_steps": 1000}, {"n_iter": 1000}])
def test_the_length_of_a_run_is_no_step(values: dict[str, object], job: WatchedJob) -> None:
    job.at(10)
    saved(job.folder / "ckpt.pt", **values)
    assert job.look() == [(10, "ckpt.pt")]


@pytest.mark.parametrize("name", ["args.json", "train_config.json", "hparams.json", "settings.json"])
def test_numbers_that_somebody_asked_for_are_no_step(name: str, job: WatchedJob) -> None:
    saved(job.folder / "checkpoint-20/model.pt"), saved(job.folder / "checkpoint-20/optimizer.pt")
    put(job.folder / "checkpoint-20" / name, '{"iteration": 1000, "step": 1000}')
    assert job.look() == [(20, "checkpoint-20")]


def test_a_number_far_beyond_the_steps_that_the_job_tells_is_no_step(job: WatchedJob) -> None:
    job.at(10), job.at(20)
    saved(job.folder / "pretrained/model_step_100000.pt")
    assert job.look() == [(20, "pretrained/model_step_100000.pt")]
    saved(job.folder / "ckpt_30.pt")
    assert job.look() == [(30, "ckpt_30.pt")]


def test_before_a_step_is_told_the_estimate_says_what_is_far_beyond(job: WatchedJob) -> None:
    job.recogniser.planned_steps = 60
    saved(job.folder / "pretrained/model_step_100000.pt")
    assert job.look() == [(0, "pretrained/model_step_100000.pt")]
    saved(job.folder / "ckpt_600.pt")
    assert job.look() == [(600, "ckpt_600.pt")], "an estimate may be wrong by a factor"


def test_a_series_that_counts_samples_goes_on_with_told_steps_after_a_restart(job: WatchedJob) -> None:
    path = saved(job.folder / "ckpt_5120.pt")
    job.recogniser.note_restored(Finished(20, path))
    job.committed = 20
    job.at(30)
    saved(job.folder / "ckpt_7680.pt")
    assert job.look() == [(30, "ckpt_7680.pt")]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-50-epoch-0", Number(50, STEP)),
        ("ckpt_s50_e3.pt", Number(50, STEP)),
        ("ckpt_e3_b50.pt", Number(50, STEP)),
        ("ckpt_50_0.pt", Number(50, "plain")),
        ("vit_b16_50.pt", Number(50, "plain")),
    ],
)
def test_of_two_numbers_in_a_name_the_step_is_taken(name: str, step: Number) -> None:
    assert number_of(name) == step


@pytest.mark.parametrize("name", ["epoch{}_iter{}.pt", "ckpt_e{}_b{}.pt", "epoch_{}/step_{}.pt"])
def test_steps_that_begin_again_in_each_epoch_are_sealed_at_what_the_job_tells(name: str, job: WatchedJob) -> None:
    sealed = []
    for told, (epoch, step) in zip((100, 200, 300, 400), ((0, 100), (0, 200), (1, 100), (1, 200)), strict=True):
        job.at(told)
        saved(job.folder / name.format(epoch, step))
        sealed += job.look()
    laps = ((100, 0, 100), (200, 0, 200), (300, 1, 100), (400, 1, 200))
    assert sealed == [(told, name.format(epoch, step)) for told, epoch, step in laps]


def test_an_older_epoch_that_is_written_again_is_not_the_newest(job: WatchedJob) -> None:
    for told, name in ((100, "epoch0_iter100.pt"), (200, "epoch1_iter100.pt")):
        job.at(told), saved(job.folder / name), job.look()
    job.at(300), saved(job.folder / "epoch0_iter50.pt")
    assert job.look() == []


def test_a_part_in_another_folder_that_comes_after_its_step_is_sealed_joins_it(tmp_path: Path) -> None:
    """As BasicSR writes `models/net_g_N.pth`, and then `training_states/N.state`."""
    node = JobNode(tmp_path)
    for step in (10, 20):
        saved(node.own / f"models/net_g_{step}.pth")
        node.job.sealing.look()
        saved(node.own / f"training_states/{step}.state")
        node.job.sealing.look()
    account = node.end()
    assert seal.committed(node.tier) == [20, 10] and account.files == 0
    for step in (10, 20):
        assert _paths(node, step) == {f"models/net_g_{step}.pth", f"training_states/{step}.state"}


def test_a_step_that_is_saved_again_before_the_run_goes_on_takes_no_turn(job: WatchedJob) -> None:
    path = saved(job.folder / "ckpt_10.pt")
    job.recogniser.note_restored(Finished(10, path))
    job.committed = 10
    now = time.time()
    for step in (14, 19, 24):  # all within the delay of a line
        job.recogniser.told_steps.note(step, now)
    for delay_s, name in ((0.001, "ckpt_10.pt"), (0.002, "ckpt_20.pt")):
        saved(job.folder / name)
        os.utime(job.folder / name, (now + delay_s, now + delay_s))
    assert job.look() == [(20, "ckpt_20.pt")]


def test_the_one_before_that_a_job_keeps_beside_its_file_joins_no_step(job: WatchedJob) -> None:
    saved(job.folder / "ckpt.pt", step=10)
    assert job.look() == [(10, "ckpt.pt")]
    (job.folder / "ckpt.pt").rename(job.folder / "ckpt_prev.pt")
    assert job.look() == []
    saved(job.folder / "ckpt.pt", step=20)
    assert job.look() == [(20, "ckpt.pt")]


def test_a_half_written_folder_with_step_and_epoch_goes_at_a_restart(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoint-40-epoch-0/model.pt")
    half(saved(tmp_path / "checkpoint-50-epoch-0/model.pt"))
    forget_later("auto", tmp_path, Finished(40, tmp_path / "checkpoint-40-epoch-0"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-40-epoch-0"]


def test_a_copy_of_an_older_step_is_not_sealed_as_the_newest(job: WatchedJob) -> None:
    for step in (10, 20):
        job.at(step), saved(job.folder / f"ckpt_{step}.pt"), job.look()
    job.at(30), saved(job.folder / "best_model_10.pt")
    assert job.look() == []


@pytest.mark.parametrize(("name", "is_done"), [("step-10", True), ("newest", False)])
def test_a_marker_ends_a_folder_with_a_step_and_one_that_is_written_again_has_to_rest(
    name: str, is_done: bool, job: WatchedJob
) -> None:
    job.recogniser.settles_at_once = False
    job.at(10), put(job.folder / name / "state"), put(job.folder / name / "DONE", "")
    assert bool(job.look()) == is_done


def test_a_series_keeps_its_steps_beside_what_is_downloaded_into_it(job: WatchedJob) -> None:
    job.recogniser.planned_steps = 60
    saved(job.folder / "model_90000000.pth")
    job.look()
    job.at(10), job.at(20)
    saved(job.folder / "model_18.pth")
    assert job.look() == [(18, "model_18.pth")], "not the step that was told last"


def test_a_job_that_tells_few_steps_may_be_far_beyond_the_last_one(
    job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    job.recogniser.told_steps.note(10, now - 1.0), job.recogniser.told_steps.note(110, now)
    saved(job.folder / "ckpt_7500.pt")
    monkeypatch.setattr(recognise.time, "time", lambda: now)
    assert job.look() == [(7500, "ckpt_7500.pt")], "64 times 110, and ten times the 100 between two lines"


def test_notes_beside_a_file_that_is_all_of_a_step_are_no_part_of_it(job: WatchedJob) -> None:
    saved(job.folder / "ckpt_30.pt"), put(job.folder / "metrics_30.json", "{}")
    assert job.look() == [(30, "ckpt_30.pt")]


def test_who_marks_files_marks_lightnings_too(job: WatchedJob) -> None:
    for step in (10, 20):
        saved(job.folder / f"ckpt_{step}.ckpt", global_step=step)
    put(job.folder / "ckpt_10.ckpt.done", "")
    assert job.look() == [(10, "ckpt_10.ckpt")]


def test_the_iteration_in_the_only_file_of_its_name_is_its_step_and_not_its_number(job: WatchedJob) -> None:
    for step in (10, 20):
        job.at(step), saved(job.folder / "model_512.pt", iteration=step)
        assert job.look() == [(step, "model_512.pt")]


def test_the_number_of_one_of_several_files_is_its_step_and_not_the_iteration(job: WatchedJob) -> None:
    for epoch in (1, 2):
        saved(job.folder / f"model_{1000 * epoch}.pth", iteration=epoch)
    assert [step for step, _ in job.look()] == [1000, 2000]

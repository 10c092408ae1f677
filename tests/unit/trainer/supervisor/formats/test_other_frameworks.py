"""Checkpoints of frameworks that name, date or divide their files in ways of their own; each written as it does."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, accelerate, dcp, half, safetensors, saved
from tests.worlds.supervisor_tier import JobNode, put
from trainer.supervisor import seal
from trainer.supervisor.formats import forget_later, offered
from trainer.supervisor.formats.tree import Finished

END_OF_TABLE = (0xDB4775248B80FB57).to_bytes(8, "little")
"""`kTableMagicNumber` of LevelDB's tables, which TensorFlow writes."""


def vits(own: Path, step: int, epoch: int) -> None:
    for network in "GD":  # `iteration` is given the epoch
        saved(own / f"{network}_{step}.pth", model=0, iteration=epoch, optimizer=0)


def hifigan(own: Path, step: int, epoch: int) -> None:
    saved(own / f"g_{step:08d}", generator=0), saved(own / f"do_{step:08d}", mpd=0, steps=step, epoch=epoch)


def tacotron(own: Path, step: int, epoch: int) -> None:
    saved(own / f"checkpoint_{step}", iteration=step, state_dict=0)


def flax(own: Path, step: int, epoch: int) -> None:
    put(own / "checkpoint_tmp", b"\x82\xa4step" + bytes([step]) + b"\xa6params\x80")
    os.replace(own / "checkpoint_tmp", own / f"checkpoint_{step}")


def tensorflow(own: Path, step: int, epoch: int) -> None:
    save_under(own, f"ckpt-{epoch}")


def save_under(own: Path, stem: str) -> None:
    put(own / f"{stem}.data-00000-of-00002", b"x"), put(own / f"{stem}.data-00001-of-00002", b"y")
    put(own / f"{stem}.index", b"table" * 9 + END_OF_TABLE)
    put(own / "checkpoint", f'model_checkpoint_path: "{stem}"\nall_model_checkpoint_paths: "{stem}"\n')


def kohya(own: Path, step: int, epoch: int) -> None:
    safetensors(own / f"style-{epoch:06d}.safetensors", ss_steps=str(step), ss_epoch=str(epoch))
    _kohya_state(own / f"style-{epoch:06d}-state", step, epoch)


def kohya_steps(own: Path, step: int, epoch: int) -> None:
    safetensors(own / f"style-step{step:08d}.safetensors", ss_steps=str(step))
    _kohya_state(own / f"style-step{step:08d}-state", step, epoch)


def _kohya_state(root: Path, step: int, epoch: int) -> None:
    accelerate(root), put(root / "train_state.json", json.dumps({"current_epoch": epoch, "current_step": step}))


def kohya_weights(own: Path, step: int, epoch: int) -> None:
    safetensors(own / f"lora-{epoch:06d}.safetensors", ss_steps=str(step), ss_epoch=str(epoch))


def cyclegan(own: Path, step: int, epoch: int) -> None:
    for network in ("G_A", "G_B", "D_A", "D_B"):
        for prefix in ("latest", epoch):
            saved(own / f"experiment/{prefix}_net_{network}.pth")


def stable_baselines(own: Path, step: int, epoch: int) -> None:
    saved(own / f"rl_model_{step}_steps.zip")
    saved(own / f"rl_model_replay_buffer_{step}_steps.pkl"), saved(own / f"rl_model_vecnormalize_{step}_steps.pkl")


def composer(own: Path, step: int, epoch: int) -> None:
    path = saved(own / f"run/checkpoints/ep{epoch}-ba{step}-rank0.pt")
    link = path.with_name("latest-rank0.pt")
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)


def composer_shards(own: Path, step: int, epoch: int) -> None:
    dcp(own / f"run/checkpoints/ep{epoch}-ba{step}")


def orbax_of_flax(own: Path, step: int, epoch: int) -> None:
    _renamed(own / f"checkpoint_{step}", {"_METADATA": b"{}", "manifest.ocdbt": b"m", "d/0a1b": b"x"})


def orbax_before_its_metadata(own: Path, step: int, epoch: int) -> None:
    _renamed(own / str(step), {"state/checkpoint": b"\x81\xa1w\x00", "state/params.w/.zarray": b"{}"})


def orbax_of_a_run(own: Path, step: int, epoch: int) -> None:
    _renamed(own / f"resnet50/{step}", {"_CHECKPOINT_METADATA": b"{}", "default/_METADATA": b"{}"})


def _renamed(root: Path, contents: dict[str, bytes]) -> None:
    writing = root.with_name(f"{root.name}.orbax-checkpoint-tmp-17")
    for name, content in contents.items():
        put(writing / name, content)
    os.replace(writing, root)


SERIES: dict[Callable[[Path, int, int], None], tuple[str, ...]] = {
    vits: ("D_{step}.pth", "G_{step}.pth"),
    hifigan: ("do_{step:08d}", "g_{step:08d}"),
    tacotron: ("checkpoint_{step}",),
    flax: ("checkpoint_{step}",),
    tensorflow: ("ckpt-{epoch}.data-00000-of-00002", "ckpt-{epoch}.data-00001-of-00002", "ckpt-{epoch}.index"),
    kohya: ("style-{epoch:06d}-state", "style-{epoch:06d}.safetensors"),
    kohya_steps: ("style-step{step:08d}-state", "style-step{step:08d}.safetensors"),
    kohya_weights: ("lora-{epoch:06d}.safetensors",),
    cyclegan: tuple(f"experiment/{{epoch}}_net_{name}.pth" for name in ("D_A", "D_B", "G_A", "G_B")),
    stable_baselines: (
        "rl_model_{step}_steps.zip", "rl_model_replay_buffer_{step}_steps.pkl", "rl_model_vecnormalize_{step}_steps.pkl"
    ),
    composer: ("run/checkpoints/ep{epoch}-ba{step}-rank0.pt",),
    composer_shards: ("run/checkpoints/ep{epoch}-ba{step}",),
    orbax_of_flax: ("checkpoint_{step}",),
    orbax_before_its_metadata: ("{step}",),
    orbax_of_a_run: ("resnet50/{step}",),
}  # fmt: skip
"""How three saves are written, and the files and folders that are each of them."""


@pytest.mark.parametrize("write", SERIES)
def test_each_save_of_a_framework_is_one_checkpoint_with_the_step_of_the_job(
    write: Callable[[Path, int, int], None], job: WatchedJob
) -> None:
    for epoch, step in enumerate((10, 20, 30), 1):
        job.at(step), job.folder.mkdir(exist_ok=True), write(job.folder, step, epoch)
        (checkpoint,) = job.recogniser.finished_checkpoints("auto", job.folder, 1, job.committed)
        tops = sorted(str(path.relative_to(job.folder)) for path in checkpoint.tops)
        assert (checkpoint.step, tops) == (step, sorted(name.format(step=step, epoch=epoch) for name in SERIES[write]))
        job.recogniser.note_sealed(checkpoint)
        job.committed = step


@pytest.mark.parametrize("write", [vits, hifigan, tacotron, flax, kohya, stable_baselines])
def test_a_step_that_name_or_content_tell_is_taken_whatever_the_job_has_told(
    write: Callable[[Path, int, int], None], job: WatchedJob
) -> None:
    job.at(54), job.folder.mkdir(), write(job.folder, 50, 5)
    assert [step for step, _ in job.look()] == [50]


@pytest.mark.parametrize("write", SERIES)
def test_what_a_framework_has_saved_later_goes_at_a_restart_and_nothing_else(
    write: Callable[[Path, int, int], None], tmp_path: Path
) -> None:
    node = JobNode(tmp_path)
    put(node.own / "vocab_50257", "words"), put(node.own / "config.json", "{}")
    write(node.own, 10, 1)
    before = {path.relative_to(node.own) for path in node.own.rglob("*")}
    node.job.sealing.finish(0)
    (step,) = seal.committed(node.tier)
    write(node.own, 20, 2)
    assert node.job.sealing.laid_back(step).exists()
    assert {path.relative_to(node.own) for path in node.own.rglob("*")} == before


@pytest.mark.parametrize("write", [kohya, kohya_steps])
def test_kohyas_scripts_go_on_from_the_folder_of_their_state(
    write: Callable[[Path, int, int], None], tmp_path: Path
) -> None:
    write(tmp_path, 10, 1)
    files = sorted(tmp_path.iterdir())
    assert offered(tmp_path, files) == files[0] and files[0].name.endswith("-state")


def test_weights_of_tensorflow_and_orbax_stay_when_a_job_starts_from_nothing(tmp_path: Path) -> None:
    save_under(tmp_path / "pretrained", "bert_model.ckpt"), (tmp_path / "pretrained/checkpoint").unlink()
    _renamed(tmp_path / "gemma/params", {"_METADATA": b"{}", "manifest.ocdbt": b"m"})
    before = sorted(tmp_path.rglob("*"))
    forget_later("auto", tmp_path, None)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_torn_file_without_an_ending_goes_with_what_belongs_to_it(tmp_path: Path) -> None:
    hifigan(tmp_path, 10, 1)
    half(tmp_path / "do_00000010")
    forget_later("auto", tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_weights_wait_for_the_state_of_which_kohyas_scripts_keep_the_newest_alone(job: WatchedJob) -> None:
    for step in (10, 20):
        kohya_steps(job.folder, step, 1)
        shutil.rmtree(job.folder / f"style-step{step - 10:08d}-state", ignore_errors=True)
        assert job.look() == [(step, ".")]
    safetensors(job.folder / "style-step00000030.safetensors")
    assert job.look() == []
    _kohya_state(job.folder / "style-step00000030-state", 30, 1)
    assert job.look() == [(30, ".")]


def test_a_file_without_an_ending_that_was_written_as_the_job_failed_is_not_sealed(job: WatchedJob) -> None:
    job.recogniser.settles_at_once = False
    for step in (10, 20):
        job.at(step), put(job.folder / f"checkpoint_{step}", pickle.dumps({"iteration": step}, protocol=2))
        assert job.look() == []
    job.recogniser.failed = True
    assert job.look() == [], "it may be torn"
    for step in (10, 20):
        os.utime(job.folder / f"checkpoint_{step}", (time.time() - 60 + step,) * 2)
    job.look()
    assert job.committed == 20


def test_a_folder_of_accelerate_is_sealed_beside_an_export_of_its_step_but_no_copy_of_it(job: WatchedJob) -> None:
    job.at(10), accelerate(job.folder / "epoch_1")
    held_back = job.folder.parent / "epoch_1"
    os.replace(job.folder / "epoch_1", held_back)
    safetensors(job.folder / "lora_step_10.safetensors")
    assert job.look() == [(10, "lora_step_10.safetensors")]
    os.replace(held_back, job.folder / "epoch_1")
    assert job.look() == [(11, "epoch_1")]
    shutil.copytree(job.folder / "epoch_1", job.folder / "best_epoch_1")
    assert job.look() == []


def test_an_export_takes_no_place_of_a_frameworks_own_checkpoint_of_its_step(job: WatchedJob) -> None:
    own, export = Finished(10, job.folder / "epoch_1"), Finished(10, job.folder / "lora_step_10.pt", plain=True)
    for checkpoints in ([own, export], [export, own]):
        assert job.recogniser.whole(checkpoints) == {10: own}


def test_a_jobs_own_file_of_trackers_name_stays(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoint", step=3)
    forget_later("auto", tmp_path, None)
    assert (tmp_path / "checkpoint").exists()


def test_a_model_of_trackers_name_is_unrecognised(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    tensorflow(node.own / "other", 10, 1), saved(node.own / "checkpoint")
    assert node.end().entries == ("checkpoint",)


def test_tensorflows_tracker_is_accounted_for(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    tensorflow(node.own, 10, 1)
    assert node.end().files == 0


@pytest.mark.parametrize("start", [b"text: 1\n", b"\x00\x01\x02\x03", b"", b"\x89PNG"])
def test_a_file_without_an_ending_that_begins_like_no_state_is_none(start: bytes, job: WatchedJob) -> None:
    put(job.folder / "checkpoint_10", start)
    assert job.look() == []


def test_the_jobs_own_folder_is_no_folder_of_tensorflows_parts_whatever_its_name(tmp_path: Path) -> None:
    job = WatchedJob(tmp_path / "own_temp")
    save_under(job.folder, "part-00000-of-00002")
    job.recogniser.ended = True
    assert [root for _, root in job.look()] == ["."]


@pytest.mark.parametrize("tracker", ["latest", "latest_checkpointed_iteration.txt"])
@pytest.mark.parametrize("is_link", [True, False])
def test_a_link_or_folder_by_the_name_of_a_tracker_is_left_alone(tracker: str, is_link: bool, tmp_path: Path) -> None:
    saved(tmp_path / "iter_0000030/mp_rank_00/model_optim_rng.pt"), put(tmp_path / "mine", "30")
    if is_link:
        (tmp_path / tracker).symlink_to("mine")
    else:
        put(tmp_path / tracker / "state")
    forget_later("auto", tmp_path, Finished(30, tmp_path / "iter_0000030"))
    assert (tmp_path / tracker).is_symlink() if is_link else (tmp_path / tracker / "state").exists()


@pytest.mark.parametrize(
    ("form", "trackers"),
    [
        ("marker", []),
        ("deepspeed", [("latest", "iter_0000030")]),
        ("megatron", [("latest_checkpointed_iteration.txt", "30")]),
    ],
)
def test_a_new_disk_gets_the_tracker_of_the_format_in_the_spec_alone(
    form: str, trackers: list[tuple[str, str]], tmp_path: Path
) -> None:
    put(tmp_path / "iter_0000030/state")
    forget_later(form, tmp_path, Finished(30, tmp_path / "iter_0000030"))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == trackers


def test_a_tracker_that_names_nothing_goes_when_a_job_starts_from_nothing(tmp_path: Path) -> None:
    put(tmp_path / "latest_checkpointed_iteration.txt", "50")
    forget_later("megatron", tmp_path, None)
    assert list(tmp_path.iterdir()) == []

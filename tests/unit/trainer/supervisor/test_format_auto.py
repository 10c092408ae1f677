"""`format: auto` knows the checkpoints that scripts really write, and takes nothing half-written for one."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.supervisor.formats import FORMATS, Finished, Recogniser, forget_later
from trainer.supervisor.formats import recognise as looks


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def saved(path: Path, **values: object) -> Path:
    """As `torch.save` writes a dictionary: a zip whose directory comes last, with the pickle first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{path.stem}/data.pkl", pickle.dumps(values, protocol=2))
        file.writestr(f"{path.stem}/data/0", b"0" * 4096)
    return path


def half(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def safetensors(path: Path, size: int = 64, **metadata: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, "__metadata__": metadata}
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"1" * size)
    return path


class Job:
    """A job's folder, and looks at it at which nothing needs to settle."""

    def __init__(self, folder: Path, form: str = "auto") -> None:
        self.folder, self.form, self.recogniser, self.committed = folder, form, Recogniser(), -1
        self.recogniser.ended = True

    def at(self, step: int) -> None:
        """Let the job tell a step, some seconds ago: what is written now is written after it."""
        self.recogniser._heard.append((time.time() - 1, step))

    def look(self, ranks: int = 1) -> list[tuple[int, str]]:
        """Return what is sealed at this look: each step with its root."""
        found = list(self.recogniser.finished_checkpoints(self.form, self.folder, ranks, self.committed))
        for one in sorted(found):
            if one.step > self.committed:
                self.committed = one.step
                self.recogniser.note_sealed(one)
        return [(one.step, str(one.root.relative_to(self.folder))) for one in found]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "own")


def dcp(root: Path, metadata: bool = True) -> None:
    put(root / "__0_0.distcp")
    if metadata:
        put(root / ".metadata")


def huggingface(root: Path, optimizer: bool = True) -> None:
    safetensors(root / "model.safetensors"), saved(root / "training_args.bin")
    if optimizer:
        saved(root / "optimizer.pt"), saved(root / "rng_state.pth")
    put(root / "trainer_state.json", json.dumps({"global_step": int(root.name.partition("-")[2]), "log_history": []}))


def accelerate(root: Path) -> None:
    safetensors(root / "model.safetensors"), saved(root / "optimizer.bin"), saved(root / "random_states_0.pkl", step=0)


def deepspeed(root: Path, steps: int) -> None:
    saved(root / "mp_rank_00_model_states.pt", global_steps=steps)
    saved(root / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    put(root.parent / "latest", root.name)


KINDS: dict[str, tuple[Callable[[Path], object], tuple[int, str], str]] = {
    "DCP in two folders below a run": (
        lambda own: (dcp(own / "run-a/step-30/model"), dcp(own / "run-a/step-30/optim")),
        (30, "run-a/step-30"), "run-a/step-30/optim/.metadata",
    ),
    "torchtitan": (
        lambda own: dcp(own / "checkpoint/step-30"), (30, "checkpoint/step-30"), "checkpoint/step-30/.metadata",
    ),
    "lingua": (lambda own: dcp(own / "0000000030"), (30, "0000000030"), "0000000030/.metadata"),
    "Hugging Face": (
        lambda own: huggingface(own / "checkpoint-30"), (30, "checkpoint-30"), "checkpoint-30/trainer_state.json",
    ),
    "Hugging Face, weights only": (
        lambda own: huggingface(own / "out/checkpoint-30", optimizer=False),
        (30, "out/checkpoint-30"), "out/checkpoint-30/trainer_state.json",
    ),
    "Accelerate with names of steps": (
        lambda own: accelerate(own / "step_30"), (30, "step_30"), "step_30/random_states_0.pkl",
    ),
    "DeepSpeed": (
        lambda own: deepspeed(own / "run/global_step30", 30), (30, "run/global_step30"),
        "run/latest",
    ),
    "DeepSpeed with a fixed tag": (
        lambda own: deepspeed(own / "mine", 30), (30, "mine"), "latest",
    ),
    "Megatron": (
        lambda own: (
            saved(own / "iter_0000030/mp_rank_00/model_optim_rng.pt"),
            put(own / "latest_checkpointed_iteration.txt", "30"),
        ),
        (30, "iter_0000030"), "latest_checkpointed_iteration.txt",
    ),
    "Lightning without a step in its name": (
        lambda own: saved(own / "version_0/checkpoints/epoch=3-val_loss=0.12.ckpt", epoch=3, global_step=30),
        (30, "version_0/checkpoints/epoch=3-val_loss=0.12.ckpt"), "version_0/checkpoints/epoch=3-val_loss=0.12.ckpt",
    ),
    "Lightning's last": (lambda own: saved(own / "last.ckpt", global_step=30), (30, "last.ckpt"), "last.ckpt"),
    "nanoGPT": (
        lambda own: saved(own / "ckpt.pt", iter_num=30, config={"iter_num": 9, "step": 8}), (30, "ckpt.pt"), "ckpt.pt",
    ),
    "a snapshot below Hydra's folder of a run": (
        lambda own: saved(own / "2025-11-25/12-30-00/snapshot.pt", step=30),
        (30, "2025-11-25/12-30-00/snapshot.pt"), "2025-11-25/12-30-00/snapshot.pt",
    ),
    "one file each": (lambda own: saved(own / "ckpt_30.pt"), (30, "ckpt_30.pt"), "ckpt_30.pt"),
    "nanochat": (
        lambda own: (
            saved(own / "d12/model_000030.pt"), saved(own / "d12/optim_000030_rank0.pt"),
            put(own / "d12/meta_000030.json"),
        ),
        (30, "d12"), "d12/optim_000030_rank0.pt",
    ),
    "litgpt": (
        lambda own: (saved(own / "step-00000030/lit_model.pth"), put(own / "step-00000030/model_config.yaml")),
        (30, "step-00000030"), "step-00000030/lit_model.pth",
    ),
    "safetensors in folders": (
        lambda own: (safetensors(own / "step_30/model.safetensors"), put(own / "step_30/config.json", "{}")),
        (30, "step_30"), "step_30/model.safetensors",
    ),
    "safetensors in place": (
        lambda own: safetensors(own / "model.safetensors", step="30"), (30, "model.safetensors"), "model.safetensors",
    ),
    "folders of digits": (lambda own: saved(own / "30/model.pt"), (30, "30"), "30/model.pt"),
    "a marker in a folder": (
        lambda own: (put(own / "save-30/state"), put(own / "save-30/DONE", "")), (30, "save-30"), "save-30/DONE",
    ),
    "a marker beside a file": (
        lambda own: (put(own / "ckpt_30.pt", "no zip"), put(own / "ckpt_30.pt.done", "")),
        (30, "ckpt_30.pt"), "ckpt_30.pt",
    ),
}  # fmt: skip
"""How it is written, what is sealed, and the file without which it is not finished."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_recognised_whole_and_not_with_its_end_missing_or_half_written(kind: str, job: Job) -> None:
    write, sealed, end = KINDS[kind]
    write(job.folder)
    assert job.look() == [sealed]
    torn = Job(job.folder)
    whole = (job.folder / end).read_bytes()
    (job.folder / end).unlink()
    if kind != "nanochat":  # its ranks are not known from one checkpoint
        assert torn.look() == []
    (job.folder / end).write_bytes(whole[: len(whole) // 2])
    if whole[:2] == b"PK" or end.endswith((".json", ".safetensors", "latest")):
        assert torn.look() == []


def test_two_parts_of_dcp_are_one_checkpoint_that_waits_for_both(job: Job) -> None:
    dcp(job.folder / "step-10/model"), dcp(job.folder / "step-10/optim", metadata=False)
    assert job.look() == []
    put(job.folder / "step-10/optim/.metadata")
    assert job.look() == [(10, "step-10")]


def test_a_part_that_has_not_begun_is_waited_for_until_the_folder_has_settled(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    job.recogniser.ended = False
    dcp(job.folder / "step-10/model")
    assert job.look() == []
    now[0] += looks.SETTLES_S - 0.1
    dcp(job.folder / "step-10/optim")
    assert job.look() == []
    now[0] += looks.SETTLES_S - 0.1
    assert job.look() == [], "it has changed meanwhile"
    now[0] += 0.2
    assert job.look() == [], "the job has told no step since: it may gather what it writes next"
    job.recogniser.hear(11)
    assert job.look() == [(10, "step-10")]


def test_a_job_that_tells_no_step_is_waited_for_longer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    job.recogniser.ended = False
    saved(job.folder / "step-10/model.pt")
    assert job.look() == []
    now[0] += looks.QUIET_S - 0.1
    assert job.look() == []
    now[0] += 0.2
    assert job.look() == [(10, "step-10")]


def test_files_that_are_all_newer_than_the_save_before_count_once_the_job_trains_on(job: Job) -> None:
    job.recogniser.ended = False
    for step in (10, 20, 30):
        job.at(step)
        saved(job.folder / "model.pt", at=step)
        if step == 20:
            assert job.look() == [], "the optimizer's is of step 10"
        saved(job.folder / "optimizer.pt", at=step)
        assert job.look() == [], "the job may still write"
        job.recogniser._heard.append((time.time() + 1, step + 1))
        assert [step for step, _ in job.look()] == ([] if step == 10 else [step]), "the first may lack a file"


def test_of_a_job_that_has_failed_what_is_all_newer_than_the_save_before_counts(job: Job) -> None:
    job.recogniser.ended = False
    for step in (10, 20):
        job.at(step)
        saved(job.folder / "model.pt", at=step), saved(job.folder / "optimizer.pt", at=step)
        assert job.look() == []
    job.recogniser.failed = True
    assert [step for step, _ in job.look()] == [20]
    saved(job.folder / "model.pt", at=30)
    assert job.look() == [], "it failed before it wrote the optimizer"


def test_the_folder_that_dcp_writes_again_is_not_taken_while_old_and_new_files_lie_there(job: Job) -> None:
    dcp(job.folder / "latest")
    job.at(10)
    assert job.look() == [(10, "latest")]
    job.at(20)
    later = time.time() + 60
    os.utime(put(job.folder / "latest/__0_0.distcp", "newer"), (later, later))
    assert job.look() == [], "`.metadata` is of the save before"
    os.utime(job.folder / "latest/.metadata", (later, later))
    assert [step for step, _ in job.look()] == [20]


def test_deepspeeds_fixed_tag_is_not_taken_while_one_rank_still_has_the_files_of_the_save_before(job: Job) -> None:
    deepspeed(job.folder / "mine", 10)
    assert job.look() == [(10, "mine")]
    optimizer = job.folder / "mine/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    old = time.time() - 60
    os.utime(optimizer, (old, old))
    saved(job.folder / "mine/mp_rank_00_model_states.pt", global_steps=20)
    assert job.look() == []
    os.utime(optimizer)
    assert job.look() == [(20, "mine")]


def test_a_step_in_the_name_counts_before_the_content_and_that_of_any_file_before_what_was_told(job: Job) -> None:
    saved(job.folder / "state-step=30.pt", step=31)
    job.at(50)
    assert job.look() == [(30, "state-step=30.pt")]
    put(job.folder / "model/config.json", "{}"), saved(job.folder / "model/weights.pt", step=40)
    put(job.folder / "model/notes.txt")
    assert job.look() == [(40, "model")]


def test_only_in_accelerates_own_folder_a_plain_number_counts_saves(job: Job) -> None:
    accelerate(job.folder / "run/checkpoint_30")
    job.at(50)
    assert job.look() == [(30, "run/checkpoint_30")]
    accelerate(job.folder / "checkpoints/checkpoint_31")
    assert job.look() == [(50, "checkpoints/checkpoint_31")]


def test_a_marker_of_a_whole_run_is_none_of_a_checkpoint(job: Job) -> None:
    for name in ("run/DONE", "run/step-30/DONE", "run/step-30/rank-0/state", "run/step-40/logs/notes.txt"):
        put(job.folder / name, "")
    assert job.look() == [(30, "run/step-30")]


def test_megatrons_parts_and_those_of_an_index_are_waited_for(job: Job) -> None:
    dcp(job.folder / "step-30"), put(job.folder / "step-30/common.pt")
    table = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    safetensors(job.folder / "step-40/model-1.safetensors")
    put(job.folder / "step-40/model.safetensors.index.json", json.dumps(table))
    assert job.look() == []
    put(job.folder / "step-30/metadata.json", "{}"), safetensors(job.folder / "step-40/model-2.safetensors")
    assert job.look() == [(30, "step-30"), (40, "step-40")]


def test_one_folder_of_dcp_with_a_step_is_whole_at_once_and_others_have_to_rest(job: Job) -> None:
    dcp(job.folder / "step-30"), dcp(job.folder / "step-40/model"), dcp(job.folder / "step-40/optim")
    dcp(job.folder / "newest")
    found = {one.root.name: one.settles for one in FORMATS["auto"](job.folder, 1, -1)}
    assert found == {"step-30": False, "step-40": True, "newest": True}


def test_what_the_job_tells_itself_and_numbered_files_of_one_folder_are_each_their_own(job: Job) -> None:
    for step in (10, 20, 30):
        saved(job.folder / f"model/ckpt_{step}.pt")
    job.recogniser.named_by_job = {job.folder / "model/ckpt_20.pt"}
    assert job.look() == [(10, "model/ckpt_10.pt"), (30, "model/ckpt_30.pt")]


def test_what_is_sealed_counts_as_it_was_when_it_was_found(job: Job) -> None:
    for name in ("ckpt_10.pt", "model_20.pt"):
        saved(job.folder / name)
    found = list(job.recogniser.finished_checkpoints("auto", job.folder, 1, -1))
    for one in found:
        job.recogniser.note_sealed(one)
    assert job.recogniser.sealed_paths(20) == {job.folder / "ckpt_10.pt", job.folder / "model_20.pt"}
    assert job.recogniser.sealed_paths(19) == {job.folder / "ckpt_10.pt"}
    saved(job.folder / "model_20.pt", more=1)
    job.recogniser.note_sealed(found[-1])
    assert job.recogniser.sealed_paths(20) == {job.folder / "ckpt_10.pt"}, "what was sealed is the version before"


@pytest.mark.parametrize(("took", "rests"), [(0.01, 0.0), (0.02, 2.0), (0.5, 50.0), (9.0, 60.0)])
def test_looks_take_a_hundredth_of_a_core(took: float, rests: float, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.recogniser.ended, used, now = False, [0.0], [1000.0]
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


def test_what_counts_epochs_or_saves_gets_the_step_that_the_job_told_before_it_was_written(job: Job) -> None:
    for epoch, step in ((0, 10), (1, 20), (9, 100), (10, 110)):
        job.at(step)
        saved(job.folder / f"epoch-{epoch}.pt", epoch=epoch)
        assert job.look() == [(step, f"epoch-{epoch}.pt")]
    accelerate(job.folder / "checkpoints/checkpoint_3")
    job.at(120)
    assert job.look() == [(120, "checkpoints/checkpoint_3")], "save_iteration is no step"


def test_epochs_of_a_job_that_tells_no_step_keep_their_order(job: Job) -> None:
    for epoch in (2, 10, 1):
        put(job.folder / f"epoch-{epoch}/state"), put(job.folder / f"epoch-{epoch}/DONE", "")
    assert job.look() == [(1, "epoch-1"), (2, "epoch-2"), (10, "epoch-10")]


def test_a_file_written_again_in_place_is_another_step_each_time(job: Job) -> None:
    for step in (10, 20):
        job.at(step)
        put(job.folder / "ckpt.pt", f"no zip, of step {step}")
        assert job.look() == [(step, "ckpt.pt")]
        assert job.look() == [], "it is sealed as it stands"
    saved(job.folder / "ckpt.pt", iter_num=30)
    assert job.look() == [(30, "ckpt.pt")]
    half(job.folder / "ckpt.pt")
    assert job.look() == []


def test_what_is_written_again_before_its_turn_comes_is_not_sealed_as_the_step_it_was(job: Job) -> None:
    saved(job.folder / "model.pt", at=1), saved(job.folder / "optimizer.pt", at=1)
    job.at(10)
    (found,) = job.recogniser.finished_checkpoints("auto", job.folder, 1, -1)
    assert job.recogniser.stands(found)
    saved(job.folder / "model.pt", at=2)
    assert not job.recogniser.stands(found)


def test_files_without_numbers_are_one_checkpoint_together(job: Job) -> None:
    saved(job.folder / "model.pt"), saved(job.folder / "optimizer.pt")
    job.at(5)
    found = list(job.recogniser.finished_checkpoints("auto", job.folder, 1, -1))
    assert [(one.step, one.root, [path.name for path in one.files]) for one in found] == [
        (5, job.folder, ["model.pt", "optimizer.pt"])
    ]


def test_an_export_beside_numbered_checkpoints_is_none_to_go_on_from(job: Job) -> None:
    huggingface(job.folder / "checkpoint-30"), safetensors(job.folder / "model.safetensors")
    put(job.folder / "config.json", "{}"), put(job.folder / "trainer_state.json", '{"global_step": 30}')
    job.at(30)
    assert job.look() == [(30, "checkpoint-30")] and job.look() == []


def test_of_two_files_of_one_step_the_named_one_is_sealed_and_of_two_steps_both(job: Job) -> None:
    saved(job.folder / "epoch=1.ckpt", global_step=10, epoch=1), saved(job.folder / "last.ckpt", global_step=20)
    saved(job.folder / "epoch=2.ckpt", global_step=20, epoch=2)
    by_step = dict(job.look())  # the sealing takes the last one of a step
    assert by_step == {10: "epoch=1.ckpt", 20: "epoch=2.ckpt"}


BESIDE = (
    "tokenizer-32000/tokenizer.json", "tensorboard-20251125/events.out.tfevents.1", "vocab_50257/vocab.bin",
    "hparams_20251125/hparams.yaml", "eval-results-5000/metrics.json", "logs/version_0/events.out.tfevents.2",
    "wandb/run-20251125_103000-abc/files/model.pt.txt", "data_2024/train.bin", "seed_7/notes.txt", "README.md",
)  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_stands_beside_checkpoints_is_none(name: str, job: Job) -> None:
    put(job.folder / name)
    job.at(9)
    assert job.look() == []


@pytest.mark.parametrize(
    "kind", ["lingua", "one file each", "folders of digits", "Hugging Face", "a marker in a folder"]
)
def test_a_restart_removes_nothing_but_later_steps_of_this_job(kind: str, job: Job) -> None:
    write, (_, root), _ = KINDS[kind]
    write(job.folder)
    for name in BESIDE:
        put(job.folder / name)
    chosen, later = job.folder / root, job.folder / root.replace("30", "40")
    shutil.copytree(chosen, later) if chosen.is_dir() else half(Path(shutil.copy(chosen, later)))
    put(job.folder / f".{chosen.name}.0123456789abcdef/state"), put(job.folder / ".bivouac-laid-back-1/state")
    forget_later("auto", job.folder, Finished(30, chosen))
    left = {str(path.relative_to(job.folder)) for path in job.folder.rglob("*") if path.is_file()}
    assert set(BESIDE) <= left and {name.partition("/")[0] for name in left - set(BESIDE)} == {root}


def test_a_checkpoint_that_the_job_has_begun_from_stays_though_its_step_is_larger(job: Job) -> None:
    huggingface(job.folder / "base/checkpoint-50000"), huggingface(job.folder / "out/checkpoint-30")
    huggingface(job.folder / "later/checkpoint-40")
    for path in (job.folder / "base").rglob("*"):
        os.utime(path, (time.time() - 60,) * 2)
    chosen = Finished(30, job.folder / "out/checkpoint-30")
    forget_later("auto", job.folder, chosen, sealed_at=time.time() - 30)
    left = sorted(str(path.relative_to(job.folder)) for path in job.folder.glob("*/*"))
    assert left == ["base/checkpoint-50000", "out/checkpoint-30"]


def test_a_half_written_folder_goes_by_the_name_of_the_restored_one(job: Job) -> None:
    put(job.folder / "step-30/state"), put(job.folder / "step-30/DONE", ""), put(job.folder / "step-40/state")
    put(job.folder / "step-9/state")
    forget_later("marker", job.folder, Finished(30, job.folder / "step-30"))
    assert sorted(path.name for path in job.folder.iterdir()) == ["step-30", "step-9"]


def test_links_and_trackers_of_the_job_name_what_was_restored(job: Job) -> None:
    for step in (30, 40):
        deepspeed(job.folder / f"global_step{step}", step)
    (job.folder / "newest").symlink_to("global_step40")
    (job.folder / "dangling").symlink_to(job.folder / "global_step50")
    (job.folder / "first").symlink_to("global_step30")
    (job.folder / "elsewhere").symlink_to("/nowhere")
    forget_later("auto", job.folder, Finished(30, job.folder / "global_step30"))
    links = {path.name: os.readlink(path) for path in job.folder.iterdir() if path.is_symlink()}
    assert links == {
        "newest": "global_step30", "dangling": str(job.folder / "global_step30"), "first": "global_step30",
        "elsewhere": "/nowhere",
    }  # fmt: skip
    assert (job.folder / "latest").read_text() == "global_step30" and not (job.folder / "global_step40").exists()


def test_a_new_disk_gets_the_tracker_that_the_framework_looks_for(job: Job) -> None:
    deepspeed(job.folder / "global_step30", 30), saved(job.folder / "iter_0000030/mp_rank_00/model_optim_rng.pt")
    (job.folder / "latest").unlink()
    forget_later("auto", job.folder, Finished(30, job.folder / "global_step30"))
    forget_later("auto", job.folder, Finished(30, job.folder / "iter_0000030"))
    assert (job.folder / "latest").read_text() == "global_step30"
    assert (job.folder / "latest_checkpointed_iteration.txt").read_text() == "30"


def test_all_files_of_a_checkpoint_beside_others_go_when_a_job_starts_from_nothing(job: Job) -> None:
    for folder in ("model", "optim"):
        dcp(job.folder / folder)
    put(job.folder / "model.json", "{}")
    forget_later("auto", job.folder, None)
    assert sorted(path.name for path in job.folder.rglob("*") if path.is_file()) == ["model.json"]


def test_links_to_what_goes_go_with_it_and_the_jobs_own_words_stay_when_it_starts_from_nothing(job: Job) -> None:
    saved(job.folder / "ckpt_40.pt"), put(job.folder / "mine"), put(job.folder / "latest", "mine")
    (job.folder / "newest").symlink_to("ckpt_40.pt"), (job.folder / "kept").symlink_to("mine")
    forget_later("auto", job.folder, None)
    assert sorted(path.name for path in job.folder.iterdir()) == ["kept", "latest", "mine"]
    deepspeed(job.folder / "global_step40", 40)
    forget_later("auto", job.folder, None)
    assert sorted(path.name for path in job.folder.iterdir()) == ["kept", "mine"]


def test_a_torn_file_of_a_job_that_starts_from_nothing_goes(job: Job) -> None:
    half(saved(job.folder / "ckpt.pt", step=3)), put(job.folder / "tokenizer.json", "{}")
    forget_later("auto", job.folder, None)
    assert [path.name for path in job.folder.iterdir()] == ["tokenizer.json"]


def test_whole_files_without_a_number_stay_when_a_job_starts_from_nothing(job: Job) -> None:
    """They may be the weights that it starts from; a later checkpoint they cannot be told to be."""
    safetensors(job.folder / "model.safetensors"), saved(job.folder / "model_10.pt")
    forget_later("auto", job.folder, None)
    assert [path.name for path in job.folder.iterdir()] == ["model.safetensors"]


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch exploded",)


def test_a_pickle_is_read_and_not_executed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.folder.mkdir()
    monkeypatch.chdir(job.folder)
    saved(job.folder / "ckpt.pt", bomb=Bomb(), step=4)
    assert job.look() == [(4, "ckpt.pt")] and not (job.folder / "exploded").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200),
    name=st.sampled_from(["ckpt.pt", "m.safetensors", "last.ckpt", "checkpoint-3/trainer_state.json"]),
)
def test_no_content_of_a_file_ends_a_look(content: bytes, name: str, tmp_path: Path) -> None:
    for start in (b"", b"PK\x03\x04", b"\x80\x02", struct.pack("<Q", len(content)), b'{"global_step":'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(start + content)
        Job(tmp_path).look()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(
        st.sampled_from(["step", "epoch", "iter_num", "model", "config"]),
        st.recursive(
            st.one_of(st.integers(0, 10**6), st.booleans(), st.text(max_size=5), st.floats(), st.none()),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["step", "a"]), inner), st.tuples(inner)
            ),
            max_leaves=8,
        ),
    ),
    protocol=st.integers(2, 5),
)  # fmt: skip
def test_the_step_of_a_pickle_is_that_of_its_top_level(
    values: dict[str, object], protocol: int, tmp_path: Path
) -> None:
    from trainer.supervisor.formats import content

    path = tmp_path / f"{random.random()}.pkl"
    path.write_bytes(pickle.dumps(values, protocol=protocol))
    loaded = pickle.loads(path.read_bytes())
    steps = [loaded[key] for key in ("step", "iter_num") if type(loaded.get(key)) is int]
    assert content.step_in(path) == (steps[0] if steps else None)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.sets(st.integers(1, 99), min_size=1, max_size=6),
    form=st.sampled_from(["step-{}/DONE", "{:010d}/DONE", "run/checkpoint_{}.pt", "it_{}/model/.metadata"]),
    beside=st.lists(st.sampled_from(BESIDE), max_size=4),
    data=st.data(),
)
def test_after_any_restart_the_restored_step_is_the_newest_and_what_is_not_ours_is_all_there(
    steps: set[int], form: str, beside: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    own = tmp_path / str(random.random())
    for step in steps:
        (saved if form.endswith(".pt") else put)(own / form.format(step))
    for name in beside:
        put(own / name)
    step = data.draw(st.sampled_from(sorted(steps)))
    root = own / form.format(step).removesuffix("/DONE").removesuffix("/model/.metadata")
    forget_later("auto", own, Finished(step, root))
    assert {one for one in steps if (own / form.format(one)).exists()} == {one for one in steps if one <= step}
    assert all((own / name).exists() for name in beside)

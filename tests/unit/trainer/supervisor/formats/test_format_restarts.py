"""A restart with `format: auto` removes later steps of this job, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.checkpoint_files import (
    BESIDE,
    KINDS,
    WatchedJob,
    dcp,
    deepspeed,
    half,
    huggingface,
    safetensors,
    saved,
)
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import Finished, forget_later


@pytest.mark.parametrize(
    "kind", ["lingua", "one file each", "folders of digits", "Hugging Face", "a marker in a folder"]
)
def test_a_restart_removes_nothing_but_later_steps_of_this_job(kind: str, job: WatchedJob) -> None:
    write, (_, root), _ = KINDS[kind]
    write(job.folder)
    for name in BESIDE:
        put(job.folder / name)
    checkpoint, next_checkpoint = job.folder / root, job.folder / root.replace("30", "40")
    shutil.copytree(checkpoint, next_checkpoint) if checkpoint.is_dir() else half(
        Path(shutil.copy(checkpoint, next_checkpoint))
    )
    put(job.folder / f".{checkpoint.name}.0123456789abcdef/state"), put(job.folder / ".bivouac-laid-back-1/state")
    forget_later("auto", job.folder, Finished(30, checkpoint))
    left = {str(path.relative_to(job.folder)) for path in job.folder.rglob("*") if path.is_file()}
    assert set(BESIDE) <= left and {name.partition("/")[0] for name in left - set(BESIDE)} == {root}


def test_a_checkpoint_that_the_job_has_begun_from_stays_though_its_step_is_larger(job: WatchedJob) -> None:
    huggingface(job.folder / "base/checkpoint-50000"), huggingface(job.folder / "out/checkpoint-30")
    huggingface(job.folder / "later/checkpoint-40")
    sealed_at = time.time() // 1 - 30
    for path in (job.folder / "base").rglob("*"):
        os.utime(path, (sealed_at,) * 2)
    checkpoint = Finished(30, job.folder / "out/checkpoint-30")
    forget_later("auto", job.folder, checkpoint, sealed_at)
    left = sorted(str(path.relative_to(job.folder)) for path in job.folder.glob("*/*"))
    assert left == ["base/checkpoint-50000", "out/checkpoint-30"]


@pytest.mark.parametrize(
    "names", [("model_30.pt", "optim_30.pt"), ("epoch=2-val_loss=0.40.ckpt", "epoch=2-val_loss=0.50.ckpt")]
)
def test_what_else_has_the_restored_steps_number_stays(names: tuple[str, str], job: WatchedJob) -> None:
    restored, other = (saved(job.folder / name) for name in names)
    forget_later("auto", job.folder, Finished(30, restored))
    assert sorted(job.folder.iterdir()) == [restored, other]


@pytest.mark.parametrize("end", [".tmp", ".part", ".tmp.1234", "_tmp_x7", ".incomplete"])
def test_a_half_written_file_of_the_restored_step_or_a_later_one_goes(end: str, job: WatchedJob) -> None:
    restored = saved(job.folder / "ckpt_30.pt")
    for step in (20, 30, 40):
        put(job.folder / f"ckpt_{step}.pt{end}")
    put(job.folder / "ckpt_30.pt.done", ""), put(job.folder / "ckpt_40.pt.done", "")
    forget_later("auto", job.folder, Finished(30, restored))
    left = sorted(path.name for path in job.folder.iterdir())
    assert left == sorted([f"ckpt_20.pt{end}", "ckpt_30.pt", "ckpt_30.pt.done"])
    forget_later("auto", job.folder, None)
    assert list(job.folder.iterdir()) == []


def test_a_half_written_folder_goes_by_the_name_of_the_restored_one(job: WatchedJob) -> None:
    put(job.folder / "step-30/state"), put(job.folder / "step-30/DONE", ""), put(job.folder / "step-40/state")
    put(job.folder / "step-9/state")
    forget_later("marker", job.folder, Finished(30, job.folder / "step-30"))
    assert sorted(path.name for path in job.folder.iterdir()) == ["step-30", "step-9"]


def test_links_and_trackers_of_the_job_name_what_was_restored(job: WatchedJob) -> None:
    for step in (30, 40):
        deepspeed(job.folder / f"global_step{step}", step)
    (job.folder / "newest").symlink_to("global_step40")
    (job.folder / "dangling").symlink_to(job.folder / "global_step50")
    (job.folder / "of-another-place").symlink_to("/own/global_step40")
    (job.folder / "first").symlink_to("global_step30")
    (job.folder / "elsewhere").symlink_to("/nowhere")
    forget_later("auto", job.folder, Finished(30, job.folder / "global_step30"))
    links = {path.name: os.readlink(path) for path in job.folder.iterdir() if path.is_symlink()}
    assert links == {
        "newest": "global_step30", "dangling": str(job.folder / "global_step30"), "first": "global_step30",
        "of-another-place": str(job.folder / "global_step30"), "elsewhere": "/nowhere",
    }  # fmt: skip
    assert (job.folder / "latest").read_text() == "global_step30" and not (job.folder / "global_step40").exists()


@pytest.mark.parametrize("path", ["model_0000040.pth", "/own/model_0000040.pth"])
def test_a_file_with_the_path_of_what_is_gone_gets_that_of_the_restored_one(path: str, job: WatchedJob) -> None:
    for step in (30, 40):
        saved(job.folder / f"model_00000{step}.pth")
    put(job.folder / "last_checkpoint", path)
    forget_later("auto", job.folder, Finished(30, job.folder / "model_0000030.pth"))
    assert (job.folder / "last_checkpoint").read_text() == path.replace("40", "30")
    put(job.folder / "last_checkpoint", "model_final.pth")
    forget_later("auto", job.folder, Finished(30, job.folder / "model_0000030.pth"))
    assert (job.folder / "last_checkpoint").read_text() == "model_final.pth", "it names nothing that went"
    put(job.folder / "last_checkpoint", "model_0000030.pth\n")
    forget_later("auto", job.folder, None)
    assert not any(job.folder.iterdir()), "it would lead to nothing"


@pytest.mark.parametrize(
    ("name", "place", "text", "result"),
    [
        ("latest.txt", "", "step-40", "step-30"),
        ("latest_checkpoint", "run", "step-40\n", "step-30"),
        ("latest.txt", "", "run/step-40", "run/step-30"),
        ("newest", "run", "/other/place/run/step-40", "/other/place/run/step-30"),
        ("latest_step.txt", "run", "40", "30"),
        ("last", "run", "00000040", "00000030"),
        ("latest.txt", "", "run/step-50", "run/step-30"),
        ("latest.txt", "run", "step-20", None),
        ("latest.txt", "run", "step-030", None),
        ("best.txt", "run", "step-40", None),
        ("latest.pt", "run", "step-40", None),
        ("latest.txt", "run", "epoch: 2\nfile: run/step-40", None),
        ("latest.txt", "run", "31", None),
        ("latest_step.txt", "", "40", None),
        ("latest.txt", "run", "step-\0" + "4" * 3000, None),
        ("last", "run", "step-40" + " " * 5000, None),
    ],
)
def test_a_note_of_the_newest_names_the_restored_one_if_its_own_is_gone_or_never_came(
    name: str, place: str, text: str, result: str | None, job: WatchedJob
) -> None:
    run = job.folder if (place, text) == ("", "step-40") else job.folder / "run"
    for step in (30, 40):
        dcp(run / f"step-{step}")
    note = job.folder / place / name
    put(note, text)
    forget_later("auto", job.folder, Finished(30, run / "step-30"))
    assert note.read_text() == (text if result is None else result)
    assert not (run / "step-40").exists()


def test_a_torn_file_that_was_written_after_the_restored_one_goes_whatever_its_number(job: WatchedJob) -> None:
    restored = saved(job.folder / "ckpt.2.pt")
    sealed_at = restored.stat().st_mtime // 1
    for name, later_s in (("ckpt.0.pt", 5), ("ckpt.1.pt", 0), ("other.0.ckpt", -5)):
        half(saved(job.folder / name))
        os.utime(job.folder / name, (sealed_at + later_s,) * 2)
    forget_later("auto", job.folder, Finished(30, restored), sealed_at)
    left = sorted(path.name for path in job.folder.iterdir())
    assert left == ["ckpt.1.pt", "ckpt.2.pt", "other.0.ckpt"], "older ones stay"


def test_a_torn_file_of_another_name_stays_if_its_number_counts_epochs(job: WatchedJob) -> None:
    restored, other = saved(job.folder / "ckpt_30.pt"), half(saved(job.folder / "net_epoch_2.pt"))
    forget_later("auto", job.folder, Finished(30, restored))
    assert sorted(job.folder.iterdir()) == [restored, other]


@pytest.mark.parametrize("step", [0, 20, 30])
def test_what_a_mark_of_nemo_calls_unfinished_stays_if_its_step_is_not_later(step: int, job: WatchedJob) -> None:
    restored, other = saved(job.folder / "ckpt_30.pt"), saved(job.folder / "good.ckpt", global_step=step)
    mark = put(job.folder / "good-unfinished", "")
    forget_later("auto", job.folder, Finished(30, restored))
    assert sorted(job.folder.iterdir()) == [restored, mark, other]


def test_a_new_disk_gets_the_tracker_that_the_framework_looks_for(job: WatchedJob) -> None:
    deepspeed(job.folder / "global_step30", 30), saved(job.folder / "iter_0000030/mp_rank_00/model_optim_rng.pt")
    (job.folder / "latest").unlink()
    forget_later("auto", job.folder, Finished(30, job.folder / "global_step30"))
    forget_later("auto", job.folder, Finished(30, job.folder / "iter_0000030"))
    assert (job.folder / "latest").read_text() == "global_step30"
    assert (job.folder / "latest_checkpointed_iteration.txt").read_text() == "30"


def test_all_files_of_a_checkpoint_beside_others_go_when_a_job_starts_from_nothing(job: WatchedJob) -> None:
    for folder in ("model", "optim"):
        dcp(job.folder / folder)
    put(job.folder / "model.json", "{}")
    forget_later("auto", job.folder, None)
    assert sorted(path.name for path in job.folder.rglob("*") if path.is_file()) == ["model.json"]


def test_links_to_what_goes_go_too_and_the_jobs_words_stay_when_it_starts_anew(job: WatchedJob) -> None:
    saved(job.folder / "ckpt_40.pt"), put(job.folder / "mine"), put(job.folder / "latest", "mine")
    (job.folder / "newest").symlink_to("ckpt_40.pt"), (job.folder / "kept").symlink_to("mine")
    forget_later("auto", job.folder, None)
    assert sorted(path.name for path in job.folder.iterdir()) == ["kept", "latest", "mine"]
    deepspeed(job.folder / "global_step40", 40)
    forget_later("auto", job.folder, None)
    assert sorted(path.name for path in job.folder.iterdir()) == ["kept", "mine"]


def test_a_torn_file_of_a_job_that_starts_from_nothing_goes(job: WatchedJob) -> None:
    half(saved(job.folder / "ckpt.pt", step=3)), put(job.folder / "tokenizer.json", "{}")
    forget_later("auto", job.folder, None)
    assert [path.name for path in job.folder.iterdir()] == ["tokenizer.json"]


def test_a_torn_file_takes_no_whole_one_of_another_unread_number_with_it(job: WatchedJob) -> None:
    for step in (10, 20):
        job.at(step)
        saved(job.folder / f"model({step}).pt")
        assert job.look() == [(step, f"model({step}).pt")]
    half(saved(job.folder / "model(30).pt"))
    for shard in (1, 2):
        saved(job.folder / f"weights-0000{shard}-of-00002.bin")
    half(job.folder / "weights-00001-of-00002.bin")
    forget_later("auto", job.folder, Finished(20, job.folder / "model(20).pt"))
    assert sorted(path.name for path in job.folder.iterdir()) == ["model(10).pt", "model(20).pt"]


def test_whole_files_without_a_number_stay_when_a_job_starts_from_nothing(job: WatchedJob) -> None:
    """They may be the weights that it starts from; a later checkpoint they cannot be told to be."""
    safetensors(job.folder / "model.safetensors"), saved(job.folder / "model_10.pt")
    forget_later("auto", job.folder, None)
    assert [path.name for path in job.folder.iterdir()] == ["model.safetensors"]


def test_a_restart_keeps_the_folders_in_which_the_parts_of_the_restored_one_lie(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{part}/net_{epoch}.pt") for epoch in (3, 4) for part in ("optim", "weights")]
    half(saved(tmp_path / "weights/net_5.pt"))
    forget_later("auto", tmp_path, Finished(400, tmp_path, tuple(files[2:])))
    assert sorted(tmp_path.glob("*/*")) == sorted(files)


def test_a_link_into_no_folder_of_the_restored_parts_leads_to_the_first_one_of_its_name(tmp_path: Path) -> None:
    restored = tuple(saved(tmp_path / f"{part}/net_30.pt") for part in ("model", "optim"))
    (tmp_path / "newest").symlink_to("moved/net_40.pt")
    for path in restored:
        (path.parent / "newest").symlink_to("net_40.pt"), put(path.parent / "latest.txt", "net_40.pt")
    forget_later("auto", tmp_path, Finished(30, tmp_path, restored))
    assert os.readlink(tmp_path / "newest") == "model/net_30.pt"
    for path in restored:
        assert os.readlink(path.parent / "newest") == (path.parent / "latest.txt").read_text() == "net_30.pt"


def test_a_note_of_what_went_from_another_folder_names_nothing_that_never_was_there(tmp_path: Path) -> None:
    restored, gone = saved(tmp_path / "model/net_30.pt"), saved(tmp_path / "other/net_40.pt")
    put(tmp_path / "latest.txt", "other/net_40.pt")
    forget_later("auto", tmp_path, Finished(30, restored))
    assert not gone.exists() and (tmp_path / "latest.txt").read_text() == "other/net_40.pt"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.sets(st.integers(1, 99), min_size=1, max_size=6),
    form=st.sampled_from(["step-{}/DONE", "{:010d}/DONE", "run/checkpoint_{}.pt", "it_{}/model/.metadata"]),
    beside=st.lists(st.sampled_from(BESIDE), max_size=4),
    data=st.data(),
)
def test_after_any_restart_the_restored_step_is_newest_and_foreign_files_are_all_there(
    steps: set[int], form: str, beside: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    folder = tmp_path / str(random.random())
    for step in steps:
        (saved if form.endswith(".pt") else put)(folder / form.format(step))
    for name in beside:
        put(folder / name)
    step = data.draw(st.sampled_from(sorted(steps)))
    root = folder / form.format(step).removesuffix("/DONE").removesuffix("/model/.metadata")
    forget_later("auto", folder, Finished(step, root))
    assert {number for number in steps if (folder / form.format(number)).exists()} == {
        number for number in steps if number <= step
    }
    assert all((folder / name).exists() for name in beside)


@pytest.mark.parametrize("form", ["auto", "marker"])
def test_what_nothing_has_ended_goes_with_its_series_when_a_job_starts_from_nothing(form: str, job: WatchedJob) -> None:
    """Its own link would take it up."""
    for step in (20, 30):
        put(job.folder / f"step-{step}/state"), put(job.folder / f"step-{step}/DONE", "")
    put(job.folder / "save-20/state"), put(job.folder / "save-20/DONE", ""), put(job.folder / "save-30/state", "half")
    put(job.folder / "step-40/state", "half"), put(job.folder / "step-0/state", "half")
    put(job.folder / "tokenizer-32000/x")
    (job.folder / "latest").symlink_to("step-40")
    forget_later(form, job.folder, None)
    assert [path.name for path in job.folder.iterdir()] == ["tokenizer-32000"]


def test_links_in_each_folder_of_what_goes_go_too_when_a_job_starts_from_nothing(job: WatchedJob) -> None:
    for run in ("a", "b"):
        dcp(job.folder / run / "step-40")
        (job.folder / run / "newest").symlink_to("step-40")
    forget_later("auto", job.folder, None)
    assert list(job.folder.glob("*/*")) == []


def test_a_later_folder_stays_if_the_restored_one_lies_deep_in_it(job: WatchedJob) -> None:
    dcp(job.folder / "step-40")
    restored = saved(job.folder / "step-40/run/inner/ckpt_30.pt")
    forget_later("auto", job.folder, Finished(30, restored))
    assert restored.exists()


@pytest.mark.parametrize("name", ["last.ckpt", "last-v1.ckpt", "epoch=2-step=30.ckpt"])
def test_of_lightnings_last_files_the_restored_one_alone_stays(name: str, job: WatchedJob) -> None:
    for last in ("last.ckpt", "last-v1.ckpt", "last-v2.ckpt", "other/last.ckpt"):
        saved(job.folder / last, global_step=20)
    restored = saved(job.folder / name, global_step=30)
    forget_later("auto", job.folder, Finished(30, restored))
    assert {path.name for path in job.folder.rglob("*.ckpt")} == {name, "last.ckpt"}
    assert not (job.folder / "other/last.ckpt").exists()
    assert (job.folder / "last.ckpt").read_bytes() == restored.read_bytes()
    forget_later("auto", job.folder, None)
    assert list(job.folder.rglob("*.ckpt")) == []


def test_a_restored_file_gets_the_mark_that_the_job_puts_beside_others(job: WatchedJob) -> None:
    for step in (20, 30):
        saved(job.folder / f"ckpt_{step}.pt")
    put(job.folder / "ckpt_20.pt.done", "")
    forget_later("auto", job.folder, Finished(30, job.folder / "ckpt_30.pt"))
    assert (job.folder / "ckpt_30.pt.done").exists()


def test_half_written_files_of_a_job_that_saves_by_the_client_are_its_own_matter(job: WatchedJob) -> None:
    state = put(job.folder / "step-40.tmp/state")
    forget_later("client", job.folder, None)
    assert state.exists()


def test_a_folder_that_is_not_there_gets_no_tracker(tmp_path: Path) -> None:
    forget_later("auto", tmp_path / "own", Finished(30, tmp_path / "own/iter_0000030"))
    assert list(tmp_path.iterdir()) == []

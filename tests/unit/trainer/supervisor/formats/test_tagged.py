"""Checkpoints that a tracker file names, files of which several stand in one folder, and what one of them lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, dcp, deepspeed, huggingface, saved
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import (
    FORMATS,
    KINDS,
    Finished,
    files_of,
    find,
    lacks,
    missing,
    newer_beside,
    offered,
    whole_ranks,
)
from trainer.supervisor.formats.layouts import Candidate
from trainer.supervisor.formats.tree import FolderListing, listing


def known(folder: Path, kind: str, ranks: int = 1) -> dict[str, Candidate]:
    """Return what a format knows in a folder, finished or not, by the names."""
    return {candidate.checkpoint().face.name: candidate for candidate in find.candidates(folder, ranks, KINDS[kind])}


def test_deepspeeds_optimizer_is_held_against_the_newest_file_of_the_model(tmp_path: Path) -> None:
    deepspeed(tmp_path / "mine", 10)
    for rank in range(3):
        saved(tmp_path / f"mine/mp_rank_0{rank}_model_states.pt", global_steps=10)
    (optimizer,) = (tmp_path / "mine").glob("*optim_states.pt")
    for path in (tmp_path / "mine").iterdir():
        os.utime(path, (1000.0, 1000.0))
    assert known(tmp_path, "deepspeed")["mine"].ready()
    for rank in (2, 1, 0):
        os.utime(tmp_path / f"mine/mp_rank_0{rank}_model_states.pt", (2000.0, 2000.0))
        assert not known(tmp_path, "deepspeed")["mine"].ready(), "one rank has written its part of the next save"
    os.utime(optimizer, (1999.0, 1999.0))
    assert known(tmp_path, "deepspeed")["mine"].ready(), "clocks of two nodes differ"
    os.utime(optimizer, (1998.9, 1998.9))
    assert not known(tmp_path, "deepspeed")["mine"].ready()


def test_deepspeed_waits_for_the_optimizer_of_all_ranks_if_any_writes_one(tmp_path: Path) -> None:
    deepspeed(tmp_path / "global_step30", 30)
    assert known(tmp_path, "deepspeed", ranks=1)["global_step30"].ready()
    assert not known(tmp_path, "deepspeed", ranks=2)["global_step30"].ready()
    (optimizer,) = (tmp_path / "global_step30").glob("*optim_states.pt")
    optimizer.unlink()
    assert known(tmp_path, "deepspeed", ranks=2)["global_step30"].ready(), "bf16 without ZeRO has none"


def test_a_tag_with_a_step_is_done_when_it_is_named_and_one_that_stays_has_to_rest(tmp_path: Path) -> None:
    deepspeed(tmp_path / "global_step30", 30)
    assert [known(tmp_path, kind)["global_step30"].settles for kind in ("deepspeed", "auto")] == [False, False]
    deepspeed(tmp_path / "mine", 30)
    assert known(tmp_path, "deepspeed")["mine"].settles
    put(tmp_path / "run/latest.txt", "30"), saved(tmp_path / "run/30/model/0.safetensors")
    assert known(tmp_path / "run", "auto")["30"].kind == "nanotron"
    assert known(tmp_path / "run", "auto")["30"].settles


def test_other_tags_are_deepspeeds_too_and_are_not_finished(tmp_path: Path) -> None:
    for step in (10, 20, 40, 30):
        deepspeed(tmp_path / f"global_step{step}", step)
    put(tmp_path / "notes/words.txt")
    checkpoints = known(tmp_path, "deepspeed")
    assert {name: candidate.ready() for name, candidate in checkpoints.items()} == {
        "global_step10": False, "global_step20": False, "global_step40": False, "global_step30": True,
    }  # fmt: skip
    put(tmp_path / "run/latest.txt", "30"), saved(tmp_path / "run/30/model/0.safetensors")
    saved(tmp_path / "run/20/a_states.pt")
    assert set(known(tmp_path / "run", "auto")) == {"30", "20"}
    assert known(tmp_path / "run", "auto")["20"].kind != "nanotron"


@pytest.mark.parametrize("end", ["done", "DONE"])
def test_who_marks_files_marks_each_of_them(end: str, job: WatchedJob) -> None:
    for step in (10, 20, 30, 40):
        put(job.folder / f"ckpt_{step}.pt", "no zip")
    for step in (10, 20, 30):
        put(job.folder / f"ckpt_{step}.pt.{end}", "")
    assert job.look() == [(10, "ckpt_10.pt"), (20, "ckpt_20.pt"), (30, "ckpt_30.pt")]


def test_files_without_a_number_that_tell_their_step_are_a_checkpoint_each(tmp_path: Path) -> None:
    for name, step in (("best.pt", 10), ("last.pt", 30), ("final_model.pt", 40)):
        saved(tmp_path / name, step=step)
    steps = {name: candidate.checkpoint().step for name, candidate in known(tmp_path, "auto").items()}
    assert steps == {"best.pt": 10, "last.pt": 30, "final_model.pt": 40}


def test_notes_of_the_same_number_belong_to_several_files_of_a_step(tmp_path: Path) -> None:
    for name in ("model_000030.pt", "optim_000030.pt"):
        saved(tmp_path / name)
    for name in ("meta_000030.json", "meta_000040.json", "config.json", "meta_000030.txt"):
        put(tmp_path / name, "{}")
    (checkpoint,) = (candidate.checkpoint() for candidate in known(tmp_path, "auto").values())
    assert [path.name for path in checkpoint.files] == ["model_000030.pt", "optim_000030.pt", "meta_000030.json"]


@pytest.mark.parametrize(
    ("names", "choice"),
    [
        (("ema_0.9999_000030.pt", "model000030.pt", "opt000030.pt"), "model000030.pt"),
        (("model_000030.pt", "optim_000030.pt", "meta_000030.json"), ""),
        (("model.safetensors", "config.json"), ""),
        (("model_step30.pt", "ema_step30.pt"), ""),
        (("ckpt_30.pt",), ""),
        ((), ""),
    ],
)
def test_a_job_goes_on_from_the_file_that_is_called_a_checkpoint_or_from_their_folder(
    names: tuple[str, ...], choice: str, tmp_path: Path
) -> None:
    assert offered(tmp_path, [tmp_path / name for name in names]) == (tmp_path / choice if choice else tmp_path)


def test_files_of_each_rank_are_whole_if_there_are_as_many_as_ranks(tmp_path: Path) -> None:
    states = [saved(tmp_path / f"random_states_{rank}.pkl") for rank in range(2)]
    others = [put(tmp_path / "notes.txt", ""), put(tmp_path / "model.bin", "x")]
    names = ["random_states_0.pkl", "model.bin"]
    for form in ("accelerate", "auto"):
        assert whole_ranks(form, states + others, 2, names)
        assert not whole_ranks(form, states[:1] + others, 2, names)
        assert whole_ranks(form, states[:1] + others, 0, names), "the number is not known"
        assert whole_ranks(form, others, 2, ["model.bin"]), "the job writes none"
        assert not whole_ranks(form, others, 2, names)
    states[1].write_bytes(b"PK\x03\x04")
    assert not whole_ranks("accelerate", states, 2, names) and whole_ranks("huggingface", states, 2, names)


def test_sealed_steps_are_named_without_a_look_into_them_from_step_0_on(tmp_path: Path) -> None:
    for step in (0, 10, 20):
        put(tmp_path / f"iter_{step:07d}/mp_rank_00/model.pt")
    put(tmp_path / "latest_checkpointed_iteration.txt", "20")
    steps = [sorted(one.step for one in FORMATS["megatron"](tmp_path, 1, sealed_step)) for sealed_step in (-1, 0, 10)]
    assert steps == [[20], [0, 20], [0, 10, 20]]


def test_a_checkpoint_lies_eight_folders_deep_at_most(job: WatchedJob) -> None:
    for depth in (7, 8):
        dcp(job.folder.joinpath(*"abcdefgh"[:depth], f"step-{depth}"))
    assert [step for step, _ in job.look()] == [7]


def test_a_folder_that_may_not_be_read_hides_no_other(job: WatchedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/step-10", "b/step-20", "c/step-30"):
        dcp(job.folder / name)

    def refuse(folder: Path) -> FolderListing:
        if folder.name == "b":
            raise PermissionError(13, "Permission denied", str(folder))
        return listing(folder)

    monkeypatch.setattr(find, "listing", refuse)
    assert [step for step, _ in job.look()] == [10, 30]


def test_what_a_framework_has_removed_of_an_old_checkpoint_is_missing_of_it(tmp_path: Path) -> None:
    newest, old = Finished(30, tmp_path / "step-30"), Finished(20, tmp_path / "step-20")
    for step in (20, 30):
        put(tmp_path / f"step-{step}/model-step{step}.pt"), put(tmp_path / f"step-{step}/optim.pt")
    assert missing(old, files_of(old.root), newest) == []
    (old.root / "optim.pt").unlink()
    assert missing(old, files_of(old.root), newest) == ["optim.pt"]
    file = Finished(40, put(tmp_path / "step-40.pt"))
    several = Finished(40, tmp_path, (tmp_path / "step-40.pt",))
    for one, other in ((old, file), (old, several), (several, newest), (newest, newest)):
        assert missing(one, files_of(one.root)[:1], other) == [], "they are not alike"


def test_what_a_resume_would_lack_is_known_of_hugging_faces_trainer_alone(tmp_path: Path) -> None:
    huggingface(tmp_path / "checkpoint-10"), huggingface(tmp_path / "checkpoint-20", optimizer=False)
    dcp(tmp_path / "step-30")
    assert lacks(tmp_path / "checkpoint-10") == lacks(tmp_path / "step-30") == ""
    assert "no optimizer" in lacks(tmp_path / "checkpoint-20")
    for name in ("global_step20", "zero_pp_rank_0", "scheduler.pt"):
        huggingface(tmp_path / name / "checkpoint-20", optimizer=False)
        put(tmp_path / name / "checkpoint-20" / name)
        assert lacks(tmp_path / name / "checkpoint-20") == ""


def test_the_newest_of_like_names_is_beside_an_older_one_alone(tmp_path: Path) -> None:
    for name in ("run[1]-step-9", "run[1]-step-10", "run[1]-step-30", "run[1]-eval-40", "notes"):
        put(tmp_path / name / "state")
    newest = newer_beside(tmp_path / "run[1]-step-9")
    assert newest is not None and (newest.step, newest.root.name) == (30, "run[1]-step-30")
    assert newer_beside(tmp_path / "run[1]-step-30") is None and newer_beside(tmp_path / "notes") is None


def test_deepspeeds_optimizer_files_of_all_ranks_are_held_against_the_model(tmp_path: Path) -> None:
    deepspeed(tmp_path / "mine", 10)
    late = saved(tmp_path / "mine/zero_pp_rank_1_mp_rank_00_optim_states.pt")
    for path in (tmp_path / "mine").iterdir():
        os.utime(path, (2000.0, 2000.0))
    assert known(tmp_path, "deepspeed", ranks=2)["mine"].ready()
    os.utime(late, (1000.0, 1000.0))
    assert not known(tmp_path, "deepspeed", ranks=2)["mine"].ready()


@pytest.mark.parametrize(
    ("times", "counts"), [((1, 2, 3), True), ((1, 1, 2), False), ((2, 1, 3), False), ((1, 3, 2), False)]
)
def test_files_that_were_written_in_the_order_of_their_numbers_from_0_count_saves(
    times: tuple[float, ...], counts: bool, tmp_path: Path
) -> None:
    for number, time_s in enumerate(times):
        os.utime(saved(tmp_path / f"ckpt_{number}.pt"), (time_s, time_s))
    assert {candidate.ordinal for candidate in known(tmp_path, "auto").values()} == {counts}


def test_a_random_state_alone_is_no_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "rng_state_10.pth")
    assert known(tmp_path, "auto") == {}

"""Parts of one checkpoint lie in trees, folders and files of their own; it is sealed, given back and removed whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, dcp, half, safetensors, saved
from tests.worlds.supervisor_tier import put
from trainer.contract.tree import Tree, TreeFile
from trainer.supervisor import seal
from trainer.supervisor.formats import Finished, forget_later, is_begun
from trainer.supervisor.formats import recognise as looks

SETS: dict[str, tuple[str, ...]] = {
    "trees of folders": ("model/step-{}/m.pt", "optim/step-{}/o.pt"),
    "trees of files": ("run/weights/step_{}.pt", "run/optimizer/step_{}.pt"),
    "trees of a run": ("model/run/step_{}.pt", "optim/run/step_{}.pt"),
    "folders by their ends": ("step_{}_model/m.pt", "step_{}_optim/o.pt"),
    "folders by their beginnings": ("model_step_{}/m.pt", "optimizer_step_{}/o.pt"),
    "three files": ("model_{}.pt", "optim_{}.pt", "lr_scheduler_{}.pt"),
    "weights and a folder of the state": ("lora-step{}.safetensors", "lora-step{}-state/optimizer.pt"),
    "trees of ranks": ("rank0/step_{}.pt", "rank1/step_{}.pt"),
    "files of ranks": ("ckpt_step{}_rank0.pt", "ckpt_step{}_rank1.pt"),
    "batches of Composer": ("ep0-ba{}-rank0.pt", "ep0-ba{}-rank1.pt"),
    "two roles of a rank": ("ckpt_step{}_rank0_model.pt", "ckpt_step{}_rank0_optim.pt"),
    "two models": ("generator/step-{}/m.pt", "discriminator/step-{}/m.pt"),
}


def write(path: Path) -> None:
    (safetensors if path.suffix == ".safetensors" else saved)(path)


@pytest.mark.parametrize("kind", SETS)
def test_a_checkpoint_in_parts_is_one_and_waits_for_all_that_the_one_before_it_has(kind: str, job: WatchedJob) -> None:
    for name in SETS[kind]:
        write(job.folder / name.format(10))
    assert [step for step, _ in job.look()] == [10]
    *first_names, last_name = SETS[kind]
    for name in first_names:
        write(job.folder / name.format(20))
    assert job.look() == []
    write(job.folder / last_name.format(20))
    half(job.folder / last_name.format(20))
    assert job.look() == []
    write(job.folder / last_name.format(20))
    (checkpoint,) = job.recogniser.finished_checkpoints("auto", job.folder, 1, 10)
    sealed_files = {path for top in checkpoint.tops for path in (top, *top.rglob("*")) if path.is_file()}
    assert checkpoint.step == 20
    assert sealed_files == {job.folder / name.format(20) for name in SETS[kind]}


def test_a_part_that_comes_no_more_is_waited_for_once(job: WatchedJob) -> None:
    saved(job.folder / "step-10.pt"), saved(job.folder / "ema/step-10.pt"), saved(job.folder / "step-20.pt")
    assert job.look() == [(10, ".")]
    saved(job.folder / "step-30.pt")
    assert job.look() == [(20, "step-20.pt"), (30, "step-30.pt")], "what 20 lacks comes no more"


@pytest.mark.parametrize("name", ["model/step-10/m.pt", "weights_10.pt", "ckpt_10_rank0.pt"])
def test_the_first_part_rests_before_it_counts_as_all_of_a_checkpoint(
    name: str, job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    job.recogniser.settles_at_once = False
    saved(job.folder / name)
    assert job.look() == []
    now[0] += looks.QUIET_S - 0.1
    assert job.look() == []
    now[0] += 0.2
    assert [step for step, _ in job.look()] == [10]


def test_two_parts_that_are_written_in_place_are_one_step(job: WatchedJob) -> None:
    job.at(10)
    saved(job.folder / "weights/model.pt"), saved(job.folder / "optimizer/optimizer.pt", global_step=10)
    assert job.look() == [(10, ".")]
    job.at(20)
    saved(job.folder / "weights/model.pt", pad=1), saved(job.folder / "optimizer/optimizer.pt", global_step=20)
    assert job.look() == [(20, ".")]


def test_one_file_of_a_model_that_is_written_again_needs_no_rest(
    job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.recogniser.settles_at_once = False
    job.at(10)
    saved(job.folder / "model.pt")
    assert job.look() == [(10, "model.pt")]


def test_runs_beside_each_other_and_models_of_a_size_are_no_parts(job: WatchedJob) -> None:
    for name in ("d12/step-10.pt", "run-a/step-20.pt", "opt-125m/step-30.pt"):
        saved(job.folder / name)
    assert job.look() == [(10, "d12/step-10.pt"), (20, "run-a/step-20.pt"), (30, "opt-125m/step-30.pt")]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("rl_model_1000_steps.zip", 1000),
        ("ep1-ba40.pt", 40),
        ("20000iters.pt", 20000),
        ("G_1000.pth", 1000),
    ],
)
def test_a_number_counts_steps_also_before_its_word_and_where_the_content_says_so(
    name: str, step: int, job: WatchedJob
) -> None:
    saved(job.folder / name, **({"iteration": step} if name.startswith("G") else {}))
    assert job.look() == [(step, name)]


@pytest.mark.parametrize(
    "names", [("ckpt-1B.pt", "ckpt-2B.pt"), ("model_5k.pt", "model_10k.pt"), ("1epoch.pt", "2epoch.pt")]
)
def test_numbers_in_other_units_get_the_step_that_the_job_told(names: tuple[str, str], job: WatchedJob) -> None:
    for step, name in zip((5000, 10000), names, strict=True):
        job.at(step)
        saved(job.folder / name)
        assert job.look() == [(step, name)]


def test_arrays_of_parameters_are_a_checkpoint_each(job: WatchedJob) -> None:
    saved(job.folder / "params_0010.npz"), saved(job.folder / "hparams_0020.npz")
    assert job.look() == [(10, "params_0010.npz")]


def test_data_whose_name_tells_its_size_is_no_checkpoint(job: WatchedJob) -> None:
    saved(job.folder / "corpus_10B.bin"), saved(job.folder / "train-5k.npz"), saved(job.folder / "llama-7b/a.bin")
    job.at(5)
    assert job.look() == []
    forget_later("auto", job.folder, None)
    assert len(list(job.folder.rglob("*.*"))) == 3


def test_parts_are_sealed_and_come_back_alone_and_whole(tmp_path: Path) -> None:
    folder, tier = tmp_path / "own", tmp_path / "tier"
    saved(folder / "model/step-10/m.pt"), saved(folder / "optim/step-10/o.pt")
    (folder / "model/step-10/empty").mkdir()
    (folder / "model/step-10/newest.pt").symlink_to("m.pt")
    put(folder / "model/words")
    tops = (folder / "model/step-10", folder / "optim/step-10")
    identity = seal.Identity("tiny", "of-tiny", 1, 1, "c" * 64, "", "d" * 64, "e" * 64)
    seal.seal(folder, tops, folder, tier, 10, identity, 1, None, part=True)
    assert seal.tree(tier, 10).tops == ["model/step-10", "optim/step-10"]
    saved(folder / "model/step-10/of-another-rank.pt"), half(folder / "model/step-10/m.pt")
    (folder / "optim/step-10/o.pt").unlink()
    seal.lay_back(tier, 10, folder)
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    assert paths == ["model/step-10/m.pt", "model/step-10/newest.pt", "model/words", "optim/step-10/o.pt"]
    assert (folder / "model/step-10/newest.pt").readlink() == Path("m.pt")
    assert (folder / "model/step-10/empty").is_dir()
    with pytest.raises(FileNotFoundError):
        seal.seal(folder, (*tops, folder / "ema"), folder, tier, 10, identity, 1, None, part=True)


def test_a_restart_removes_later_parts_in_each_tree_and_links_name_the_restored_ones(tmp_path: Path) -> None:
    for step in (10, 20):
        dcp(tmp_path / f"model/step-{step}"), dcp(tmp_path / f"optim/step-{step}")
    dcp(tmp_path / "model/step-30")
    put(tmp_path / "optim/step-30/half"), put(tmp_path / "optim/words-32000/x")
    for part, newest in (("model", 30), ("optim", 20)):
        (tmp_path / part / "latest").symlink_to(f"step-{newest}")
    tops = (tmp_path / "model/step-10", tmp_path / "optim/step-10")
    forget_later("auto", tmp_path, Finished(10, tmp_path, tops))
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert names == ["model/latest", "model/step-10", "optim/latest", "optim/step-10", "optim/words-32000"]
    assert {(tmp_path / part / "latest").readlink() for part in ("model", "optim")} == {Path("step-10")}


def test_a_start_from_the_beginning_leaves_no_empty_folder_of_a_part(tmp_path: Path) -> None:
    dcp(tmp_path / "model/step-20"), dcp(tmp_path / "optim/step-20")
    forget_later("auto", tmp_path, None)
    assert list(tmp_path.glob("*/*")) == []


def test_links_and_the_note_of_the_newest_name_the_restored_file_of_several(tmp_path: Path) -> None:
    for step in (10, 20):
        saved(tmp_path / f"model_{step}.pt"), saved(tmp_path / f"optim_{step}.pt")
    (tmp_path / "latest.pt").symlink_to("model_20.pt")
    put(tmp_path / "last_checkpoint", "/elsewhere/model_20.pt")
    forget_later("auto", tmp_path, Finished(10, tmp_path, (tmp_path / "model_10.pt", tmp_path / "optim_10.pt")))
    assert (tmp_path / "latest.pt").readlink() == Path("model_10.pt")
    assert (tmp_path / "last_checkpoint").read_text() == "/elsewhere/model_10.pt"


def test_the_tops_of_a_tree_are_its_folders_and_the_files_beside_them() -> None:
    file = TreeFile("a", 0o644)
    tree = Tree(".", "folder", {"a/b": file, "c": file, "d/e/f": file}, folders=["a", "a/x", "d/e"], part=True)
    assert tree.tops == ["a", "c", "d/e"]


def test_trees_of_a_framework_keep_the_step_of_their_names_however_little_the_job_tells(job: WatchedJob) -> None:
    job.at(1), job.at(2)
    for part in ("model", "optim"):
        dcp(job.folder / f"{part}/step-50000000")
    assert job.look() == [(50_000_000, ".")]


@pytest.mark.parametrize("name", ["weights/model.pt", "optimizer/optimizer.pt", "weights/more.pt"])
def test_the_step_of_parts_without_a_number_is_in_the_content_of_any_file(name: str, job: WatchedJob) -> None:
    job.at(7)
    for other in ("weights/model.pt", "weights/more.pt", "optimizer/optimizer.pt"):
        saved(job.folder / other)
    saved(job.folder / name, global_step=10)
    assert [step for step, _ in job.look()] == [10]


def test_a_part_that_another_node_waits_for_is_found_among_all_others(job: WatchedJob) -> None:
    for step in (10, 20):
        half(saved(job.folder / f"step-{step}/m.pt"))
    roots = [job.folder / f"step-{step}" for step in (10, 20, 30)]
    assert [is_begun("auto", job.folder, root, 20) for root in roots] == [False, True, False]

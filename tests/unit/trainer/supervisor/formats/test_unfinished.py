"""What a script or a framework calls unfinished is not sealed, and a restart leaves none of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, dcp, saved
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import Finished, forget_later
from trainer.supervisor.formats.names import number_of

FOLDERS = ["step-40.tmp", "step_40_tmp", "40.tmp.1234", "tmp-checkpoint-40", "step-40.incomplete", "step-40.pt.tmp"]
FILES = ["tmp_ckpt_40.pt", "ckpt_40.tmp.pt", "ckpt_40_tmp.pth"]


@pytest.mark.parametrize("name", [*(f"{folder}/model.pt" for folder in FOLDERS), *FILES])
def test_what_gets_its_name_once_it_is_finished_is_not_sealed_before(name: str, job: WatchedJob) -> None:
    job.at(40)
    saved(job.folder / name)
    assert job.look() == []
    os.replace(job.folder / name.partition("/")[0], job.folder / f"step-40{Path(name).suffix * ('/' not in name)}")
    assert [step for step, _ in job.look()] == [40]


OF_ORBAX = ["40.orbax-checkpoint-tmp-1764200010", "run/2.orbax-checkpoint-tmp"]


@pytest.mark.parametrize(
    ("form", "name"),
    [*(("auto", name) for name in (*FOLDERS, *OF_ORBAX, *FILES)), *(("dcp", name) for name in (*FOLDERS, *OF_ORBAX))],
)
def test_what_is_unfinished_goes_at_a_restart_and_at_a_start_from_nothing(form: str, name: str, tmp_path: Path) -> None:
    dcp(tmp_path / "step-30")
    sealed_at = time.time() - 1.0
    for checkpoint in (Finished(30, tmp_path / "step-30"), None):
        saved(tmp_path / name) if name in FILES else put(tmp_path / name / "d/0123abcd")
        forget_later(form, tmp_path, checkpoint, sealed_at)
        left = {path.name for path in tmp_path.iterdir()} - {"run"}
        assert left == (set() if checkpoint is None else {"step-30"})


@pytest.mark.parametrize("name", ["tmp_trainer", "tmp_7", "tmp_model_7", "tmp", "run1_tmp", "test-1-tmp", "exp3.tmp"])
def test_checkpoints_below_a_folder_for_a_while_are_sealed(name: str, job: WatchedJob) -> None:
    job.at(40)
    saved(job.folder / name / "step-40.pt")
    assert job.look() == [(40, f"{name}/step-40.pt")]


@pytest.mark.parametrize("name", ["ckpt-2_temp_0123456789abcdef0123456789abcd05", "default.orbax-checkpoint-tmp-3"])
def test_a_name_for_a_while_has_no_number(name: str) -> None:
    assert number_of(name) is None


def test_a_step_of_orbax_waits_for_its_last_item(job: WatchedJob) -> None:
    """Where a folder cannot be renamed as one, its items are renamed one by one."""
    job.at(40)
    put(job.folder / "40/_CHECKPOINT_METADATA", "{}"), put(job.folder / "40/state/manifest.ocdbt")
    put(job.folder / "40/metrics.orbax-checkpoint-tmp-3/metrics")
    assert job.look() == []
    os.replace(job.folder / "40/metrics.orbax-checkpoint-tmp-3", job.folder / "40/metrics")
    assert job.look() == [(40, "40")]


NEMO = "gpt--val_loss=2.34-step={}-consumed_samples=320.0"


@pytest.mark.parametrize("name", [f"{NEMO}.ckpt", f"{NEMO}-EMA.ckpt", f"mp_rank_00/{NEMO}.ckpt", f"{NEMO}/weights/"])
def test_nemos_mark_keeps_a_checkpoint_unsealed_and_a_restart_takes_it_away(name: str, job: WatchedJob) -> None:
    """NeMo removes at its start what has the mark."""
    for step in (30, 40):
        dcp(job.folder / name.format(step)) if name.endswith("/") else saved(job.folder / name.format(step))
        marker = put(job.folder / f"{NEMO.format(step)}-unfinished", "")
        assert step not in [found_step for found_step, _ in job.look()]
        marker.unlink()
        assert step in [found_step for found_step, _ in job.look()]
        marker.touch()
    root = job.folder / name.format(30).removesuffix("/weights/")
    forget_later("auto", job.folder, Finished(30, root))
    assert root.exists() and not list(job.folder.glob("*-unfinished")) and not list(job.folder.rglob("*step=40*"))

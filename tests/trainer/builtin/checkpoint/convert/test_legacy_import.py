"""A folder that DeepSpeed saved without us is taken in by command only, whole, and never executed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.root import ROOT
from tests.trainer.builtin.checkpoint.test_checkpoint_parts import Harmful
from tests.trainer.warm import run_module
from trainer.builtin.checkpoint.search import unsound_shards
from trainer.builtin.checkpoint.tiers import Tier


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "global_step7"
    folder.mkdir()
    torch.save(
        {"module": {"w": torch.ones(8)}, "global_steps": 7, "dp_world_size": 2}, folder / "mp_rank_00_model_states.pt"
    )
    for rank in range(2):
        state = {"optimizer_state_dict": {"zero_stage": 1, "rank": rank}}
        torch.save(state, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


def take_in(folder: Path, shared: Path) -> subprocess.CompletedProcess[str]:
    arguments = (str(folder), "--campaign", "tiny", "--shared", str(shared), "--tokens", "700", "--position", "70")
    return run_module("trainer.builtin.checkpoint.convert.adopt", *arguments, folder=folder.parent)


def test_a_legacy_folder_becomes_a_committed_step_and_only_once(folder: Path, tmp_path: Path) -> None:
    done = take_in(folder, tmp_path / "shared")
    assert done.returncode == 0, done.stderr
    tier = Tier("shared", tmp_path / "shared/tiny")
    (manifest,) = tier.committed()
    seen = (manifest.step, manifest.world_size, manifest.zero_stage, manifest.position, manifest.rng_included)
    assert seen == (7, 2, 1, 70, False) and manifest.loss is None, "nobody said what the loss was"
    assert {shard.rank for shard in manifest.shards} == {0, 1} and not unsound_shards(manifest, tier.folder(7))
    again = take_in(folder, tmp_path / "shared")
    assert again.returncode == 74 and "already" in again.stderr


@pytest.mark.parametrize("wrong", ["missing", "harmful", "foreign"])
def test_what_is_not_whole_or_would_execute_is_refused_before_anything_is_copied(
    wrong: str, folder: Path, tmp_path: Path
) -> None:
    shard = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    if wrong == "foreign":
        shard = folder / "mp_rank_00_model_states.pt"
        torch.save({"weights": torch.ones(1)}, shard)
    else:
        shard.unlink()
    if wrong == "harmful":
        torch.save({"x": Harmful()}, shard)
    done = take_in(folder, tmp_path / "shared")
    assert done.returncode == 74, done.stderr
    assert {"harmful": "posix.system", "missing": "1 of 2", "foreign": "no 'global_steps'"}[wrong] in done.stderr
    assert not (tmp_path / "shared").exists() and not Path(ROOT / "harmed").exists()


@pytest.mark.nightly
def test_the_command_takes_it_in_and_what_it_made_can_be_verified(folder: Path, tmp_path: Path) -> None:
    def bivouac(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "infra.cli.main", "checkpoints", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    asked = ("--campaign", "tiny", "--tokens", "700", "--position", "70", "--json")
    done = bivouac("import", str(folder), str(tmp_path / "out"), *asked)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["step"], document["world_size"], Path(document["folder"]).name) == (7, 2, "step-00000007")
    assert bivouac("verify", str(tmp_path / "out/tiny")).returncode == 0
    again = bivouac("import", str(folder), str(tmp_path / "out"), *asked)
    said = again.stdout + again.stderr
    assert again.returncode == 74 and "already" in said and "Traceback" not in said

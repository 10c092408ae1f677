"""Training code as people write it, each example under two supervisors: a node is killed, and the model is the twin's.

None of these scripts knows of Bivouac. What ends as the newest sealed checkpoint is loaded by its own framework.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.root import ROOT
from tests.trainer.supervisor.histories import sealed_steps
from tests.unit.trainer.supervised import Supervisors, events, kill_node
from tests.waiting import until
from trainer.contract import ExitCode

pytestmark = pytest.mark.nightly
"""A run imports torch half a dozen times."""
CLIENT = ROOT / "trainer/client"
"""In a pod it lies beside the supervisor."""
SLOW_S, FAST_S = 0.6, 0.0
"""Seconds that a step waits in place of a real model's work: a checkpoint is sealed before a node is lost."""
Load = Callable[[Path], Any]


def _torch(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def _dcp(path: Path) -> Any:
    parts = {}
    for part in ("model", "optim"):
        whole = path.with_name(f"{path.name}-{part}.pt")
        dcp_to_torch_save(path / part, whole)
        parts[part] = _torch(whole)
    return parts


def _deepspeed(path: Path) -> Any:
    """Return what both ranks saved; the loss scaler has no equality."""
    ranks = [_torch(file)["optimizer_state_dict"] for file in sorted(path.glob("*optim_states.pt"))]
    assert len(ranks) == 2
    figures = [(rank["base_optimizer_state"], rank["single_partition_of_fp32_groups"]) for rank in ranks]
    return _torch(path / "mp_rank_00_model_states.pt")["module"], figures


def _accelerate(path: Path) -> Any:
    random = [_torch(path / f"random_states_{rank}.pkl")["torch_manual_seed"] for rank in range(2)]
    return load_file(path / "model.safetensors"), _torch(path / "optimizer.bin"), random


LOADS: dict[str, Load] = {
    "nanogpt": _torch,
    "accelerate_plain": _accelerate,
    "fsdp_nested": _dcp,
    "deepspeed_tag": _deepspeed,
    "lightning_cli": lambda path: [_torch(path)[name] for name in ("state_dict", "optimizer_states", "global_step")],
    "bar": _torch,
}
"""Example -> what its framework reads of a checkpoint."""


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the example of Lightning's command line asks for, from the package index."""
    folder = tmp_path_factory.mktemp("packages")
    listed = ROOT / "trainer/examples/lightning_cli/requirements.txt"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", folder, "-r", listed], check=True)
    return folder


class Example:
    """An example as its spec has it, on two nodes."""

    def __init__(self, name: str, root: Path, more_path: str = "") -> None:
        root.mkdir()
        folder = ROOT / "trainer/examples" / name
        work = yaml.safe_load((folder / "rehearsal.yaml").read_text())["workload"]
        self.root, self.steps = root, work["estimates"]["steps"]
        self.words = (work["script"], *work["args"])
        path = f"{CLIENT}:{more_path}".rstrip(":")
        self.env = {**work["env"], "PYTHONPATH": path}
        told = work.get("progress", {})
        more = {"progress": told.get("by"), "pattern": told.get("pattern")}
        self.camp = Supervisors(
            root, nodes=2, launcher="torchrun", folder=folder, format=work["checkpoints"]["format"], more=more
        )

    def start(self, attempt: int, pace_s: float = FAST_S) -> list[subprocess.Popen[str]]:
        env = {**self.env, "PACE_S": str(pace_s)}
        return [
            self.camp.start(attempt, *self.words, steps=self.steps, rank=rank, env=env)
            for rank in range(self.camp.nodes)
        ]

    def restored(self) -> Path:
        """Return what another attempt would get, on a disk that has the sealed steps alone."""
        root = self.root.with_name(f"{self.root.name}-restored")
        shutil.copytree(self.root, root, symlinks=True)
        shutil.rmtree(root / "shared/tiny/own")
        camp = replace(self.camp, root=root, nodes=1, launcher="none", more={})
        text = "import os; print('given', os.environ['BIVOUAC_RESUME_FROM'])"
        said = camp.start(9, sys.executable, "-c", text).communicate()[0]
        (given,) = re.findall(r"^given (.+)$", said, re.MULTILINE)
        return Path(given)


def figures(said: str) -> dict[int, float | None]:
    return {event["step"]: event["loss"] for event in events(said, "step")}


@pytest.mark.parametrize("name", sorted(LOADS))
def test_a_lost_node_does_not_show_in_the_model_of_a_script_that_knows_nothing_of_us(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    more = str(request.getfixturevalue("packages")) if name == "lightning_cli" else ""
    twin, struck = Example(name, tmp_path / "twin", more), Example(name, tmp_path / "struck", more)
    undisturbed = twin.start(1)
    whole = figures(undisturbed[0].communicate()[0])
    assert [process.wait() for process in undisturbed] == [0, 0] and twin.camp.ended().reason == "done"

    first = struck.start(1, SLOW_S)
    until(lambda: sealed_steps(struck.camp.tier) or first[0].poll() is not None, "a checkpoint is sealed")
    kill_node(first[1])
    first[0].terminate()
    before = figures(first[0].communicate()[0])
    assert first[0].returncode == ExitCode.INTERRUPTED and max(before) < max(whole)
    newest = max(sealed_steps(struck.camp.tier))

    second = struck.start(2)
    said = second[0].communicate()[0]
    after = figures(said)
    assert [process.wait() for process in second] == [0, 0], said
    assert [event["step"] for event in events(said, "restored")] == [newest]
    assert not events(said, "resumed_elsewhere") and not events(said, "loss_jumped"), said
    assert min(after) > 1 and max(after) == max(whole), "it went on, and did not begin again"
    common = set(before | after) & set(whole)
    assert [step for step in common if (before | after)[step] != whole[step]] == [], "bit for bit"

    model, other = (LOADS[name](example.restored()) for example in (twin, struck))
    assert equal(model, other), "the model and all that training goes on from"

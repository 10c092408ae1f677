"""`bivouac checkpoints` of steps that lie among a job's other files, as its supervisor sealed them: each comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from infra.cli.data import checkpoints as commands
from tests.unit.checkpoints.test_jobs_own_tree import REGION, said
from tests.worlds.checkpoint_files import saved
from tests.worlds.supervisor_tier import JobNode, TwoNodes, put
from trainer.contract import step_folder


class Layout(NamedTuple):
    root: str
    """What comes back, below the job's folder, or the only file."""
    names: Sequence[str]


LAYOUTS = {
    "trees": Layout(".", ("model/step-{}/m.pt", "optim/step-{}/o.pt")),
    "files side by side": Layout("run", ("run/weights_{}.pt", "run/ema_{}.pt", "run/optimizer_{}.pt")),
    "files of ranks": Layout(".", ("ckpt_step{}_rank0.pt", "ckpt_step{}_rank1.pt")),
    "networks": Layout("gan", ("gan/G_{}.pth", "gan/D_{}.pth")),
    "weights and a folder": Layout(".", ("a-step{}.safetensors.pt", "a-step{}-state/optimizer.pt")),
    "the best of Lightning": Layout(
        "checkpoints/epoch=1-step={}-val_loss=0.5.ckpt", ("checkpoints/epoch=1-step={}-val_loss=0.5.ckpt",)
    ),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture
def node(layout: Layout, tmp_path: Path) -> JobNode:
    """A job that has saved the steps 10 and 20, and also other things."""
    node = JobNode(tmp_path)
    put(node.own / "vocab.json", "words"), put(node.own / "run/log.txt", "lines")
    for step in (10, 20):
        for name in layout.names:
            saved(node.own / name.format(step), text=f"{name} of {step}", iteration=step)
        node.end()
    return node


def _files(top: Path) -> dict[str, bytes]:
    paths = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
    return {str(path.relative_to(top)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("step", [10, 20])
def test_a_step_comes_back_with_all_of_its_files_and_no_others(
    step: int, layout: Layout, node: JobNode, tmp_path: Path
) -> None:
    out, root = tmp_path / "out", node.own / layout.root.format(step)
    paths = [node.own / name.format(step) for name in layout.names]
    code, text = said(commands.restore_command, str(node.tier), out, step, REGION)
    (restored,) = (out / step_folder(step)).iterdir()
    assert (code, _files(restored)) == (0, {str(path.relative_to(root)): path.read_bytes() for path in paths})
    assert str(restored) in text and "every file has its digest" in text


def test_a_cut_off_restore_goes_on_and_steps_are_listed_verified_and_compared(
    layout: Layout, node: JobNode, tmp_path: Path
) -> None:
    out, tier = tmp_path / "out", str(node.tier)
    said(commands.restore_command, tier, out, 20, REGION)
    (restored,) = (out / step_folder(20)).iterdir()
    before = _files(restored)
    cut = restored if restored.is_file() else restored / sorted(before)[0]
    cut.write_bytes(b"half")
    assert said(commands.restore_command, tier, out, 20, REGION)[0] == 0 and _files(restored) == before
    rows = json.loads(said(commands.list_command, tier, REGION, True)[1])
    assert [row["step"] for row in rows] == [20, 10]
    assert said(commands.verify_command, tier, None, REGION, True)[0] == 0
    code, text = said(lambda *given: commands.diff_command(tier, 20, 20, *given), REGION, True)
    assert code == 0 and len(json.loads(text)["shards"]) == len(layout.names)
    assert said(lambda *given: commands.diff_command(tier, 10, 20, *given), REGION, True)[0] == 1


def test_a_step_of_two_nodes_disks_comes_back_from_the_shared_tier(tmp_path: Path) -> None:
    job = TwoNodes(tmp_path)
    for node in job.nodes:
        for part in ("model", "optim"):
            put(
                node.folder / f"run/step-10/{part}/__{node.place.node_rank}_0.distcp",
                f"{part} of {node.place.node_rank}",
            )
    for part in ("model", "optim"):
        put(job.nodes[0].folder / f"run/step-10/{part}/.metadata", "\x80\x04.")
    job.nodes[0].recogniser.ended = job.nodes[1].recogniser.ended = True
    assert job.look(0, 1, 0, 1) == [10]
    expected = {name: content for node in job.nodes for name, content in _files(node.folder / "run/step-10").items()}
    assert len(expected) == 6
    assert said(commands.restore_command, str(job.tier), tmp_path / "out", None, REGION)[0] == 0
    assert _files(tmp_path / "out" / step_folder(10) / "step-10") == expected

"""Two nodes that write a file for each rank to disks of their own: a step has all of them, or it is none."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import half, saved
from tests.worlds.supervisor_tier import TwoNodes
from trainer.supervisor import seal
from trainer.supervisor.formats import find, recognise


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    for module, name in ((recognise, "SETTLES_S"), (recognise, "QUIET_S"), (find, "_RESTED_S")):
        monkeypatch.setattr(module, name, 0.0)
    return _started(tmp_path, 1)


def _started(root: Path, attempt: int) -> TwoNodes:
    pair = TwoNodes(root, "auto", attempt)
    for node in pair.nodes:
        node.folder.mkdir(parents=True, exist_ok=True)
    pair.resume()
    return pair


def _save(pair: TwoNodes, number: int, name: str, told: tuple[int, int], **values: int) -> None:
    for rank, node in enumerate(pair.nodes):
        node.recogniser.told_steps.note(told[rank], time.time() - 1.0)
        saved(node.folder / name.format(number=number, rank=rank), **values)


def _names(pair: TwoNodes, step: int) -> set[str]:
    trees = (pair.tier / f"step-{step:08d}").glob("attempt-*/tree-*.json")
    return {name for tree in trees for name in json.loads(tree.read_bytes())["files"]}


@pytest.mark.parametrize("told", [(10, 10), (10, 8)])
def test_a_rank_whose_node_hears_late_gives_its_file_by_the_step_in_it(told: tuple[int, int], pair: TwoNodes) -> None:
    _save(pair, 10, "ckpt_rank{rank}.pt", told, step=10)
    assert pair.look(0, 1, 0) == [10] and _names(pair, 10) == {"ckpt_rank0.pt", "ckpt_rank1.pt"}


def test_of_files_that_tell_no_step_none_is_sealed_without_the_others(pair: TwoNodes) -> None:
    _save(pair, 10, "ckpt_rank{rank}.pt", (10, 8))
    assert pair.look(0, 1, 0, 1, 0) == []


def test_a_folder_of_each_rank_is_part_of_one_checkpoint(pair: TwoNodes) -> None:
    _save(pair, 10, "rank{rank}/ckpt_{number}.pt", (10, 10))
    assert pair.look(0, 1, 0, 1, 0) == [10] and _names(pair, 10) == {"rank0/ckpt_10.pt", "rank1/ckpt_10.pt"}


def test_another_ranks_file_is_found_by_the_number_of_the_step(pair: TwoNodes) -> None:
    _save(pair, 2560, "ckpt_{number}_rank{rank}.pt", (10, 8))
    half(pair.nodes[1].folder / "ckpt_2560_rank1.pt")
    assert pair.look(0, 1, 0) == [], "it is being written"
    saved(pair.nodes[1].folder / "ckpt_2560_rank1.pt")
    (step,) = pair.look(0, 1, 0)
    assert _names(pair, step) == {"ckpt_2560_rank0.pt", "ckpt_2560_rank1.pt"}


@pytest.mark.parametrize(
    "name", ["ckpt_{number}_{rank}.pt", "ckpt_{number}_{rank}.pth.tar", "ckpt_{number}_gpu{rank}.pt"]
)
def test_a_rank_that_is_named_otherwise_is_known_by_the_step_beside_it(
    name: str, tmp_path: Path, pair: TwoNodes
) -> None:
    for number in (10, 20):
        of_ranks = [name.format(number=number, rank=rank) for rank in (0, 1)]
        _save(pair, number, name, (number, number))
        half(pair.nodes[1].folder / of_ranks[1])
        assert number not in pair.look(0, 1, 0, 1, 0), "it is being written"
        saved(pair.nodes[1].folder / of_ranks[1])
        assert pair.look(0, 1, 0, 1, 0)[0] == number
        assert _names(pair, number) == set(of_ranks)
    again = TwoNodes(tmp_path, "auto", 2)
    again.resume()
    for node in again.nodes:
        assert {path.name for path in node.folder.glob("ckpt_20_*")} == set(of_ranks)


def test_a_file_with_an_epoch_of_0_is_a_step_alone_where_only_node_0_writes(pair: TwoNodes) -> None:
    pair.nodes[0].recogniser.told_steps.note(10, time.time() - 1.0)
    saved(pair.nodes[0].folder / "ckpt_10_0.pt")
    assert pair.look(0, 1, 0, 1) == [10] and _names(pair, 10) == {"ckpt_10_0.pt"}


def test_where_only_rank_0_writes_each_step_is_sealed_also_after_two_restarts(tmp_path: Path, pair: TwoNodes) -> None:
    for attempt in (1, 2, 3):
        now = pair if attempt == 1 else _started(tmp_path, attempt)
        for path in (path for node in now.nodes for path in node.folder.glob("ckpt_*")):
            if f"_{10 * attempt - 10}.pt" not in path.name:  # of an attempt before
                os.utime(path, (time.time() - 60, time.time() - 60))
        now.nodes[0].recogniser.told_steps.note(10 * attempt, time.time() - 1.0)
        saved(now.nodes[0].folder / f"ckpt_{10 * attempt}.pt")
        assert now.look(0, 1, 0, 1)[0] == 10 * attempt
    assert seal.committed(now.tier) == [30, 20, 10]

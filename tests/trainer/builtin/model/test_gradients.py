"""Gradients are summed in the format that the spec names, on real ranks."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.builtin.model.summing import BY_RANK, BY_TURN, ORDERS, WORLD
from tests.trainer.warm import start_module

pytestmark = pytest.mark.nightly

ALIKE = math.sqrt(len(ORDERS))
OVER_RANKS, OVER_TURNS = (sum(values) / len(values) * ALIKE for values in (BY_RANK, BY_TURN))
"""Norms of the exact means."""


def case(stage: int, turns: int = 1, offload: str = "none", gradients: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "campaign": "sums", "steps": 1, "zero_stage": stage, "precision": "bfloat16", "micro_batch": 1,
        "global_batch": WORLD * turns, "gradients": gradients or {}, "collective_timeout_s": 3600.0,
        "optimizer": {"offload": offload, "clip": 1e9},
    }  # fmt: skip


WHOLE = {"reduce": "float32", "accumulate": "float32"}
REDUCED = {f"stage {stage}": case(stage, gradients={"reduce": "float32"}) for stage in (0, 1, 2, 3)}
REDUCED |= {f"stage {stage}, offload": case(stage, offload="cpu", gradients=WHOLE) for stage in (2, 3)}
ROUNDED = {f"stage {stage}, bfloat16": case(stage) for stage in (0, 1, 2, 3)}
ADDED = {f"stage {stage}, turns": case(stage, turns=2, gradients=WHOLE) for stage in (2, 3)}
ADDED |= {f"stage {stage}, turns, offload": case(stage, turns=2, offload="cpu", gradients=WHOLE) for stage in (2, 3)}
LOST = {f"stage {stage}, turns, bfloat16": case(stage, turns=2) for stage in (1, 2, 3)}


@pytest.fixture(scope="module")
def norms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder: Path = tmp_path_factory.mktemp("sums")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    cases = json.dumps(REDUCED | ROUNDED | ADDED | LOST)
    ranks = [
        start_module(
            "tests.trainer.builtin.model.summing", [cases],
            dict(os.environ) | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, folder / f"{rank}.log",
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    assert [rank.wait() for rank in ranks] == [0] * WORLD, (folder / "0.log").read_text()
    said = [json.loads((folder / f"{rank}.log").read_text().splitlines()[-1]) for rank in range(WORLD)]
    assert all(one == said[0] for one in said)
    return dict(said[0])


@pytest.mark.parametrize("name", REDUCED)
def test_a_sum_over_ranks_that_only_float32_holds_is_exact(name: str, norms: dict[str, float]) -> None:
    assert norms[name] == pytest.approx(OVER_RANKS, rel=1e-6)


@pytest.mark.parametrize("name", ROUNDED)
def test_in_bfloat16_the_same_sum_over_ranks_is_not(name: str, norms: dict[str, float]) -> None:
    assert norms[name] != pytest.approx(OVER_RANKS, rel=1e-2)


@pytest.mark.parametrize("name", ADDED)
def test_a_sum_over_micro_batches_that_only_float32_holds_is_exact(name: str, norms: dict[str, float]) -> None:
    assert norms[name] == pytest.approx(OVER_TURNS, rel=1e-6)


@pytest.mark.parametrize("name", LOST)
def test_in_bfloat16_the_same_sum_over_micro_batches_is_not(name: str, norms: dict[str, float]) -> None:
    assert abs(norms[name] / OVER_TURNS - 1) > 1e-3

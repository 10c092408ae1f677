"""A training that is taken up at any moment goes on bit for bit, with each stage and format of a spec."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.agents import events_of
from tests.trainer.moments import REACH, WORLD
from tests.trainer.warm import start_module
from trainer.contract import ModelConfig, TrainConfig

WHOLE = {"reduce": "float32", "accumulate": "float32"}
STEPS = 12


def config(stage: int, offload: str = "none", **more: Any) -> TrainConfig:
    model = ModelConfig(layers=2, width=32, heads=2, context=16, vocabulary=258)
    given = {"micro_batch": 1, "global_batch": 2 * WORLD, "precision": "bfloat16", "optimizer": {"offload": offload}}
    settings = {"campaign": "moments", "model": model, "steps": STEPS, "collective_timeout_s": 3600.0}
    return TrainConfig.model_validate(settings | given | {"zero_stage": stage} | more)


KINDS = {
    "bfloat16": config(1),
    "bfloat16, stage 3": config(3),
    "float32": config(1, precision="float32"),
    "float32 sums": config(2, gradients=WHOLE),
    "float32 sums, stage 3": config(3, gradients=WHOLE),
    "offload": config(1, "cpu"),
    "offload, stage 2, float32 sums": config(2, "cpu", gradients=WHOLE),
    "offload, stage 3": config(3, "cpu"),
    "tensor 2": config(1, parallel={"tensor": 2}),
    "tensor 2, stage 2, float32": config(2, parallel={"tensor": 2}, precision="float32"),
    "sequence 2": config(1, parallel={"sequence": 2}),
    "sequence 2, stage 2, float32": config(2, parallel={"sequence": 2}, precision="float32"),
    "sequence 2, stage 3": config(3, parallel={"sequence": 2}),
}


def moments(kind: TrainConfig, count: int, folder: Path) -> list[dict[str, Any]]:
    """Return what every rank saw of each moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(WORLD):
        environment = dict(os.environ) | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        environment |= {"LOCAL_WORLD_SIZE": str(WORLD)}
        given = [kind.model_dump_json(), "1", str(count), str(folder / "tiers")]
        ranks.append(start_module("tests.trainer.moments", given, environment, folder / f"{rank}.log"))
    assert [rank.wait() for rank in ranks] == [0] * WORLD, (folder / "0.log").read_text()[-3000:]
    events = [
        event for rank in range(WORLD) for event in events_of(folder / f"{rank}.log") if event["event"] == "moment"
    ]
    assert len(events) == count * WORLD
    return events


def check(found: list[dict[str, Any]]) -> None:
    assert [one for one in found if one["unequal"]] == []
    assert all(len(one["steps"]) == min(REACH, STEPS - one["at"]) for one in found)


def test_three_moments_of_a_training_in_bfloat16_with_stage_3(tmp_path: Path) -> None:
    check(moments(KINDS["bfloat16, stage 3"], 3, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_fifty_moments(name: str, tmp_path: Path) -> None:
    found = moments(KINDS[name], 50, tmp_path)
    check(found)
    assert len({one["at"] for one in found}) > STEPS / 2

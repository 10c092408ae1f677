"""What the watch reads of real engines, against what autograd gives for the same weights and tokens."""

from __future__ import annotations

import json
import math
import os
import socket
from typing import Any

import pytest

from tests.trainer.builtin.watch.reading import CASES, WORLD
from tests.trainer.warm import NAMED, start_module
from trainer.builtin.model import build
from trainer.builtin.watch.signals import BLOCK_GROUPS, Groups
from trainer.contract import ModelConfig

GROUPS: dict[str, dict[str, str]] = {
    "small": {"embedding": "embedding", "block 0": "blocks.0.", "block 1": "blocks.1.", "block 2": "blocks.2.",
              "block 3": "blocks.3.", "block 4": "blocks.4.", "norm": "norm"},
    "llama": {"embedding": "network.model.embed_tokens", "block 0": "network.model.layers.0.",
              "block 1": "network.model.layers.1.", "norm": "network.model.norm", "output": "network.lm_head"},
}  # fmt: skip
GROUPS["qwen3"] = {name: prefix for name, prefix in GROUPS["llama"].items() if name != "output"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("read")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        start_module(
            "tests.trainer.builtin.watch.reading", [str(folder)],
            dict(os.environ) | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, folder / f"{rank}.log",
            ahead=NAMED,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    assert [rank.wait() for rank in ranks] == [0] * WORLD, (folder / "0.log").read_text()
    return dict(json.loads((folder / "seen.json").read_text()))


def test_each_block_is_a_group_of_its_own_up_to_a_bound() -> None:
    deep, deeper = (build(ModelConfig(layers=layers, width=16, heads=2, context=16)) for layers in (80, 200))
    assert Groups.of_model(deep).names == ("embedding", *(f"block {index}" for index in range(80)), "norm")
    ranges = Groups.of_model(deeper).names[1:-1]
    assert len(ranges) == BLOCK_GROUPS and {"block 0", "blocks 1-2", "blocks 198-199"} <= set(ranges)


@pytest.mark.parametrize("case", CASES)
def test_each_group_of_layers_has_the_norm_of_its_own_gradients(case: str, seen: dict[str, Any]) -> None:
    found, near = seen[case], 5e-2 if "bfloat16" in case else 1e-4
    wanted = {
        group: math.sqrt(sum(norm**2 for name, norm in found["gradients"].items() if name.startswith(prefix)))
        for group, prefix in GROUPS[case.split(",")[0]].items()
    }
    assert found["layers"] == pytest.approx(wanted, rel=near) and min(wanted.values()) > 0
    assert found["norm"] == pytest.approx(math.sqrt(sum(norm**2 for norm in wanted.values())), rel=near)
    assert found["weights"].keys() == wanted.keys() and min(found["weights"].values()) > 0
    assert found["activation"] > 0


def test_without_zero_a_gradient_that_is_no_number_leaves_weights_and_low_bounds_clip(
    seen: dict[str, Any],
) -> None:
    found = seen["not a number"]
    assert found["broken"] == {"applied": False, "equal": True, "norm": "nan"}
    assert found["sound"]["applied"] and not found["sound"]["equal"] and float(found["sound"]["norm"]) > 0.125
    assert found["first moment"] == pytest.approx(0.1 * 0.125, rel=1e-4), "(1 - beta1) x the bound"

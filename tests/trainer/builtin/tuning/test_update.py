"""DeepSpeed's update asks the device once whether the gradient is sound, and computes the same bits as before."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.builtin.model.operations import Operations
from tests.trainer.warm import run_ranks
from trainer.builtin import engine as engines
from trainer.contract import ModelConfig, TrainConfig

MODEL = ModelConfig(layers=2, width=64, heads=4, context=32, vocabulary=512)
STEPS, BROKEN, CLIP = 5, 3, 0.5
"""In the `BROKEN` step a gradient is no number. All norms are above the bound, so that each is scaled."""


def weights_of(engine: Any) -> str:
    """The bits of all weights, as far as this process sees them."""
    optimizer = engine.optimizer
    flats = [getattr(optimizer, name, None) for name in ("fp32_groups_flat", "single_partition_of_fp32_groups")]
    tensors = next((flat for flat in flats if flat), None) or [p for group in optimizer.fp32_groups for p in group]
    return "".join(tensor.detach().numpy().tobytes().hex() for tensor in tensors)


def train(stage: int, folder: Path) -> None:
    """Train the same steps with DeepSpeed's checks and with fewer; write weights, steps taken and waits of both."""
    torch.set_num_threads(1)
    config = TrainConfig.model_validate(
        {
            "campaign": "c", "model": MODEL, "steps": STEPS, "global_batch": 1, "micro_batch": 1, "zero_stage": stage,
            "precision": "bfloat16", "optimizer": {"clip": CLIP},
        }
    )  # fmt: skip
    engines.initialize_distributed(config)
    fewer, seen = engines.read_norm_once, {}
    for name, patch in (("before", lambda engine: None), ("after", fewer)):
        engines.read_norm_once = patch
        engine = engines.build_engine(config, 1)
        words, rows = torch.Generator().manual_seed(1), list[dict[str, Any]]()
        for step in range(STEPS):
            tokens = torch.randint(0, MODEL.vocabulary, (1, MODEL.context + 1), generator=words)
            loss = engine(tokens)
            engine.backward(loss * math.nan if step == BROKEN else loss)
            with Operations() as operations:
                engine.step()
            norm = float(engine.get_global_grad_norm())
            row = {"weights": weights_of(engine), "taken": engine.was_step_applied(), "norm": norm}
            rows.append(row | {"waits": len(operations.waits)})
        seen[name] = rows
        engine.destroy()
    (folder / "seen.json").write_text(json.dumps(seen))


@pytest.mark.parametrize(("stage", "waits"), [(0, 4), (1, 1), (2, 1)])
def test_the_same_steps_are_taken_with_the_same_bits_and_fewer_waits(stage: int, waits: int, tmp_path: Path) -> None:
    run_ranks(train, 1, tmp_path, stage=stage)
    document = json.loads((tmp_path / "seen.json").read_text())
    before, after = document["before"], document["after"]
    assert [row["weights"] for row in before] == [row["weights"] for row in after]
    assert [row["taken"] for row in after] == [step != BROKEN for step in range(STEPS)]
    assert after[BROKEN]["weights"] == after[BROKEN - 1]["weights"] and after[0]["weights"] != after[1]["weights"]
    assert all(row["norm"] > CLIP for row in after), "each was scaled down"
    sound = [step for step in range(STEPS) if step != BROKEN]
    assert {after[step]["waits"] for step in sound} == {waits}
    assert all(before[step]["waits"] >= waits + 3 for step in sound)


def test_another_version_of_deepspeed_and_ranks_of_one_model_keep_their_own_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def left_alone(ranks: int) -> bool:
        optimizer = SimpleNamespace(overflow_checker=SimpleNamespace(check="own"), check_grad_overflow=False)
        engines.read_norm_once(SimpleNamespace(optimizer=optimizer, mp_world_size=ranks))
        return optimizer.overflow_checker.check == "own"

    assert not left_alone(1) and left_alone(2)
    monkeypatch.setattr(engines, "version", lambda _: "0.19.9")
    assert left_alone(1)


def train_one_model(folder: Path) -> None:
    """Train as one of two ranks that compute one model; in the `BROKEN` step the second has a broken gradient of a
    parameter that both have whole."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    config = TrainConfig.model_validate(
        {
            "campaign": "c", "model": MODEL, "steps": STEPS, "global_batch": 1, "micro_batch": 1, "zero_stage": 1,
            "precision": "bfloat16", "optimizer": {"clip": CLIP}, "parallel": {"tensor": 2},
        }
    )  # fmt: skip
    engines.initialize_distributed(config)
    engine = engines.build_engine(config, 2)
    broken = [False]
    name, shared = next((name, part) for name, part in engine.module.named_parameters() if name.endswith("norm.weight"))
    shared.register_hook(lambda gradient: gradient * math.nan if broken[0] and rank == 1 else gradient)
    words, taken = torch.Generator().manual_seed(1), list[bool]()
    for step in range(STEPS):
        broken[0] = step == BROKEN
        engine.backward(engine(torch.randint(0, MODEL.vocabulary, (1, MODEL.context + 1), generator=words)))
        engine.step()
        taken.append(engine.was_step_applied())
    sound = all(bool(part.isfinite().all()) for part in engine.module.parameters())
    (folder / f"{rank}.json").write_text(json.dumps({"name": name, "taken": taken, "sound": sound}))
    engine.destroy()


def test_a_gradient_that_only_the_second_of_a_models_ranks_has_broken_is_refused_by_both(tmp_path: Path) -> None:
    run_ranks(train_one_model, 2, tmp_path)
    for rank in range(2):
        document = json.loads((tmp_path / f"{rank}.json").read_text())
        assert document["taken"] == [step != BROKEN for step in range(STEPS)] and document["sound"], document

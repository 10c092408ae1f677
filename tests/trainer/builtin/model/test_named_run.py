"""Continued pre-training by real agents: from Hugging Face's weights, through a resume, to a golden checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import transformers

from tests.trainer.agents import World, run
from tests.trainer.builtin.checkpoint.convert.test_named_export import hugging_face, ours
from trainer.builtin.checkpoint.convert.export import export
from trainer.builtin.evaluate import evaluate
from trainer.contract import Manifest, TrainConfig

LAST = 4


@pytest.mark.nightly
@pytest.mark.parametrize("stage", [1, 3])
def test_weights_are_trained_on_resumed_and_handed_over(
    stage: int, config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    theirs, came = hugging_face("llama", tmp_path / "in")
    saving = config.checkpoint.model_copy(update={"every_steps": LAST // 2})
    config = config.model_copy(
        update={
            "model": ours("llama"), "init_from": str(came), "zero_stage": stage, "steps": LAST, "checkpoint": saving,
            "precision": "float32", "evaluate_every": 2, "collective_timeout_s": 300,
        }
    )  # fmt: skip
    whole = run(World(tmp_path / "world", data, config), 1, nodes=1, ranks_per_node=2)
    assert whole.agents[0].returncode == 0, whole.log(0).read_text()
    assert [event["tensors"] for event in whole.events("weights_taken")] == [len(list(theirs.parameters()))]

    world = whole.world.copy(tmp_path / "again")
    for tier in (world.shared, world.local(0)):
        shutil.rmtree(tier / "tiny" / f"step-{LAST:08d}")
    second = run(world, 2, nodes=1, ranks_per_node=2)
    assert second.agents[0].returncode == 0, second.log(0).read_text()
    assert second.events("restored")[0]["step"] == LAST // 2
    assert second.losses() == {step: loss for step, loss in whole.losses().items() if step > LAST // 2}

    golden = world.shared / "tiny" / f"step-{LAST:08d}"
    answer = evaluate(golden, config, data)
    assert answer["equal"], answer
    assert Manifest.model_validate_json((golden / "manifest.json").read_bytes()).step == LAST
    export(golden, config, data, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    moved = [(one - other).abs().max() for one, other in zip(model.parameters(), theirs.parameters(), strict=True)]
    assert 0 < max(moved) < 0.1, "trained on, from those weights"


def test_two_nodes_write_equal_bytes_of_equal_tied_weights(config: TrainConfig, data: Path, tmp_path: Path) -> None:
    model = ours("llama")
    tied = model.model_copy(update={"config": {**model.config, "tie_word_embeddings": True}})
    saving = config.checkpoint.model_copy(update={"every_steps": 1})
    config = config.model_copy(
        update={"model": tied, "steps": 2, "checkpoint": saving, "evaluate_every": 2, "collective_timeout_s": 300}
    )
    done = run(World(tmp_path / "world", data, config), 1, nodes=2, ranks_per_node=1)
    assert [agent.returncode for agent in done.agents] == [0, 0], done.log(0).read_text()
    assert done.events("committed")

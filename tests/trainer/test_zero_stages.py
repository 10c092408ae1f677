"""Every ZeRO stage saves, resumes, is evaluated and handed over alike; stage 3 has no rank with whole weights."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch.nn.modules.module import register_module_module_registration_hook

from tests.trainer.agents import Attempt, World, run
from trainer.builtin.checkpoint.convert.export import export
from trainer.builtin.engine import build_engine, initialize_distributed
from trainer.builtin.evaluate import evaluate
from trainer.builtin.model import Transformer
from trainer.contract import ExitCode, Manifest, ModelConfig, RecomputeConfig, TrainConfig

STAGES = [pytest.param(stage, marks=pytest.mark.drill) for stage in (0, 1, 2)] + [3]
LAST = 6


@pytest.fixture(scope="module", params=STAGES, ids="stage-{}".format)
def whole(
    request: pytest.FixtureRequest, config: TrainConfig, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Attempt:
    """Two ranks of one node, undisturbed, with a save in the middle."""
    saving = config.checkpoint.model_copy(update={"every_steps": LAST // 2})
    config = config.model_copy(
        update={"zero_stage": request.param, "steps": LAST, "checkpoint": saving, "evaluate_every": 2}
    )
    attempt = run(World(tmp_path_factory.mktemp("whole"), data, config), 1, nodes=1, ranks_per_node=2)
    assert attempt.agents[0].returncode == 0, attempt.log(0).read_text()
    return attempt


def manifest_of(world: World, step: int) -> Manifest:
    return Manifest.model_validate_json((folder_of(world, step) / "manifest.json").read_bytes())


def folder_of(world: World, step: int) -> Path:
    return world.shared / "tiny" / f"step-{step:08d}"


def halfway(whole: Attempt, root: Path, config: TrainConfig | None = None) -> World:
    """The world as it was before the last step was saved."""
    world = whole.world.copy(root, config)
    for tier in (world.shared, world.local(0)):
        shutil.rmtree(tier / "tiny" / f"step-{LAST:08d}")
    return world


@pytest.mark.nightly
def test_a_resume_ends_with_the_same_bytes_on_every_rank(whole: Attempt, tmp_path: Path) -> None:
    world = halfway(whole, tmp_path / "world")

    second = run(world, 2, nodes=1, ranks_per_node=2)

    assert second.agents[0].returncode == 0, second.log(0).read_text()
    assert second.events("restored")[0]["step"] == LAST // 2
    assert second.losses() == {step: loss for step, loss in whole.losses().items() if step > LAST // 2}
    ends = [manifest_of(each, LAST) for each in (whole.world, world)]
    digests = [{shard.file.rpartition("/")[2]: shard.sha256 for shard in end.shards} for end in ends]
    assert digests[0] == digests[1] and len(digests[0]) >= 3
    assert ends[0].evaluation_loss == ends[1].evaluation_loss


@pytest.mark.nightly
def test_the_checkpoint_alone_gives_the_loss_that_all_ranks_recorded(whole: Attempt) -> None:
    config = whole.world.config
    answer = evaluate(folder_of(whole.world, LAST), config, whole.world.data)
    assert answer["equal"], answer


@pytest.mark.nightly
def test_the_export_of_the_shards_is_the_whole_model(whole: Attempt, tmp_path: Path) -> None:
    files = export(folder_of(whole.world, LAST), whole.world.config, whole.world.data, tmp_path / "golden")
    assert "model.safetensors" in files and "tokenizer.json" in files


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.drill)])
@pytest.mark.nightly
def test_another_number_of_ranks_goes_on_at_the_same_loss(whole: Attempt, ranks: int, tmp_path: Path) -> None:
    world = halfway(whole, tmp_path / "world")

    resized = run(world, 2, nodes=1, ranks_per_node=ranks)

    if whole.world.config.zero_stage == 0:
        assert resized.agents[0].returncode == ExitCode.USER
        assert "another world size without ZeRO" in resized.log(0).read_text()
        return
    assert resized.agents[0].returncode == 0, resized.log(0).read_text()
    assert [(e["from_ranks"], e["to_ranks"]) for e in resized.events("reshaped")] == [(2, ranks)]
    expected = {step: loss for step, loss in whole.losses().items() if step > LAST // 2}
    assert resized.losses() == pytest.approx(expected, rel=1e-5)
    ends = [manifest_of(each, LAST).evaluation_loss for each in (whole.world, world)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)


def built(rank: int, port: int, config: TrainConfig, folder: Path) -> None:
    """Build the engine and train on as one rank of two; write down the most elements that it held while building."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(1)
    initialize_distributed(config)
    held = 0

    def look(model: torch.nn.Module) -> None:
        nonlocal held
        held = max(held, sum(parameter.numel() for parameter in model.parameters()))

    register_module_module_registration_hook(lambda parent, name, child: look(parent))
    draw = Transformer.initialize

    def drawn(model: Transformer, whole: Any = nullcontext) -> None:
        @contextmanager
        def looked_at(parameter: torch.Tensor) -> Iterator[None]:
            with whole(parameter):
                look(model)
                yield

        draw(model, looked_at)

    Transformer.initialize = drawn  # type: ignore[method-assign, assignment]
    engine = build_engine(config, 2)
    losses, words = [], torch.Generator().manual_seed(rank)
    for _ in range(4):
        loss = engine(torch.randint(0, config.model.vocabulary, (1, config.model.context + 1), generator=words))
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    (folder / f"{rank}.json").write_text(json.dumps({"held": held, "losses": losses}))


@pytest.mark.nightly
def test_with_stage_3_no_rank_holds_the_whole_model_and_losses_are_those_of_stage_1(tmp_path: Path) -> None:
    model = ModelConfig(layers=3, width=64, heads=4, context=32, vocabulary=512)
    found = {}
    for stage in (1, 3):
        config = TrainConfig(
            campaign="c", model=model, steps=4, global_batch=2, micro_batch=1, zero_stage=stage,
            recompute=RecomputeConfig(policy="full"),
        )  # fmt: skip
        (folder := tmp_path / str(stage)).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        torch.multiprocessing.spawn(built, (port, config, folder), nprocs=2)
        found[stage] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    whole = sum(parameter.numel() for parameter in Transformer(model).parameters())
    assert all(one["held"] == whole for one in found[1])
    largest = model.vocabulary * model.width
    assert all(one["held"] <= largest for one in found[3]), found[3]
    for there, here in zip(found[3], found[1], strict=True):
        assert there["losses"] == pytest.approx(here["losses"], rel=1e-6)

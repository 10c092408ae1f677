"""Data, a tiny configuration, and an undisturbed run that the disturbed ones are held against."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.trainer.agents import Attempt, World, run
from tests.trainer.data_sets import prepared_words
from trainer.contract import CheckpointConfig, DataConfig, ModelConfig, TrainConfig


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def config(data: Path) -> TrainConfig:
    digest = hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()
    return TrainConfig(
        campaign="tiny",
        model=ModelConfig(layers=2, width=64, heads=4, context=64, vocabulary=512),
        data=DataConfig(manifest_digest=digest),
        checkpoint=CheckpointConfig(every_steps=30, keep_local=2),
        steps=60,
        global_batch=8,
        micro_batch=2,
        evaluate_every=1000,
        evaluate_batches=2,
        precision="bfloat16",
    )


@pytest.fixture(scope="session")
def twin(data: Path, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """A whole run of two nodes that nothing disturbed. `tests.bench.in_place`, which a test runs, and a rehearsal have
    agents that start as in a pod: two of them import for 8 s of a processor."""
    attempt = run(World(tmp_path_factory.mktemp("twin"), data, config), 1)
    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(0).read_text()
    return attempt


@pytest.fixture
def world(data: Path, config: TrainConfig, tmp_path: Path) -> World:
    return World(tmp_path / "world", data, config)

"""Supervised fine-tuning where ranks share sequences or matrices: the losses and gradients of one process over the
whole batch, also where a rank's part of the sequences has nothing that counts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.agents import World, run
from tests.trainer.builtin.data.chats import WORDS, conversations
from tests.trainer.test_masked_loss import BATCH, STEPS, Alone, Chat, one_process, supervised
from trainer.builtin.data.reader import Reader
from trainer.builtin.evaluate import evaluate
from trainer.contract import ParallelConfig, TrainConfig

pytestmark = pytest.mark.nightly

EVEN = 192
"""Positions of a sequence, which two ranks and four share."""


@dataclass(frozen=True)
class Gang:
    nodes: int
    ranks_per_node: int
    stage: int
    tensor: int = 1
    sequence: int = 1

    def __str__(self) -> str:
        gang = f"{self.nodes}x{self.ranks_per_node}-zero{self.stage}"
        return f"{gang}-tensor{self.tensor}-sequence{self.sequence}"


def long_asked(count: int) -> list[Chat]:
    """Conversations whose answer lies in the second half of a sequence; the longest sample is packed first."""
    chance = random.Random(11)
    return [
        [
            {"role": "user", "content": f"{number} " + " ".join(chance.choices(WORDS, k=chance.randint(55, 65)))},
            {"role": "assistant", "content": " ".join(chance.choices(WORDS, k=chance.randint(2, 6)))},
        ]
        for number in range(count)
    ]


def counted_by_part(reader: Reader, parts: int) -> np.ndarray:
    """Return how many targets count, by step and part of the sequences, shape (steps, parts)."""
    targets = reader.stored(range(STEPS * BATCH))[:, 1:] >= 0
    return targets.reshape(STEPS, BATCH, parts, -1).sum(axis=(1, 3))


Trained = tuple[Path, TrainConfig, Alone]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Data, a training, and what one process comes to."""
    folder = tmp_path_factory.mktemp("chats")
    data, config, reader = supervised(folder, [*long_asked(90), *conversations(60)], EVEN)
    counted = counted_by_part(reader, 2)
    assert (counted == 0).any(axis=1).any(), "in no step one of two ranks has nothing that counts"
    assert (counted > 0).all(axis=1).any(), "in each step one of two ranks has nothing that counts"
    config = config.model_copy(update={"model": config.model.model_copy(update={"heads": 4})})
    return data, config, one_process(config, reader)


GANGS = [
    *(Gang(1, 2, stage, sequence=2) for stage in (0, 2, 3)),
    Gang(2, 1, stage=1, sequence=2),
    Gang(2, 2, stage=3, sequence=4),
    Gang(2, 2, stage=1, sequence=2),
    Gang(1, 2, stage=1, tensor=2),
    Gang(2, 2, stage=2, tensor=2),
]


@pytest.mark.parametrize("gang", GANGS, ids=str)
def test_masked_data_trains_as_in_one_process(gang: Gang, whole: Trained, tmp_path: Path) -> None:
    data, config, wanted = whole
    parallel = ParallelConfig(tensor=gang.tensor, sequence=gang.sequence)
    config = config.model_copy(update={"zero_stage": gang.stage, "parallel": parallel})

    attempt = run(World(tmp_path / "world", data, config), 1, gang.nodes, gang.ranks_per_node)

    assert [agent.returncode for agent in attempt.agents] == [0] * gang.nodes, attempt.log(0).read_text()
    losses = attempt.losses()
    assert [losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted.losses, rel=2e-5)
    if gang.stage:
        norms = [event["norm"] for event in attempt.events("step")]
        assert norms == pytest.approx(wanted.norms, rel=1e-4), "Adam hides a gradient that is a half; clipping does not"
    (told,) = attempt.events("evaluated")
    assert told["loss"] == pytest.approx(wanted.held_out, rel=2e-5)
    answer = evaluate(attempt.world.shared / "tiny" / f"step-{STEPS:08d}", config, data)
    assert answer["equal"], answer

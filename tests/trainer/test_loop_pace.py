"""The interval between saves changes on all ranks at the same step, or shards of two steps would meet."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.drills.parts.storage_gang import Camp, PipeGang
from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity
from trainer.builtin.checkpoint.pace import Pace
from trainer.builtin.data.ledger import DataLedger
from trainer.builtin.loop import Loop
from trainer.builtin.watch.figures import Mine
from trainer.builtin.watch.overseer import Overseer
from trainer.contract import CheckpointConfig, TrainConfig


def alone(tmp_path: Path) -> Loop:
    """The loop of the first rank, whose pace would save every 10 steps so far."""
    checkpoint = CheckpointConfig(every_steps=10, measured=True)
    config = TrainConfig(campaign="tiny", steps=1000, global_batch=1, checkpoint=checkpoint)
    gang: Any = PipeGang(0, 0, 1, None, None)  # type: ignore[arg-type]
    identity = ManifestIdentity("tiny", 1, 1, "", "", "", "")
    committer = Committer(gang, Camp(tmp_path, 1, 1).tiers(0), checkpoint, identity, Begun())
    engine, ledger = SimpleNamespace(get_global_grad_norm=lambda: 1.0), DataLedger(1, 1, 1, 1, "d")
    engine.device, engine.module, engine.was_step_applied = torch.device("cpu"), torch.nn.Module(), lambda: True
    pace = Pace(every=10, steps=1000, mtbf_s=36_000.0)
    nothing: Any = None
    overseer = Overseer(config, gang, engine, Camp(tmp_path, 1, 1).tiers(0).shared, 1)
    parts = (ledger, committer, nothing, tmp_path, pace, overseer, nothing)
    return Loop(config, gang, engine, nothing, nothing, *parts)


def agree(loop: Loop, step: int) -> None:
    loop.step = loop.position = step
    loop._accept(loop._agree(Mine(loss=1.0), time.monotonic(), 0, 0.1))


def test_an_interval_that_the_first_rank_has_chosen_holds_from_the_next_exchange_on(tmp_path: Path) -> None:
    loop = alone(tmp_path)
    for step in range(1, 10):
        agree(loop, step)
    loop.pace.begin_save(stall_s=5.0)
    loop.committer.measured.write_s = 1.0
    agree(loop, 10)
    assert loop.pace.every > 10 and loop._due(), "the others, who have not heard of it, save now"
    agree(loop, 11)
    assert loop.every == loop.pace.every and not loop._due()

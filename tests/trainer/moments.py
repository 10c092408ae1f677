"""One rank of two, `python -m tests.trainer.moments`: a training that is saved after each step, and taken up at drawn
moments by new engines with other weights. It prints what each moment found, and whether every bit was the first run's.

Saves, manifests, digests and loads are those of a training; in place of a kill, the engine is thrown away.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.builtin.checkpoint.restore import choose_start, load_start
from trainer.builtin.checkpoint.tiers import campaign_tiers
from trainer.builtin.engine import build_engine, initialize_distributed, learning_rate
from trainer.builtin.gang import Gang
from trainer.contract import CheckpointConfig, Layout, TrainConfig

WORLD, REACH = 2, 3
"""A moment is followed for so many steps at most."""


def trained(engine: Any, config: TrainConfig, rank: int, first: int) -> Iterator[tuple[int, str]]:
    """Train from a 0-based step on; yield each step's 1-based number and the digest of all that the rank then has."""
    layout = Layout.of(config.parallel, WORLD)
    for step in range(first, config.steps):
        for group in engine.optimizer.param_groups:
            group["lr"] = learning_rate(step, config.steps, config.optimizer)
        loss = torch.zeros(())
        for turn in range(config.global_batch // (config.micro_batch * layout.data)):
            words = torch.Generator().manual_seed(1000 * step + 10 * turn + layout.data_rank(rank))
            shape = (config.micro_batch, config.model.context + 1)
            loss = engine(torch.randint(0, config.model.vocabulary, shape, generator=words))
            engine.backward(loss)
            engine.step()
        torch.rand(3)  # a step of a model that draws
        yield step + 1, digest(engine, float(loss.detach()))


def digest(engine: Any, loss: float) -> str:
    """Return the SHA-256 of loss, random state, weights, and the optimizer's weights and states."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    found = [getattr(parameter, "ds_tensor", parameter) for parameter in engine.module.parameters()]
    for group in inner.param_groups:
        for one in group["params"]:
            found += [one, *(value for _, value in sorted(inner.state[one].items()) if torch.is_tensor(value))]
    seen = hashlib.sha256(repr(loss).encode() + torch.get_rng_state().numpy().tobytes())
    for tensor in found:
        seen.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def first_run(config: TrainConfig, gang: Gang, tiers: Any) -> dict[int, str]:
    engine = build_engine(config, WORLD)
    engine.checkpoint_engine = HostCopyEngine(lambda path, file: None)
    kept = CheckpointConfig(every_steps=1, keep_local=config.steps, keep_shared=config.steps, neighbour=False)
    parallel = config.parallel if Layout.of(config.parallel, WORLD).splits else None
    identity = ManifestIdentity(config.campaign, 1, config.zero_stage, "", "", "", "", parallel=parallel)
    committer, seen = Committer(gang, tiers, kept, identity, Begun()), {}
    for step, state in trained(engine, config, gang.rank, 0):
        seen[step] = state
        assert committer.save(engine, TrainingProgress(step, 0, 0, 1.0))
        committer.drain(replicate=True)
    engine.destroy()
    return seen


def taken_up(config: TrainConfig, gang: Gang, tiers: Any, at: int, number: int) -> dict[int, str]:
    """Return the digests after the steps that follow the moment, in a new engine that began with other weights."""
    layout, undrawn = Layout.of(config.parallel, WORLD), number % 2 == 1
    start = choose_start(gang, tiers, config.zero_stage, 2, is_banned=lambda one: one.step > at, layout=layout)
    engine = build_engine(config.model_copy(update={"seed": 1000 + number}), WORLD, restores=undrawn)
    if undrawn:  # what the memory held may be the right weights
        for parameter in engine.module.parameters():
            getattr(parameter, "ds_tensor", parameter).data.fill_(torch.nan)
    begun = load_start(engine, start)
    assert begun.step == at, f"{begun.step} instead of {at}"
    following = dict(step for step, _ in zip(trained(engine, config, gang.rank, at), range(REACH), strict=False))
    engine.destroy()
    return following


def main() -> None:
    config = TrainConfig.model_validate_json(sys.argv[1])
    seed, count, folder = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    initialize_distributed(config)
    gang = Gang.join(timedelta(hours=1))
    tiers = campaign_tiers(folder / "local", folder / "shared", config.campaign)
    seen = first_run(config, gang, tiers)
    for number in range(count):
        at = random.Random(f"{seed}/{number}").randint(1, config.steps - 1)
        again = taken_up(config, gang, tiers, at, number)
        unequal = [step for step, state in again.items() if state != seen[step]]
        print(json.dumps({"event": "moment", "at": at, "steps": sorted(again), "unequal": unequal}), flush=True)
    gang.barrier()


if __name__ == "__main__":
    main()

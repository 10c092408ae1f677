"""What the watch reads of real engines in a step, as one rank of two.

`python -m tests.trainer.builtin.watch.reading FOLDER` runs it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.builtin.model.families import config_of
from trainer.builtin.engine import build_engine, initialize_distributed
from trainer.builtin.model import build
from trainer.builtin.watch.signals import Signals
from trainer.contract import ModelConfig, TrainConfig

WORLD, BATCH = 2, 2
SMALL = ModelConfig(layers=5, width=48, heads=4, context=32, vocabulary=320)
CASES: dict[str, tuple[ModelConfig, int, str]] = {
    "small, stage 0": (SMALL, 0, "float32"),
    "small, stage 0, bfloat16": (SMALL, 0, "bfloat16"),
    "small, stage 1": (SMALL, 1, "float32"),
    "llama, stage 1": (config_of("llama"), 1, "float32"),
    "qwen3, stage 3": (config_of("qwen3"), 3, "float32"),
}


def config(case: str) -> TrainConfig:
    model, stage, precision = CASES[case]
    return TrainConfig(
        campaign="read", model=model, steps=9, zero_stage=stage, precision=precision, micro_batch=BATCH,
        global_batch=BATCH * WORLD, collective_timeout_s=3600.0,
    )  # fmt: skip


def tokens(case: str, rank: int) -> torch.Tensor:
    model = CASES[case][0]
    return torch.randint(1, model.vocabulary, (BATCH, model.context + 1), generator=torch.Generator().manual_seed(rank))


def read(case: str, rank: int) -> dict[str, Any]:
    """Return the figures of one step, and those that autograd gives for both ranks' tokens on the same weights."""
    engine = build_engine(config(case), WORLD)
    signals = Signals(engine, rank == 0)
    signals.step_begins()
    loss = engine(tokens(case, rank))
    engine.backward(loss)
    signals.before_update()
    engine.step()
    found = signals.read([loss])
    own = torch.tensor([*found.layers, *found.weights, found.activation / WORLD], dtype=torch.float64)
    dist.all_reduce(own)
    roots, count = [math.sqrt(one) for one in own.tolist()], len(signals.groups)
    told = {"layers": dict(zip(signals.groups, roots, strict=False)), "activation": roots[-1]}
    told["weights"] = dict(zip(signals.groups, roots[count:], strict=False))
    return {**told, "norm": float(engine.get_global_grad_norm()), **_by_hand(case)}


def _by_hand(case: str) -> dict[str, Any]:
    model, _, precision = CASES[case]
    torch.manual_seed(config(case).seed)
    plain = build(model)
    torch.manual_seed(config(case).seed)
    plain.initialize()
    if precision == "bfloat16":
        plain = plain.bfloat16().float()  # the same weights
    plain(torch.cat([tokens(case, rank) for rank in range(WORLD)])).backward()
    return {
        "gradients": {name: float(one.grad.norm()) for name, one in plain.named_parameters() if one.grad is not None}
    }


def not_a_number(rank: int) -> dict[str, Any]:
    """Return what a step without ZeRO leaves of weights when one rank's loss is no number, and when it is one again."""
    case = "small, stage 0"
    engine, found = build_engine(config(case), WORLD), dict[str, Any]()
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    for name, factor in (("broken", math.nan), ("sound", 1.0)):
        engine.optimizer.clip_grad = 0.125
        engine.backward(engine(tokens(case, rank)) * (factor if rank else 1.0))
        engine.step()
        equal = all(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True))
        found[name] = {
            "applied": engine.was_step_applied(),
            "equal": equal,
            "norm": repr(engine.get_global_grad_norm()),
        }
    moments = [state["exp_avg"].norm() ** 2 for state in engine.optimizer.state.values()]
    return {**found, "first moment": float(torch.stack(moments).sum().sqrt())}


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    initialize_distributed(config("small, stage 1"))
    seen = {case: read(case, rank) for case in CASES} | {"not a number": not_a_number(rank)}
    if rank == 0:
        (folder / "seen.json").write_text(json.dumps(seen))
    dist.barrier()


if __name__ == "__main__":
    main()

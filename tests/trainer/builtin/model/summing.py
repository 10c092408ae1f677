"""One rank of four: gradients whose sums float32 holds and bfloat16 does not.

`python -m tests.trainer.builtin.model.summing` runs it.

A model with one weight whose gradient is the input itself. It prints the norm of what the optimizer got, by case.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import torch

from trainer.builtin.engine import deepspeed_config, import_deepspeed, initialize_distributed
from trainer.contract import TrainConfig

WORLD = 4
BY_RANK = (512.0, 1.0, 1.0, -512.0)
"""Their sum is 2; in bfloat16, 513 and 511 are 512, so most orders lose both ones, and two sums of four meet them."""
ORDERS = list(itertools.permutations(range(WORLD)))
BY_TURN = (512.0, 1.0)
"""Two micro batches on all ranks; in bfloat16 their sum is 512."""


class Weight(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(len(ORDERS)))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def norm(config: TrainConfig, rank: int) -> float:
    settings, model = deepspeed_config(config, WORLD), Weight()
    settings["zero_optimization"]["reduce_bucket_size"] = len(ORDERS)
    deepspeed: Any = import_deepspeed()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    if config.global_batch == WORLD:
        turns = [torch.tensor([BY_RANK[order[rank]] for order in ORDERS])]
    else:
        turns = [torch.full([len(ORDERS)], value) for value in BY_TURN]
    for gradient in turns:
        engine.backward(engine(gradient.bfloat16()))
        engine.step()
    found = float(engine.get_global_grad_norm())
    engine.destroy()
    return found


def main() -> None:
    cases, rank = json.loads(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    configs = {name: TrainConfig.model_validate(case) for name, case in cases.items()}
    initialize_distributed(next(iter(configs.values())))
    seen = {name: norm(config, rank) for name, config in configs.items()}
    print(json.dumps(seen), flush=True)
    torch.distributed.barrier()


if __name__ == "__main__":
    main()

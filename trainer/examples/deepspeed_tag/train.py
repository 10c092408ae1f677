"""A DeepSpeed script that saves under one tag again and again, and loads what its tracker file names, if there is one.
It knows nothing of Bivouac."""

import os
import sys
import time

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

STEPS, FOLDER = int(sys.argv[1]), sys.argv[2]
SAVE_EVERY, BATCH, WIDTH = 10, 16, 32
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "bf16": {"enabled": True},
}


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    # Without a GPU, DeepSpeed would compile this extension at each start of a container, for a minute.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    engine.load_checkpoint(FOLDER)  # without a tracker file it says so, and begins
    for step in range(engine.global_steps + 1, STEPS + 1):
        inputs, targets = batch(step, dist.get_rank())
        loss = nn.functional.mse_loss(engine(inputs.bfloat16()).float(), targets)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.17g}", flush=True)
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(FOLDER, tag="newest")
        time.sleep(float(os.environ.get("PACE_S", "0")))  # in place of a real model's work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A DeepSpeed script of one's own: ZeRO stage 1, `save_checkpoint` with its tracker file `latest`."""

import json
import os
import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
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
    rank, folder = dist.get_rank(), Path(os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    start = 0
    if os.environ.get("BIVOUAC_RESUME_FROM"):  # the tracker file names the checkpoint
        _, client_state = engine.load_checkpoint(folder)
        start = client_state["step"]
    for step in range(start + 1, STEPS + 1):
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(engine(inputs.bfloat16()).float(), targets)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(json.dumps({"step": step, "loss": mean.item() / dist.get_world_size()}), flush=True)
        if step % SAVE_EVERY == 0 or step == STEPS:
            engine.save_checkpoint(folder, tag=f"global_step{step}", client_state={"step": step})
        time.sleep(SLEEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

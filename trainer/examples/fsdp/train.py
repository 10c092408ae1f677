"""FSDP2 with PyTorch's distributed checkpoints, saved while training goes on: each rank writes its own shards.

In a campaign the supervisor's own writer also digests them, so that sealing need not read them again.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

try:
    from bivouac_dcp import Writer
except ImportError:
    from torch.distributed.checkpoint import FileSystemWriter as Writer

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
SAVE_EVERY, BATCH, WIDTH = 10, 16, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    dist.init_process_group("gloo")
    save_group = dist.new_group(backend="gloo")  # a save beside training must not share its collectives
    rank, folder = dist.get_rank(), Path(os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    saving: Any = None
    if resume := os.environ.get("BIVOUAC_RESUME_FROM"):
        weights, moments = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=resume)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        start = state["step"]
    for step in range(start + 1, STEPS + 1):
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(json.dumps({"step": step, "loss": mean.item() / dist.get_world_size()}), flush=True)
        if step % SAVE_EVERY == 0 or step == STEPS:
            if saving is not None:
                saving.result()
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            saving = dcp.async_save(state, storage_writer=Writer(folder / f"step-{step}"), process_group=save_group)
        time.sleep(SLEEP_S)
    if saving is not None:
        saving.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

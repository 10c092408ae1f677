"""A script that prints nothing but a progress bar, and keeps each checkpoint in a file of its own. It knows nothing of
Bivouac."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

STEPS, FOLDER, RESUME = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
SAVE_EVERY, BATCH, WIDTH = 10, 16, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if RESUME:
        checkpoint = torch.load(RESUME)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["step"]
    bar = tqdm(range(start, STEPS), initial=start, total=STEPS, disable=rank > 0)
    for step in bar:
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item())
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            FOLDER.mkdir(parents=True, exist_ok=True)
            state = {"step": step + 1, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, FOLDER / f"model_{step + 1}.pt")
        time.sleep(float(os.environ.get("PACE_S", "0")))  # in place of a real model's work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

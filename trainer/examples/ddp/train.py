"""A plain PyTorch script: DistributedDataParallel under torchrun, `torch.save`, a file `DONE` after each checkpoint.

Of Bivouac it knows two variables: where its checkpoints go, and from which one it resumes. It runs without both.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
"""Steps, and what each of them waits in place of a real model's work."""
SAVE_EVERY, BATCH, WIDTH = 10, 16, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's inputs and targets of a step: the same ones however often training restarts."""
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if resume := os.environ.get("BIVOUAC_RESUME_FROM"):
        checkpoint = torch.load(Path(resume) / "state.pt", weights_only=True)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["step"]
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
                step_folder = folder / f"step-{step}"
                step_folder.mkdir(parents=True, exist_ok=True)
                state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, step_folder / "state.pt")
                (step_folder / "DONE").touch()
        dist.barrier()
        time.sleep(SLEEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

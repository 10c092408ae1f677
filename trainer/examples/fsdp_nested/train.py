"""FSDP2 whose model and optimizer are two distributed checkpoints in one folder of the step, below a folder of the run:
`run-a/step-30/model` and `run-a/step-30/optim`. It knows nothing of Bivouac."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

BATCH, WIDTH = 16, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--run-folder", type=Path, default=Path("run-a"))
    parser.add_argument("--load", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if args.load:
        weights, moments = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"optim": moments, "step": 0}
        dcp.load(weights, checkpoint_id=Path(args.load) / "model")
        dcp.load(state, checkpoint_id=Path(args.load) / "optim")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state["optim"])
        start = state["step"]
    for step in range(start + 1, args.steps + 1):
        inputs, targets = batch(step, dist.get_rank())
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.17g}", flush=True)
        if step % args.save_every == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save(weights, checkpoint_id=args.run_folder / f"step-{step}" / "model")
            dcp.save({"optim": moments, "step": step}, checkpoint_id=args.run_folder / f"step-{step}" / "optim")
        time.sleep(float(os.environ.get("PACE_S", "0")))  # in place of a real model's work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

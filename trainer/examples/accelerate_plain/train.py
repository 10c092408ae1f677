"""A loop with Hugging Face's Accelerate as its own examples have it: `save_state` into `step_N`, the step read from the
folder's name, `--resume_from_checkpoint`. It knows nothing of Bivouac."""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from torch import nn

BATCH, WIDTH = 16, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_train_steps", type=int, default=60)
    parser.add_argument("--checkpointing_steps", type=int, default=10)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--resume_from_checkpoint", default="")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    plain = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    overall_step = 0
    if args.resume_from_checkpoint:
        accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
        accelerator.load_state(args.resume_from_checkpoint)
        overall_step = int(os.path.basename(args.resume_from_checkpoint).removeprefix("step_"))
    while overall_step < args.max_train_steps:
        inputs, targets = batch(overall_step, accelerator.process_index)
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        overall_step += 1
        accelerator.print(
            f"step {overall_step}: loss {accelerator.reduce(loss.detach(), 'mean').item():.17g}", flush=True
        )
        if overall_step % args.checkpointing_steps == 0:
            accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
        time.sleep(float(os.environ.get("PACE_S", "0")))  # in place of a real model's work
    accelerator.end_training()


if __name__ == "__main__":
    main()

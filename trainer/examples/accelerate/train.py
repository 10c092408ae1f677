"""A loop of one's own with Hugging Face's Accelerate. Bivouac's part: `Run`, which tells steps, saves, resumes, and
hears that it should stop."""

import sys
import time

import torch
from accelerate import Accelerator
from bivouac_accelerate import Run
from torch import nn

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
SAVE_EVERY, BATCH, WIDTH = 10, 16, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True).sin()


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    plain = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    run = Run(accelerator)
    for step in range(run.resume() + 1, STEPS + 1):
        inputs, targets = batch(step, accelerator.process_index)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if run.done(step, accelerator.reduce(loss.detach(), "mean")) or step % SAVE_EVERY == 0 or step == STEPS:
            run.save(step)
        if run.stopping:
            break
        time.sleep(SLEEP_S)
    accelerator.end_training()


if __name__ == "__main__":
    main()

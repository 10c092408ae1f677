"""A script in nanoGPT's manner: settings by `--name=value`, one file `ckpt.pt` that is written again and again, and
`--init_from=resume`. It knows nothing of Bivouac."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
init_from = "scratch"
eval_interval, max_iters = 10, 60
batch_size, block_size, vocab_size, n_embd = 4, 16, 64, 32
learning_rate = 1e-2
for argument in sys.argv[1:]:  # nanoGPT's configurator
    name, value = argument.removeprefix("--").split("=")
    globals()[name] = type(globals()[name])(value)


def get_batch(iter_num: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(iter_num * 1000 + rank)
    prompt = torch.randint(1, vocab_size, (batch_size, 1), generator=random)
    tokens = prompt * 5 ** torch.arange(block_size + 1) % vocab_size
    return tokens[:, :-1], tokens[:, 1:]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(vocab_size, n_embd), nn.Linear(n_embd, n_embd), nn.GELU())
    model.append(nn.Linear(n_embd, vocab_size))
    iter_num = 0
    checkpoint = None
    if init_from == "resume":
        checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        iter_num = checkpoint["iter_num"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    if checkpoint is not None:
        optimizer.load_state_dict(checkpoint["optimizer"])
    ddp = DistributedDataParallel(model)
    os.makedirs(out_dir, exist_ok=True)
    while True:
        if iter_num % eval_interval == 0 and rank == 0:
            with torch.no_grad():
                inputs, targets = get_batch(-1, 0)
                val = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            print(f"step {iter_num}: train loss {val:.4f}, val loss {val:.4f}", flush=True)
            if iter_num > 0:
                checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
        if iter_num >= max_iters:
            break
        inputs, targets = get_batch(iter_num, rank)
        loss = nn.functional.cross_entropy(ddp(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}, time 1.00ms, mfu -100.00%", flush=True)
        iter_num += 1
        time.sleep(float(os.environ.get("PACE_S", "0")))  # in place of a real model's work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

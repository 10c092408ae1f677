"""A loop of one's own on megatron-core: every node holds a part of each matrix and of the vocabulary.

Checkpoints lie as Megatron-LM lays them: `iter_0000010/mp_rank_00/model_optim_rng.pt` of each tensor-parallel rank,
then the tracker file. What megatron-core has besides (attention, its optimizers, `dist_checkpointing`) asks for CUDA.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
SAVE_EVERY, BATCH, WIDTH, LENGTH, VOCABULARY = 10, 4, 32, 16, 64
TRACKER = "latest_checkpointed_iteration.txt"


class Model(nn.Module):
    """Predicts the next token from the present one."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        options: Any = {"config": config, "init_method": config.init_method}
        self.embedding = VocabParallelEmbedding(VOCABULARY, WIDTH, **options)
        parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        self.mlp = MLP(config, parts, ffn_hidden_size=4 * WIDTH)
        self.output = ColumnParallelLinear(WIDTH, VOCABULARY, bias=False, gather_output=False, **options)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens[:, :-1])
        change, bias = self.mlp(hidden)
        logits, _ = self.output(hidden + change + bias)
        return vocab_parallel_cross_entropy(logits, tokens[:, 1:]).mean()


def batch(step: int) -> torch.Tensor:
    """Return the tokens of a step, the same on all ranks of a tensor-parallel group: each is 5 times the one before."""
    random = torch.Generator().manual_seed(step)
    prompt = torch.randint(1, VOCABULARY, (BATCH, 1), generator=random)
    return prompt * 5 ** torch.arange(LENGTH) % VOCABULARY


def shard(folder: Path, step: int) -> Path:
    return folder / f"iter_{step:07d}" / f"mp_rank_{groups.get_tensor_model_parallel_rank():02d}" / "model_optim_rng.pt"


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint, 0 if there is none, as Megatron-LM's `--load` does."""
    tracker = folder / TRACKER
    return int(tracker.read_text()) if tracker.exists() else 0


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path = shard(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, path)
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / TRACKER).write_text(str(step))


def main() -> None:
    dist.init_process_group("gloo")
    groups.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    folder = Path(os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Model(
        TransformerConfig(
            num_layers=1, hidden_size=WIDTH, num_attention_heads=dist.get_world_size(), use_cpu_initialization=True,
            tensor_model_parallel_size=dist.get_world_size(),
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = newest(folder)
    if start:
        checkpoint = torch.load(shard(folder, start), weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["rng"])
    for step in range(start + 1, STEPS + 1):
        loss = model(batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": loss.item()}), flush=True)
        if step % SAVE_EVERY == 0 or step == STEPS:
            save(folder, step, model, optimizer)
        time.sleep(SLEEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A Lightning module under its Trainer. Bivouac's part: one callback, and from where to resume."""

import os
import sys
import time
from collections.abc import Iterator

import bivouac
import torch
from bivouac_lightning import BivouacCallback
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
SAVE_EVERY, BATCH, WIDTH = 10, 16, 32
RANK = int(os.environ.get("RANK", "0"))
RANKS, RANKS_HERE = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))


class Batches:
    """This rank's batches. Lightning keeps its place in them, since it has `state_dict`; of others it would begin again
    in the middle of an epoch."""

    def __init__(self) -> None:
        self.done = 0

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while self.done < STEPS:
            self.done += 1
            random = torch.Generator().manual_seed(self.done * 1000 + RANK)
            inputs = torch.randn(BATCH, WIDTH, generator=random)
            yield inputs, inputs.sum(1, keepdim=True).sin()

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class Sine(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(SLEEP_S)
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    folder = os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints")
    saver = ModelCheckpoint(folder, every_n_train_steps=SAVE_EVERY, save_top_k=-1, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=RANKS_HERE,
        num_nodes=RANKS // RANKS_HERE,
        max_steps=STEPS,
        callbacks=[BivouacCallback(), saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Sine(), Batches(), ckpt_path=bivouac.resume_from())


if __name__ == "__main__":
    main()

"""A Lightning project under its command line: all settings stand in `config.yaml`. It knows nothing of Bivouac."""

import os
import time

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 32


class Numbers(LightningDataModule):
    def __init__(self, rows: int = 320, batch_size: int = 16) -> None:
        super().__init__()
        inputs = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))
        self.rows, self.batch_size = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.rows, self.batch_size)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.rows, self.batch_size)


class SineRegression(LightningModule):
    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(float(os.environ.get("PACE_S", "0")))  # in place of a real model's work
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.model(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


if __name__ == "__main__":
    torch.set_num_threads(1)
    LightningCLI(SineRegression, Numbers)

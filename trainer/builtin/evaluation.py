"""The held-out loss. One process computes it over the same batches and shapes, so it does not depend on the gang."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from trainer.builtin.model.compiled import uncompiled
from trainer.contract import TrainConfig


class HasHeldOut(Protocol):
    def held_out(self, sequences: int) -> np.ndarray: ...


def evaluation_loss(model: torch.nn.Module, reader: HasHeldOut, config: TrainConfig, device: torch.device) -> float:
    """Return the mean loss in nats per counted token over `evaluate_batches` held-out batches of `micro_batch`
    sequences."""
    sequences = torch.from_numpy(reader.held_out(config.evaluate_batches * config.micro_batch))
    training = model.training
    model.eval()
    total = weights = 0.0
    with torch.no_grad(), uncompiled(config):
        for batch in sequences.split(config.micro_batch):
            # In sequences: of text a batch weighs exactly as many as it has.
            weight = int((batch[:, 1:] >= 0).sum()) / (batch.shape[1] - 1)
            total += float(model(batch.to(device))) * weight
            weights += weight
    model.train(training)
    return total / weights

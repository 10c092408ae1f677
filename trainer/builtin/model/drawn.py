"""`python -m trainer.builtin.model.drawn FOLDER`: draw weights, in Hugging Face's format, for a `ModelConfig`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from trainer.builtin.model.building import build
from trainer.builtin.model.named import NamedModel
from trainer.contract import ModelConfig


def draw(config: ModelConfig, folder: Path) -> None:
    """Write new weights of a named model, without its adapters; equal ones each time."""
    torch.manual_seed(0)
    model = build(config, bare=True)
    assert isinstance(model, NamedModel), "the small decoder starts from no weights"
    model.network.save_pretrained(folder)


if __name__ == "__main__":
    draw(ModelConfig.model_validate_json(sys.stdin.read()), Path(sys.argv[1]))

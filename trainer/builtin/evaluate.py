"""`python -m trainer.builtin.evaluate`: verify every byte of a checkpoint folder, evaluate it, and export its model on
request.

The loss equals the one in the manifest on the same kind of device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from trainer.builtin.config import load_config
from trainer.contract import DATA_MOUNT, TOLERANCES, Manifest, TrainConfig
from trainer.errors import ConfigError, TrainerError


def main() -> int:
    options = _parse()
    try:
        config = load_config(options.config)
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(config.threads)
        if not any(Path("/dev").glob("nvidia[0-9]*")):
            os.environ["DS_ACCELERATOR"] = "cpu"
        print(json.dumps(evaluate(options.checkpoint, config, options.data)), flush=True)
        if options.export is not None:
            # As late as torch, which it imports.
            from trainer.builtin.checkpoint.convert.export import export

            export(options.checkpoint, config, options.data, options.export)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


def evaluate(checkpoint: Path, config: TrainConfig, data: Path) -> dict[str, Any]:
    """Verify the checkpoint, load its weights, and compute the held-out loss: on one device, or, where the model does
    not fit one, with its layers on all of the node's.

    Raises `ConfigError` when it does not fit those, `StorageError` when a shard is missing or damaged, `DataError` when
    the data is not the data of training.
    """
    # Torch reads its thread counts at its import: the caller has set them.
    import torch

    from trainer.builtin.checkpoint.convert.weights import load_weights, verified_manifest
    from trainer.builtin.data.held_out import open_held_out
    from trainer.builtin.evaluation import evaluation_loss
    from trainer.builtin.model import build
    from trainer.builtin.model.placing import local_devices, place

    manifest = verified_manifest(checkpoint, config.campaign, config.identity)
    of_model = config.model
    held_out = open_held_out(
        data, manifest.data_digest, of_model.vocabulary, of_model.context, or_fewer=bool(of_model.name)
    )
    torch.set_num_threads(config.threads)
    model = build(of_model, draw=False)
    try:
        model.load_state_dict(load_weights(checkpoint, manifest, of_model))
    except (RuntimeError, KeyError, TypeError) as error:
        detail = str(error)[:500]
        raise ConfigError("the weights are of another model", detail, "pass the checkpoint's train.json") from error
    if config.precision == "bfloat16":
        model = model.to(torch.bfloat16)
    device = place(model, *local_devices())
    loss = evaluation_loss(model, held_out, config, device)
    return {
        "step": manifest.step,
        "evaluation_loss": loss,
        "recorded": manifest.evaluation_loss,
        "equal": _equal(loss, manifest, config.precision),
        "device": device.type,
        "shards": len(manifest.shards),
    }


def _equal(loss: float, manifest: Manifest, precision: str) -> bool:
    """Return whether this process computes the recorded loss: bit for bit, except where several ranks computed each
    sequence together, which sum in another order."""
    if not manifest.layout.splits or manifest.evaluation_loss is None:
        return loss == manifest.evaluation_loss
    return math.isclose(loss, manifest.evaluation_loss, rel_tol=TOLERANCES[precision])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.builtin.evaluate", description="Evaluate a checkpoint folder."
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a step folder with its manifest")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(DATA_MOUNT))
    parser.add_argument("--export", type=Path, help="write the model for `transformers` into this folder, a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

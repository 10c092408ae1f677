"""The model's weights from a checkpoint folder, after every byte is verified; nothing is executed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.builtin.checkpoint.convert.universal import only_allowed
from trainer.builtin.checkpoint.deepspeed_engine import load_safely
from trainer.builtin.checkpoint.files import open_regular
from trainer.builtin.checkpoint.frozen_weights import joined
from trainer.builtin.checkpoint.search import unsound_shards
from trainer.builtin.model.tensor import join, rules_for
from trainer.contract import COMMITTED_NAME, Manifest, ModelConfig, attempt_folder, parse_manifest, step_of_folder
from trainer.errors import StorageError, unread

_STATES = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_OF_FIRST = re.compile(r"zero_pp_rank_0_mp_rank_\d+_model_states\.pt")
"""The first rank's names of tensors that are spread over all ranks."""


def verified_manifest(checkpoint: Path, campaign: str | None = None, identity: str = "") -> Manifest:
    """Return the manifest of a step folder. Raises `StorageError` with every shard that does not have its digest."""
    path = checkpoint / COMMITTED_NAME
    try:
        with open_regular(path) as file:
            manifest = parse_manifest(file.read(), step_of_folder(checkpoint.resolve().name), campaign, identity)
    except (OSError, ValueError) as error:
        refusal = StorageError("this is not a committed checkpoint", f"{path}: {error}", "name a step folder")
        raise unread(error, refusal) from error
    wrong = [f"{shard.file}: {detail}, wanted {shard.sha256}" for shard, detail in unsound_shards(manifest, checkpoint)]
    if wrong:
        raise StorageError("the checkpoint is not whole", "; ".join(wrong), "use another copy of it")
    return manifest


def load_weights(checkpoint: Path, manifest: Manifest, model: ModelConfig) -> dict[str, Tensor]:
    """Return whole tensors by the model's names, in the precision of the training.

    Under ZeRO 3 no file holds them: they are assembled from every rank's part of the master weights. With tensor
    parallelism each file holds one rank's parts: they are joined by the rules that dealt them out.
    """
    if manifest.zero_stage == 3:
        return _consolidate(checkpoint, manifest)
    files = dict[int, str]()
    for shard in manifest.shards:
        if match := _STATES.fullmatch(shard.file.rpartition("/")[2]):
            files[int(match[1])] = shard.file
    if sorted(files) != list(range(manifest.layout.tensor)):
        detail = f"{sorted(files.values())}, of {manifest.layout.tensor} ranks that share matrices"
        raise StorageError("the checkpoint does not hold every file of weights once", detail)
    parts = [dict(load_shard(checkpoint / files[rank])["module"]) for rank in sorted(files)]
    return parts[0] if len(parts) == 1 else join(parts, rules_for(model))


def _consolidate(checkpoint: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Assemble the weights with DeepSpeed's `zero_to_fp32`, restricted to the allow-list."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    folder = attempt_folder(manifest.attempt)
    first_file = next(shard.file for shard in manifest.shards if _OF_FIRST.fullmatch(shard.file.rpartition("/")[2]))
    state = load_shard(checkpoint / first_file)
    # Partitioned tensors have an empty placeholder with the precision of the training.
    kinds = {name: tensor.dtype for name, tensor in state["module"].items()}
    with only_allowed(), contextlib.redirect_stdout(io.StringIO()):
        weights = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), folder)
    return {name: weights[name].to(kind) for name, kind in kinds.items()}


def load_shard(path: Path) -> Any:
    """Return a shard's state, with the frozen weights that lie beside it."""
    with open_regular(path) as file:
        state = load_safely(file)
    return joined(state, path, load_shard)

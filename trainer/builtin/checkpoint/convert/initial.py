"""Weights to start from: a folder with a Hugging Face model, into a model that is not trained yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.builtin.model.named import PREFIX, NamedModel
from trainer.errors import ConfigError, StorageError

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"
_MEANING = (
    "model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling",
    "rope_parameters", "rms_norm_eps", "hidden_act", "sliding_window", "layer_types", "tie_word_embeddings",
)  # fmt: skip
"""Values that change what equal tensors compute."""
_COMPUTED = "rotary_emb.inv_freq"
"""Old files hold these frequencies, which follow from the configuration."""


def take_weights(
    model: NamedModel, folder: Path, whole: Callable[[Tensor], AbstractContextManager[Any]] = nullcontext, rank: int = 0
) -> int:
    """Copy the folder's weights into the model, in the parameters' type. Return the number of tensors.

    `whole` makes a parameter whole that is spread over ranks; only rank 0 reads such a one. Raises `ConfigError` if
    they are another model's, `StorageError` if a file cannot be read.
    """
    _refuse_another_meaning(model, folder)
    places = _places(folder)
    wanted = {name.removeprefix(PREFIX): parameter for name, parameter in model.named_parameters()}
    tied = set(model.network.all_tied_weights_keys)
    missing = sorted(set(wanted) - set(places))
    other = sorted(name for name in set(places) - set(wanted) - tied if not name.endswith(_COMPUTED))
    if missing or other:
        seen = f"{folder}: without {missing[:3]}, with {other[:3]}"
        raise ConfigError("the weights to start from are of another model", seen, "give the folder of this model")
    try:
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(safe_open(folder / name, framework="pt"))
                for name in sorted({places[name] for name in wanted})
            }
            for name, parameter in wanted.items():
                shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
                if (found := tuple(files[places[name]].get_slice(name).get_shape())) != shape:
                    seen = f"{name}: {list(found)} in {folder}, {list(shape)} in the model"
                    raise ConfigError("a weight has another shape", seen, "give the folder of this model")
            for name, parameter in wanted.items():
                with whole(parameter), torch.no_grad():
                    if rank == 0 or not hasattr(parameter, "ds_id"):
                        parameter.copy_(files[places[name]].get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise StorageError("the weights to start from cannot be read", f"{folder}: {error}") from error
    return len(wanted)


def _places(folder: Path) -> dict[str, str]:
    """Return tensor -> file."""
    try:
        if (folder / INDEX).exists():
            found: dict[str, str] = json.loads((folder / INDEX).read_bytes())["weight_map"]
            if beyond := [name for name in set(found.values()) if Path(name).name != name]:
                raise ConfigError("the index names files outside of its folder", beyond[0])
            return found
        with safe_open(folder / ALONE, framework="pt") as file:
            return dict.fromkeys(file.keys(), ALONE)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        cure = f"give a folder with {ALONE}, or several and {INDEX}; pickled weights are not loaded"
        raise ConfigError("there are no weights to start from", f"{folder}: {error!r}", cure) from error


def _refuse_another_meaning(model: NamedModel, folder: Path) -> None:
    try:
        theirs = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        seen = f"{folder / 'config.json'}: {error}"
        raise ConfigError("the weights to start from have no configuration", seen, "give a whole folder") from error
    from transformers import AutoConfig

    kind, ours = theirs.get("model_type"), model.network.config
    if kind == ours.model_type:
        values = {name: value for name, value in theirs.items() if name != "model_type"}
        described = AutoConfig.for_model(kind, **values)
        wrong = [name for name in _MEANING if getattr(described, name, None) != getattr(ours, name, None)]
    else:
        wrong = ["model_type"]
    if wrong:
        seen = ", ".join(f"{name}: {theirs.get(name)} there, {getattr(ours, name, None)} here" for name in wrong)
        raise ConfigError("the weights to start from mean another model", seen, "correct training.model or init_from")

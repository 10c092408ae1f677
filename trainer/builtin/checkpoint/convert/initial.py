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
from trainer.errors import ConfigError, storage_error, unread

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"
_MEANING = (
    "model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling",
    "rope_parameters", "rms_norm_eps", "hidden_act", "sliding_window", "layer_types", "tie_word_embeddings",
)  # fmt: skip
"""Values that change what equal tensors compute."""
_COMPUTED = "rotary_emb.inv_freq"
"""Old files hold these frequencies, which follow from the configuration."""


def take_weights(
    model: NamedModel, folder: Path, join: Callable[[Tensor], AbstractContextManager[Any]] = nullcontext, rank: int = 0
) -> int:
    """Copy the folder's weights into the model, in the parameters' type. Return the number of tensors.

    `join` makes a parameter whole that is spread over ranks; only rank 0 reads such a one. Raises `ConfigError` if
    they are another model's, `StorageError` if a file cannot be read.
    """
    _refuse_another_meaning(model, folder)
    places = _places(folder)
    parameters = {name.removeprefix(PREFIX): parameter for name, parameter in model.named_parameters()}
    tied_names = set(model.network.all_tied_weights_keys)
    missing = sorted(set(parameters) - set(places))
    surplus = sorted(name for name in set(places) - set(parameters) - tied_names if not name.endswith(_COMPUTED))
    if missing or surplus:
        detail = f"{folder}: without {missing[:3]}, with {surplus[:3]}"
        raise ConfigError("the weights to start from are of another model", detail, "give the folder of this model")
    try:
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(safe_open(folder / name, framework="pt"))
                for name in sorted({places[name] for name in parameters})
            }
            for name, parameter in parameters.items():
                shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
                if (actual_shape := tuple(files[places[name]].get_slice(name).get_shape())) != shape:
                    detail = f"{name}: {list(actual_shape)} in {folder}, {list(shape)} in the model"
                    raise ConfigError("a weight has another shape", detail, "give the folder of this model")
            for name, parameter in parameters.items():
                with join(parameter), torch.no_grad():
                    if rank == 0 or not hasattr(parameter, "ds_id"):
                        parameter.copy_(files[places[name]].get_tensor(name))
    except (OSError, SafetensorError) as error:
        detail = f"{folder}: {error}"
        raise storage_error(error, "the weights to start from cannot be read", detail) from error
    return len(parameters)


def _places(folder: Path) -> dict[str, str]:
    """Return tensor -> file."""
    try:
        if (folder / INDEX).exists():
            file_by_tensor: dict[str, str] = json.loads((folder / INDEX).read_bytes())["weight_map"]
            if outside_names := [name for name in set(file_by_tensor.values()) if Path(name).name != name]:
                raise ConfigError("the index names files outside of its folder", outside_names[0])
            return file_by_tensor
        with safe_open(folder / ALONE, framework="pt") as file:
            return dict.fromkeys(file.keys(), ALONE)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        cure = f"give a folder with {ALONE}, or several and {INDEX}; pickled weights are not loaded"
        detail = f"{getattr(error, 'filename', None) or folder}: {error!r}"
        refusal = ConfigError("there are no weights to start from", detail, cure)
        raise unread(error, refusal) from error


def _refuse_another_meaning(model: NamedModel, folder: Path) -> None:
    try:
        fields = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        detail = f"{folder / 'config.json'}: {error}"
        refusal = ConfigError("the weights to start from have no configuration", detail, "give a whole folder")
        raise unread(error, refusal) from error
    from transformers import AutoConfig

    kind, config = fields.get("model_type"), model.network.config
    if kind == config.model_type:
        values = {name: value for name, value in fields.items() if name != "model_type"}
        source_config = AutoConfig.for_model(kind, **values)
        wrong = [name for name in _MEANING if getattr(source_config, name, None) != getattr(config, name, None)]
    else:
        wrong = ["model_type"]
    if wrong:
        detail = ", ".join(f"{name}: {fields.get(name)} there, {getattr(config, name, None)} here" for name in wrong)
        raise ConfigError("the weights to start from mean another model", detail, "correct training.model or init_from")

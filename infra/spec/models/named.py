"""What a model's name stands for: a model of the catalogue, a folder with `config.json`, or a function.

The name is resolved once, when the spec is read. The record then holds all values, and nobody needs the folder again.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from trainer.contract import ModelConfig
from trainer.contract.model.shape import refuse_unknown, sliding_window

MOST_CONTEXT = 4096
"""Sequence length of a folder's model where none is given, if the model can."""
_OWN = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Return name -> `source`, `context` and `config` of each model."""
    text = files("infra.spec.models").joinpath("catalogue.yaml").read_text("utf-8")
    found: dict[str, dict[str, Any]] = yaml.load(text, Loader=_Loader)["models"]
    return found


def resolved(given: Any) -> Any:
    """Return `training.model` with all values of the model that it names.

    Raises `ValueError` for an unknown name, and for a configuration without a formula of its size.
    """
    if isinstance(given, ModelConfig):
        return given
    if isinstance(given, str):
        given = {"name": given}
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str) or not name:
        if isinstance(given, dict) and given.get("config"):
            raise ValueError("`config` belongs to a named model; give `name`")
        return given
    if ":" in name:
        return _function(given)
    return _configured(given, name)


def _function(given: dict[str, Any]) -> dict[str, Any]:
    module, _, function = given["name"].partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{given['name']} names no function; write package.module:function")
    if not given.get("parameters"):
        raise ValueError("the size of a function's model is not known here; give `parameters`, for plan and check")
    return given


def _configured(given: dict[str, Any], name: str) -> dict[str, Any]:
    own = given.get("config") or {}
    if not isinstance(own, dict):
        return given  # its type is refused where types are
    if given.get("parameters") is not None:
        raise ValueError("`parameters` are computed for this model; leave them out")
    # A record holds the whole configuration.
    base, context = ({}, None) if "model_type" in own else _base(name)
    if "rope_parameters" in base and (apart := [name for name in ("rope_theta", "rope_scaling") if name in own]):
        raise ValueError(f"the model has rope_parameters, beside which {apart[0]} is not read; write rope_parameters")
    config = {**base, **own}
    if isinstance(given.get("vocabulary"), int):
        config["vocab_size"] = given["vocabulary"]
    refuse_unknown(config)
    if isinstance(kinds := config.get("layer_types"), list):
        if len(kinds) < config["num_hidden_layers"]:
            raise ValueError(f"{len(kinds)} layer_types for {config['num_hidden_layers']} layers; write one for each")
        config["layer_types"] = kinds[: config["num_hidden_layers"]]
    for field, key in _OWN.items():
        if given.get(field) not in (None, config[key]):
            raise ValueError(f"`{field}` is the named model's, {config[key]}; to change it, write config.{key}")
    longest = config["max_position_embeddings"]
    if context is None:
        context = min(longest, MOST_CONTEXT)
    whole = {
        **given, "config": config, "vocabulary": config["vocab_size"], "context": given.get("context", context),
        **{field: config[key] for field, key in _OWN.items()},
    }  # fmt: skip
    _refuse_misfit(whole, config)
    return whole


def _refuse_misfit(model: dict[str, Any], config: dict[str, Any]) -> None:
    context, longest = model["context"], config["max_position_embeddings"]
    if isinstance(context, int) and context > longest:
        raise ValueError(f"context {context} is longer than the model's {longest}; write {longest} or less")
    bounded = model.get("document_attention") or model.get("reset_positions")
    if bounded and (window := sliding_window(config)) is not None and window < context:
        raise ValueError(
            f"documents are not kept apart in a sliding window of {window}; write a context of {window} or less, or "
            "config.sliding_window: null"
        )


def _base(name: str) -> tuple[dict[str, Any], int | None]:
    """Return the configuration of a name, and the context to train with if one is known."""
    if (known := catalogue().get(name)) is not None:
        return known["config"], known["context"]
    path = Path(name).expanduser() / "config.json"
    if "/" not in name and not path.exists():
        near = "".join(f"did you mean `{one}`? " for one in difflib.get_close_matches(name, catalogue(), n=1))
        there = ", ".join(catalogue())
        raise ValueError(f"no model has this name; {near}there are {there}, a folder, or package.module:function")
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a folder with Hugging Face's config.json") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}; name a folder with Hugging Face's config.json") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no object; name a folder with Hugging Face's config.json")
    return found, None

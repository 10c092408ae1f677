"""Look-up of a model by its name: a model of the catalogue, a folder with `config.json`, or a function.

The name is resolved once, when the spec is read. The record then holds all values, and nobody needs the folder again.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from typing import Any

from infra.spec.models.hub import named_folder, way_to
from infra.tables import table
from trainer.contract import ModelConfig
from trainer.contract.model.shape import refuse_unknown, sliding_window

MOST_CONTEXT = 4096
"""Sequence length of a folder's model where none is given, if the model can."""
_OWN = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Return name -> `source`, `context` and `config` of each model."""
    return dict(table("infra.spec.models", "catalogue")["models"])


def resolve_model(section: Any) -> Any:
    """Return `training.model` with all values of the model that it names.

    Raises `ValueError` for an unknown name, and for a configuration without a formula of its size.
    """
    if isinstance(section, ModelConfig):
        return section
    if isinstance(section, str):
        section = {"name": section}
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(name, str) or not name:
        if isinstance(section, dict) and section.get("config"):
            raise ValueError("`config` belongs to a named model; give `name`")
        return section
    if ":" in name and not name.startswith("hf:"):
        return _function(section)
    return _custom(section, name)


def _function(section: dict[str, Any]) -> dict[str, Any]:
    module, _, function = section["name"].partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{section['name']} names no function; write package.module:function")
    if not section.get("parameters"):
        raise ValueError("the size of a function's model is not known here; give `parameters`, for plan and check")
    return section


def _custom(section: dict[str, Any], name: str) -> dict[str, Any]:
    custom_config = section.get("config") or {}
    if not isinstance(custom_config, dict):
        return section  # its type is refused where types are
    if section.get("parameters") is not None:
        raise ValueError("`parameters` are computed for this model; leave them out")
    # A record holds the whole configuration.
    base, context = ({}, None) if "model_type" in custom_config else _base(name)
    if "rope_parameters" in base and (
        apart := [name for name in ("rope_theta", "rope_scaling") if name in custom_config]
    ):
        raise ValueError(f"the model has rope_parameters, beside which {apart[0]} is not read; write rope_parameters")
    config = {**base, **custom_config}
    if isinstance(section.get("vocabulary"), int):
        config["vocab_size"] = section["vocabulary"]
    refuse_unknown(config)
    if isinstance(kinds := config.get("layer_types"), list):
        if len(kinds) < config["num_hidden_layers"]:
            raise ValueError(f"{len(kinds)} layer_types for {config['num_hidden_layers']} layers; write one for each")
        config["layer_types"] = kinds[: config["num_hidden_layers"]]
    for field, key in _OWN.items():
        if section.get(field) not in (None, config[key]):
            raise ValueError(f"`{field}` is the named model's, {config[key]}; to change it, write config.{key}")
    longest = config["max_position_embeddings"]
    if context is None:
        context = min(longest, MOST_CONTEXT)
    result = {
        **section, "config": config, "vocabulary": config["vocab_size"], "context": section.get("context", context),
        **{field: config[key] for field, key in _OWN.items()},
    }  # fmt: skip
    _refuse_misfit(result, config)
    return result


def _refuse_misfit(model: dict[str, Any], config: dict[str, Any]) -> None:
    context, longest = model["context"], config["max_position_embeddings"]
    if isinstance(context, int) and context > longest:
        raise ValueError(f"context {context} is longer than the model's {longest}; write {longest} or less")
    has_document_bounds = model.get("document_attention") or model.get("reset_positions")
    if has_document_bounds and (window := sliding_window(config)) is not None and window < context:
        raise ValueError(
            f"documents are not kept apart in a sliding window of {window}; write a context of {window} or less, or "
            "config.sliding_window: null"
        )


def _base(name: str) -> tuple[dict[str, Any], int | None]:
    """Return the configuration of a name, and the context to train with if one is known."""
    if (entry := catalogue().get(name)) is not None:
        return entry["config"], entry["context"]
    path = named_folder(name) / "config.json"
    if "/" not in name and not path.exists():
        suggestion = "".join(f"did you mean `{match}`? " for match in difflib.get_close_matches(name, catalogue(), n=1))
        names = ", ".join(catalogue())
        raise ValueError(f"no model has this name; {suggestion}there are {names}, a folder, or package.module:function")
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        cure = way_to(name, "name a folder with Hugging Face's config.json")
        raise ValueError(f"{path}: {error.strerror}; {cure}") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}; name a folder with Hugging Face's config.json") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no object; name a folder with Hugging Face's config.json")
    return config, None

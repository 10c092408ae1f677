"""The spec's section `data` as a recipe for the trainer's tool, and the cache folder of the prepared data."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

from infra.folders import cache_root
from infra.spec.campaign import Spec
from infra.spec.models.hub import named_folder
from trainer.contract.data import Chat, Parameters
from trainer.contract.recipe import Recipe, Source

STANDARD_LIBRARY = "python:stdlib"


def recipe_of(spec: Spec) -> Recipe:
    """Return the recipe. Weights are not part of it: they change the order, not the data."""
    training, data = spec.built_in
    sources = tuple(
        Source(
            name=part.name,
            location=part.source if part.source.startswith("s3://") else str(source_folder(part.source)),
            pattern=part.pattern,
            licence=part.licence,
            origin=part.origin,
        )
        for part in data.parts
    )
    parameters = Parameters(
        held_out=data.held_out,
        seed=data.seed,
        max_files=data.max_files,
        format=data.format,
        chat=Chat(**data.chat.model_dump(), context=training.model.context) if data.chat else None,
        text_field=data.text_field,
        deduplicate=data.deduplicate,
        min_characters=data.min_characters,
        max_characters=data.max_characters,
        max_repeated_lines=data.max_repeated_lines,
        min_letters_share=data.min_letters_share,
    )
    return Recipe(
        sources=sources,
        parameters=parameters,
        vocabulary=training.model.vocabulary,
        tokenizer=data.tokenizer,
        end_of_document=data.end_of_document,
        beginning_of_document=data.beginning_of_document,
    )


def folder_of(spec: Spec) -> Path:
    """Return the cache folder of a spec's prepared data."""
    return cache_root() / "data" / hashlib.sha256(recipe_of(spec).model_dump_json().encode()).hexdigest()[:32]


def source_folder(source: str) -> Path:
    """Return the folder or file that a source names."""
    if source == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    try:
        return named_folder(source)
    except RuntimeError:  # `~nobody`: there is no such user, hence no such folder
        return Path(source)

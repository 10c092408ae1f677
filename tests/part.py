"""A model of which the code under test reads a part."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def part(model: type[Model], **fields: Any) -> Model:
    """Return a model with these fields and its defaults; reading another field raises `AttributeError`."""
    unknown = fields.keys() - model.model_fields.keys()
    assert not unknown, f"{model.__name__} has no {sorted(unknown)}"
    make: Any = model.model_construct
    return make(**fields)

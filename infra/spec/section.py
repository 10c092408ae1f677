"""The base of all sections of the spec: frozen, without unknown fields or infinite numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, get_origin

from pydantic import BaseModel, TypeAdapter

from trainer.contract.frozen import Frozen

Model = TypeVar("Model", bound=BaseModel)


class Section(Frozen, allow_inf_nan=False):
    """A part of the spec."""


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, also if it may be None."""
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def sound_part(model: type[Model], raw: dict[str, Any], broken: Iterable[tuple[str, ...]]) -> Model:
    """Return a section without its `broken` fields (paths below it); reading one of them raises AttributeError."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner_paths = [path[1:] for path in broken if path[:1] == (name,)]
        if inner_paths:
            inner, value = model_of(field.annotation), raw.get(name)
            is_mapping = get_origin(field.annotation) is dict  # sections under names of the user's own
            if inner is not None and isinstance(value, dict) and () not in inner_paths and not is_mapping:
                values[name] = sound_part(inner, value, inner_paths)
        elif name in raw:
            form: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            values[name] = TypeAdapter(form).validate_python(raw[name])
        elif not field.is_required():
            values[name] = field.get_default(call_default_factory=True)
    section = model.model_construct(**values)
    for name in set(model.model_fields) - set(values):
        section.__dict__.pop(name, None)  # model_construct puts the default there
    return section

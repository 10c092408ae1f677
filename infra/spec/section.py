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
    return next((one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None)


def sound_part(model: type[Model], raw: dict[str, Any], broken: Iterable[tuple[str, ...]]) -> Model:
    """Return a section without its `broken` fields (paths below it); reading one of them raises AttributeError."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        below = [path[1:] for path in broken if path[:1] == (name,)]
        if below:
            inner, given = model_of(field.annotation), raw.get(name)
            named = get_origin(field.annotation) is dict  # sections under names of the user's own
            if inner is not None and isinstance(given, dict) and () not in below and not named:
                values[name] = sound_part(inner, given, below)
        elif name in raw:
            form: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            values[name] = TypeAdapter(form).validate_python(raw[name])
        elif not field.is_required():
            values[name] = field.get_default(call_default_factory=True)
    made = model.model_construct(**values)
    for name in set(model.model_fields) - set(values):
        made.__dict__.pop(name, None)  # model_construct puts the default there
    return made

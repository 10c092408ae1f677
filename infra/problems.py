"""What is wrong with the shape of a YAML file, field by field, each with its line and a cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError


class Problem(BaseModel):
    """One thing wrong with the shape of a spec file."""

    model_config = ConfigDict(frozen=True)

    field: str
    line: int | None
    message: str
    seen: str
    cure: str


CURES = {
    "string_type": "write a text, in quotes where it looks like a number",
    "string_too_short": "write at least {min_length} characters",
    "int_parsing": "write a whole number",
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "float_parsing": "write a number",
    "float_type": "write a number",
    "decimal_parsing": "write an amount such as 60 or 59.90",
    "decimal_type": "write an amount such as 60 or 59.90",
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "greater_than": "write more than {gt}",
    "greater_than_equal": "write {ge} or more",
    "less_than": "write less than {lt}",
    "less_than_equal": "write {le} or less",
    "enum": "write {expected}",
    "literal_error": "write {expected}",
    "time_delta_parsing": "write a duration such as 90s, 10m, 4h or 7d",
    "time_delta_type": "write a duration such as 90s, 10m, 4h or 7d",
    "model_type": "write a section: its fields, indented, one a line",
    "tuple_type": "write a list: one item a line, each after a dash",
}
"""Cure by pydantic's type of error; names in braces come from the error's context."""


def lines_of(node: yaml.Node | None, prefix: str = "") -> dict[str, int]:
    """1-based line of each dotted field path of a composed document."""
    found: dict[str, int] = {}
    for path, line, child in _children(node, prefix):
        found[path] = line
        found |= lines_of(child, f"{path}.")
    return found


def nearest_line(lines: dict[str, int], field: str) -> int | None:
    """Line of a field, or of the nearest section above it that the file has."""
    while field:
        if field in lines:
            return lines[field]
        field = field.rpartition(".")[0]
    return None


def duplicates(node: yaml.Node | None, prefix: str = "") -> tuple[Problem, ...]:
    """Fields written twice in one section: YAML would silently take the last."""
    first: dict[str, int] = {}
    found: list[Problem] = []
    for path, line, child in _children(node, prefix):
        if path in first:
            found.append(
                Problem(
                    field=path,
                    line=line,
                    message="field is written twice",
                    seen=f"lines {first[path]} and {line}",
                    cure="keep one of them",
                )
            )
        first.setdefault(path, line)
        found.extend(duplicates(child, f"{path}."))
    return tuple(found)


def problems_of(error: ValidationError, lines: dict[str, int], model: type[BaseModel]) -> tuple[Problem, ...]:
    """Every problem of a failed validation, in the order of the file."""
    found = [_problem(item, lines, model) for item in error.errors()]
    return tuple(sorted(found, key=lambda problem: problem.line or 0))


def _children(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}{index}", value.start_mark.line + 1, value


def _problem(item: Any, lines: dict[str, int], model: type[BaseModel]) -> Problem:
    loc, kind, given = item["loc"], item["type"], item.get("input")
    field = ".".join(str(part) for part in loc) or "(spec)"
    message, seen = (
        item["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String "),
        repr(given),
    )
    cure = CURES.get(kind, "see README, section 'The spec by example'").format_map(_Lenient(item.get("ctx", {})))
    if kind == "extra_forbidden":
        names = _fields_at(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), names, n=1)
        message, seen = "unknown field", f"{loc[-1]}: {given!r}"
        cure = f"did you mean `{near[0]}`?" if near else f"fields here: {', '.join(names)}"
    elif kind == "missing":
        message, seen = "required field is missing", "nothing"
        form = _described(model, loc)
        cure = f"add `{loc[-1]}:`" + (f" ({form})" if form else "")
    elif kind == "string_pattern_mismatch":
        cure = f"write {_described(model, loc) or item['ctx']['pattern']}"
    elif kind == "value_error" and isinstance(given, dict):
        seen, cure = "this section", message
    elif kind in ("enum", "literal_error") and isinstance(given, str):
        names = [part.strip(" '") for part in str(item["ctx"]["expected"]).replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(given, names, n=1)
        cure = f"did you mean `{near[0]}`? " + cure if near else cure
    return Problem(field=field, line=nearest_line(lines, field), message=message, seen=_short(seen), cure=cure)


class _Lenient(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"({key})"


def _short(text: str, longest: int = 100) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _section_at(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel]:
    """The innermost section on the way to a location."""
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        options = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), model)
    return model


def _described(model: type[BaseModel], loc: tuple[Any, ...]) -> str | None:
    """The form of a field, where its model tells."""
    field = _section_at(model, loc[:-1]).model_fields.get(str(loc[-1])) if loc else None
    return field.description if field else None


def _fields_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    return list(_section_at(model, loc).model_fields)

"""Errors in the shape of a YAML file, each with its field, line and cure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from infra.spec.section import model_of
from infra.tables import table
from trainer.contract.frozen import Frozen

_LOGIN = re.compile(r"//[^/@\s]+@")
_NEAR = 0.75
"""Likeness from which a field counts as misspelt: `regoin` for `region`, but not `range` for `cidr`."""
LEAST, MOST = 1e-12, 1e12
"""Range of a spec's numbers: from a learning rate to a seed or a budget, with a margin on both sides."""
LARGE = {"training.compute": 1e30}
"""Fields with larger numbers."""


class Problem(Frozen, extra="ignore"):
    """One error in the shape of a spec file."""

    field: str
    line: int | None
    message: str
    seen: str
    cure: str


CURES: dict[str, str] = table("infra.spec", "problems")


def lines_of(node: yaml.Node | None, prefix: str = "") -> dict[str, int]:
    """Return dotted field path -> 1-based line of a composed document."""
    return {path: line for path, line, _ in _nodes_below(node, prefix)} if node is not None else {}


def nearest_line(lines: dict[str, int], field: str) -> int | None:
    """Return the line of a field, or of the nearest section above it that the file has."""
    while field:
        if field in lines:
            return lines[field]
        field = field.rpartition(".")[0]
    return None


def duplicates(node: yaml.Node | None, prefix: str = "") -> tuple[Problem, ...]:
    """Return fields that are written twice in one section: YAML would silently use the last."""
    first_lines: dict[str, int] = {}
    problems: list[Problem] = []
    for path, line, child in _children(node, prefix):
        if path in first_lines:
            problems.append(
                Problem(
                    field=path,
                    line=line,
                    message="field is written twice",
                    seen=f"lines {first_lines[path]} and {line}",
                    cure="keep one of them",
                )
            )
        first_lines.setdefault(path, line)
        problems.extend(duplicates(child, f"{path}."))
    return tuple(problems)


def problems_of(error: ValidationError, root: yaml.Node | None, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Return every problem of a failed validation in the order of the file."""
    lines, texts = lines_of(root), _texts(root)
    problems = [_problem(item, lines, texts, model) for item in error.errors(include_url=False)]
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def misread(root: yaml.Node | None, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Return each `true` or `false` in a field of another type: pydantic would take it for 1 or 0."""
    problems: list[Problem] = []
    for path, line, node in _nodes_below(root, ""):
        if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:bool":
            continue
        loc = tuple(path.split("."))
        field = _section_at(model, loc[:-1]).model_fields.get(loc[-1])
        if field is not None and bool not in (field.annotation, *getattr(field.annotation, "__args__", ())):
            cure = "write a value of this field; in quotes if you mean the text"
            message = "is true or false, which this field cannot be"
            problems.append(Problem(field=path, line=line, message=message, seen=node.value, cure=cure))
    return tuple(problems)


def out_of_range(value: BaseModel, root: yaml.Node | None) -> tuple[Problem, ...]:
    """Return numbers outside the range of any field: arithmetic with them would overflow."""
    lines = lines_of(root)
    return tuple(
        Problem(
            field=field,
            line=nearest_line(lines, field),
            message="is out of range",
            seen=_short(str(number)),
            cure=f"write a number between {LEAST:g} and {MOST:g}"
            if isinstance(number, float | Decimal)
            else f"write at most {MOST:g}",
        )
        for field, number in _numbers(value.model_dump(), "")
        if not (number == 0 or LEAST <= abs(number) <= LARGE.get(field, MOST))
    )


def _numbers(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _numbers(inner, f"{path}.{index}")
    elif isinstance(value, timedelta):
        yield path, value.total_seconds()
    elif isinstance(value, int | float | Decimal):
        yield path, value


def _nodes_below(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int, yaml.Node]]:
    if node is not None:
        for path, line, child in _children(node, prefix):
            yield path, line, child
            yield from _nodes_below(child, f"{path}.")


def _texts(root: yaml.Node | None) -> dict[str, str]:
    """Return path -> each scalar as the file writes it: `1.30`, not 1.3."""
    return {path: node.value for path, _, node in _nodes_below(root, "") if isinstance(node, yaml.ScalarNode)}


def _children(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{_key(key)}", key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}{index}", value.start_mark.line + 1, value


def _key(node: yaml.Node) -> str:
    return _short(str(node.value)) if isinstance(node, yaml.ScalarNode) else "(no text)"


def _problem(item: Any, lines: dict[str, int], texts: dict[str, str], model: type[BaseModel]) -> Problem:
    loc, kind, value = item["loc"], item["type"], item.get("input")
    field = ".".join(str(part) for part in loc) or "(spec)"
    message, detail = (
        item["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String "),
        texts.get(field) or _short_form(value),
    )
    cure = CURES.get(kind, "see docs/spec.md").format_map(_Lenient(item.get("ctx", {})))
    if kind == "model_type" and "secrets" in loc:
        detail, cure = (
            "not shown",
            "name where the value lies, such as {secret: team/token}; no value belongs in a spec",
        )
    if kind == "extra_forbidden":
        names = list(_section_at(model, loc[:-1]).model_fields)
        nearest = difflib.get_close_matches(str(loc[-1]), names, n=1, cutoff=_NEAR)
        message, detail = "unknown field", _short(str(loc[-1])) + f": {_short_form(value)}"
        cure = f"did you mean `{nearest[0]}`?" if nearest else f"fields here: {', '.join(names)}"
    elif kind == "missing":
        message, detail = "required field is missing", "nothing"
        form = _description(model, loc)
        cure = f"add `{loc[-1]}:`" + (f" ({form})" if form else "")
    elif kind == "string_pattern_mismatch":
        cure = f"write {_description(model, loc) or item['ctx']['pattern']}"
    elif kind == "value_error" and isinstance(value, dict):
        detail, cure = "this section", message
    elif kind == "value_error" and "; " in message:
        message, _, cure = message.partition("; ")
    elif kind in ("enum", "literal_error") and isinstance(value, str):
        names = [part.strip(" '") for part in str(item["ctx"]["expected"]).replace(" or ", ",").split(",")]
        nearest = difflib.get_close_matches(value, names, n=1)
        cure = f"did you mean `{nearest[0]}`? " + cure if nearest else cure
    return Problem(field=field, line=nearest_line(lines, field), message=message, seen=_short(detail), cure=cure)


class _Lenient(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"({key})"


def _short_form(value: object) -> str:
    """Return a short form of a value; a large one is never written out, since it would be shortened anyway."""
    if isinstance(value, dict | list | tuple):
        return f"a section of {len(value)} fields" if isinstance(value, dict) else f"a list of {len(value)}"
    return repr(value)


def _short(text: str, longest: int = 100) -> str:
    text = _LOGIN.sub("//...@", text)  # a log keeps what is printed
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _section_at(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel]:
    """Return the innermost section on the path to a location."""
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        model = model_of(field.annotation) or model
    return model


def _description(model: type[BaseModel], loc: tuple[Any, ...]) -> str | None:
    """Return the `description` of a field, if its model has one."""
    field = _section_at(model, loc[:-1]).model_fields.get(str(loc[-1])) if loc else None
    return field.description if field else None

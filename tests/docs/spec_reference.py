"""The page docs/spec.md, made from the spec's models: each field, its type and unit, its default, its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.cli.prepare.check import descriptions, model_in
from infra.spec import duration
from infra.spec.campaign import Spec
from tests.docs.tables import item
from tests.root import ROOT

EXAMPLE = ROOT / "infra/campaigns/rehearsal.yaml"
EXAMPLES = Path(__file__).with_name("examples.yaml")
"""Section -> its fields with values, in a spec on AWS."""

UNITS = {
    "usd_per_hour": "USD per hour", "usd": "USD", "gib": "GiB", "hours": "hours", "gb_s": "GB/s",
    "mbs_per_tib": "MB/s per TiB", "seconds_estimate": "seconds", "s": "seconds", "share": "from 0 to 1",
    "iops": "IOPS", "nodes": "nodes", "steps": "steps", "characters": "characters",
}  # fmt: skip
"""End of a field's name -> its unit."""

HEAD = """\
# The spec

<!-- Made by `make docs` from infra/spec and trainer/contract. Do not edit it by hand. -->

A spec is one YAML file that describes one campaign. `bivouac check` says everything that is wrong with it at once,
each with line, value and cure; it needs no network. `bivouac plan` says what the campaign will cost.

- The file is read as YAML 1.2: `no` is a text, `0100` is the number 100. It is at most 64 KiB long.
- An unknown field is refused, with the nearest name that exists.
- A duration is a text with its units: `90s`, `10m`, `1h30m`, `7d`. A bare number is refused.
- A size and an amount carry their unit in the field's name: `capacity_gib`, `budget_usd`.
- A field with the default *none* may be left out; its meaning says what follows then. In brackets stand a field's type,
  its unit and its default.

The models are `infra/spec/campaign.py`, `infra/spec/data.py`, `infra/spec/sections.py` and
`trainer/contract/training.py`.
"""


def page() -> str:
    """Return the whole page."""
    sections = list(_sections(Spec, ""))
    lines = [HEAD, "## Sections", "", f"- [{_title('')}](#{_anchor('')})"]
    lines += [f"- [`{path}`](#{_anchor(path)})" for path, _ in sections[1:]]
    lines += ["", "## An example", "", f"The file [{EXAMPLE.relative_to(ROOT)}](../{EXAMPLE.relative_to(ROOT)}),"]
    lines += ["which `make rehearsal` runs:", "", "```yaml", EXAMPLE.read_text().rstrip(), "```", ""]
    section_examples = examples()
    for path, model in sections:
        lines += [f"## {_title(path)}", ""]
        if docstring := inspect.cleandoc(model.__doc__ or ""):
            lines += [docstring, ""]
        for name, form, default, meaning in _rows(path, model):
            lines += item(f"{name} ({form}; {default}): {meaning}")
        lines.append("")
        if path in section_examples:
            lines += ["Example:", "", "```yaml", *_yaml_lines(path, section_examples[path]), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def examples() -> dict[str, Any]:
    """Return the example of each section that has one."""
    content: dict[str, Any] = yaml.safe_load(EXAMPLES.read_text())
    return content


def sections() -> dict[str, type[BaseModel]]:
    """Return the dotted path of each section -> its model; the spec itself has the path ''."""
    return dict(_sections(Spec, ""))


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, info in model.model_fields.items():
        if inner := model_in(info.annotation):
            yield from _sections(inner, f"{path}.{name}".lstrip("."))


def _title(path: str) -> str:
    return path or "The campaign itself"


def _anchor(path: str) -> str:
    return _title(path).lower().replace(".", "").replace(" ", "-")


def _rows(path: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    meanings = descriptions(model)
    for name, info in model.model_fields.items():
        field_path = f"{path}.{name}".lstrip(".")
        yield f"`{name}`", _form(name, field_path, info), _default(info), meanings.get(name, "")


def _form(name: str, path: str, info: FieldInfo) -> str:
    words = _type(info.annotation, path, info.metadata)
    unit = next((unit for end, unit in UNITS.items() if name == end or name.endswith(f"_{end}")), None)
    if unit and "number" in words:
        words = words.replace("number", f"number, {unit}", 1) if "or" in words else f"{words}, {unit}"
    return words


def _type(annotation: Any, path: str, metadata: Any = ()) -> str:
    """Return a type in words, with its bounds."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        flat = [part_limit for limit in parts[1:] for part_limit in (*getattr(limit, "metadata", ()), limit)]
        return _type(parts[0], path, [*flat, *metadata])
    if origin in (Union, UnionType):
        return " or ".join(_type(part, path, metadata) for part in parts if part is not type(None))
    if origin is Literal:
        return _choice(parts)
    if origin is tuple:
        minimum = " with at least one" if any(getattr(limit, "min_length", 0) for limit in metadata) else ""
        return f"list{minimum}: {_type(parts[0], path)}"
    if origin is dict:
        section_model = model_in(parts[1])
        return f"name: {f'[`{path}`](#{_anchor(path)})' if section_model else _type(parts[1], path)}"
    if inner := model_in(annotation):
        return f"section [`{path}`](#{_anchor(path)})" if inner is annotation else path
    if issubclass(annotation, Enum):
        return _choice(tuple(limit.value for limit in annotation))
    names = {
        bool: "`true` or `false`", int: "whole number", float: "number", Decimal: "number", timedelta: "duration",
        datetime: "date and time with a zone", Path: "path", str: "text",
    }  # fmt: skip
    name = names.get(annotation, "date and time with a zone")
    bounds = [] if annotation is timedelta else [bound for limit in metadata if (bound := _bound(limit))]
    return ", ".join([name, *dict.fromkeys(bounds)])


def _bound(limit: Any) -> str:
    for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
        if (value := getattr(limit, attribute, None)) is not None:
            return f"{sign} {value}"
    if pattern := getattr(limit, "pattern", None):
        return f"as `{pattern}`"
    if length := getattr(limit, "min_length", None):
        return f"at least {length} character{'s' if length > 1 else ''}"
    return ""


def _choice(values: tuple[Any, ...]) -> str:
    words = [f"`{value}`" for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "default none"
    if isinstance(value, BaseModel):
        return "default: its defaults"
    if isinstance(value, timedelta):
        return f"default `{duration.text(value)}`"
    if isinstance(value, bool):
        return f"default `{str(value).lower()}`"
    if value in ((), "", {}):
        return "default empty"
    return f"default `{getattr(value, 'value', value)}`"


def _yaml_lines(path: str, fields: Any) -> list[str]:
    """Return YAML lines of a section with the sections around it."""
    inner: Any = fields
    for name in reversed(path.split(".")):
        inner = {name: inner}
    return str(yaml.safe_dump(inner, sort_keys=False, width=110)).rstrip().splitlines()

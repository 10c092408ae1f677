"""`bivouac check SPEC`: all errors of a spec at once. No network, unless `--online`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.options import site_steps, stderr
from infra.cli.prepare.checked import checked, with_memory
from infra.cli.rendering import print_findings
from infra.console.plain_console import say
from infra.errors import UserError
from infra.plan.checks import Finding, failed
from infra.spec.campaign import Spec


def check_command(path: Path, json: bool, console: Console, online: bool = False) -> int:
    """Check a spec. Exit code 0, or 64 when nothing may be started. `json`: one object on stdout. `online`: ask AWS,
    or the existing cluster, too if the spec alone has no error."""
    result = with_memory(checked(path, fetches=(lambda text: say(stderr, text)) if online else None), stderr)
    if online and result.spec is not None and not failed(result.findings):
        from infra import target
        from infra.cli.prepare.checked import with_answers

        target.enter_for(result.spec, site_steps(stderr), anywhere=True)
        result = with_answers(result, stderr)
    show(path, result.findings, json, console)
    return UserError.exit_code if failed(result.findings) else 0


def schema_command(console: Console) -> int:
    """Print the JSON schema of a spec."""
    write_json(console, schema())
    return 0


def show(path: Path, findings: tuple[Finding, ...], json: bool, console: Console) -> None:
    if json:
        rows = [finding.model_dump(mode="json") for finding in findings]
        write_json(console, {"spec": str(path), "ok": not failed(findings), "findings": rows})
    else:
        print_findings(console, path, findings)


_DURATION = {"type": "string", "pattern": r"^(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+(\.\d+)?s)?$"}


def schema() -> dict[str, Any]:
    """Return the JSON schema of the spec, for editors; the meaning of a field is the docstring below it."""
    document = Spec.model_json_schema()
    sections = {model.__name__: model for model in _models(Spec)}
    for name, part in {**document.get("$defs", {}), Spec.__name__: document}.items():
        if name not in sections:
            continue
        meanings = descriptions(sections[name])
        for field, form in part["properties"].items():
            form.pop("title", None)
            if field in meanings:
                form["description"] = meanings[field]
            _write_durations_as_people_do(form)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> the docstring below it, in the class or its bases, and its `Field(description=...)`."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, next_node in zip(body.body, body.body[1:], strict=False):
            match field, next_node:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = inspect.cleandoc(text)
    for name, info in model.model_fields.items():
        if info.description and info.description != texts.get(name):
            texts[name] = f"{texts.get(name, '')} Form: {info.description}.".strip()
    return texts


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, alone or in a list."""
    return next(iter(_models_in(annotation)), None)


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        for inner in _models_in(info.annotation):
            yield from _models(inner)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _write_durations_as_people_do(form: dict[str, Any]) -> None:
    for option in (form, *form.get("anyOf", ())):
        if option.get("format") == "duration":
            for key in ("format", "gt", "default"):
                option.pop(key, None)
            option.update(_DURATION)

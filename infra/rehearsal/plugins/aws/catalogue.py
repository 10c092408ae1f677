"""All resource types that a program may use in a rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from infra.rehearsal.plugins.aws import accounts, eks, network, storage
from infra.rehearsal.plugins.aws.resource import ResourceType
from infra.rehearsal.plugins.aws.table import ApiStep, FieldCase, Naming, Query, States, Tagging, TypeRow

_FOLDER = Path(__file__).with_name("types")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TUPLES = ("send", "if_changed", "ready", "failed", "stuck", "gone", "identity", "volatile", "keys")


def rows() -> Iterator[TypeRow]:
    for path in sorted(_FOLDER.glob("*.yaml")):
        file = yaml.load(path.read_text(), _Loader)
        for token, entry in file["types"].items():
            yield _row(token, {**file["all"], **entry})


def _row(token: str, entry: Mapping[str, Any]) -> TypeRow:
    values = _tuples(entry)
    readers: dict[str, Callable[[Any], Any]] = {
        "create": _step,
        "delete": lambda steps: tuple(_step(step) for step in steps),
        "update": lambda steps: tuple(_step(step) for step in steps),
        "find": _look,
        "look_ups": lambda looks: {name: _look(look) for name, look in looks.items()},
        "status": lambda status: States(**_tuples(status)),
        "tagging": _tagging,
        "naming": lambda naming: Naming(**naming),
        "case": FieldCase,
        "patience": lambda minutes: timedelta(minutes=minutes),
    }
    complete: dict[str, Any] = {key: readers[key](value) if key in readers else value for key, value in values.items()}
    return TypeRow(token=token, **complete)


def _step(entry: Mapping[str, Any]) -> ApiStep:
    values = _with_arguments(entry)
    retry = values.pop("retry", {})
    return ApiStep(retry=retry if isinstance(retry, dict) else dict.fromkeys(retry, ""), **values)


def _look(entry: Mapping[str, Any]) -> Query:
    return Query(**_with_arguments(entry))


def _tagging(entry: Mapping[str, Any]) -> Tagging:
    values = _tuples(entry)
    if isinstance(values.get("read"), dict):
        values["read"] = _look(values["read"])
    return Tagging(**values)


def _with_arguments(entry: Mapping[str, Any]) -> dict[str, Any]:
    values = _tuples(entry)
    return {"arguments": values.pop("with", {}), **values}


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if key in _TUPLES and value is not None else value for key, value in entry.items()}


_CLASSES = {**network.CLASSES, **accounts.CLASSES, **storage.CLASSES, **eks.CLASSES}

RESOURCES: dict[str, ResourceType] = {row.token: _CLASSES.get(row.token, ResourceType)(row) for row in rows()}

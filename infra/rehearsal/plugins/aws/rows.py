"""Read the table of resource types: one YAML file per service below `types/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from infra.rehearsal.plugins.aws.table import Case, Look, Naming, Row, Status, Step, Tagging

_FOLDER = Path(__file__).with_name("types")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TUPLES = ("send", "if_changed", "ready", "failed", "stuck", "gone", "identity", "volatile", "keys")


def rows() -> Iterator[Row]:
    for path in sorted(_FOLDER.glob("*.yaml")):
        file = yaml.load(path.read_text(), _Loader)
        for token, written in file["types"].items():
            yield _row(token, {**file["all"], **written})


def _row(token: str, written: Mapping[str, Any]) -> Row:
    values = _tuples(written)
    readers = {
        "create": _step,
        "delete": lambda steps: tuple(_step(step) for step in steps),
        "update": lambda steps: tuple(_step(step) for step in steps),
        "find": _look,
        "look_ups": lambda looks: {name: _look(look) for name, look in looks.items()},
        "status": lambda status: Status(**_tuples(status)),
        "tagging": _tagging,
        "naming": lambda naming: Naming(**naming),
        "case": Case,
        "patience": lambda minutes: timedelta(minutes=minutes),
    }
    return Row(token=token, **{key: readers[key](value) if key in readers else value for key, value in values.items()})


def _step(written: Mapping[str, Any]) -> Step:
    values = _with_arguments(written)
    retry = values.pop("retry", {})
    return Step(retry=retry if isinstance(retry, dict) else dict.fromkeys(retry, ""), **values)


def _look(written: Mapping[str, Any]) -> Look:
    return Look(**_with_arguments(written))


def _tagging(written: Mapping[str, Any]) -> Tagging:
    values = _tuples(written)
    if isinstance(values.get("read"), dict):
        values["read"] = _look(values["read"])
    return Tagging(**values)


def _with_arguments(written: Mapping[str, Any]) -> dict[str, Any]:
    values = _tuples(written)
    return {"arguments": values.pop("with", {}), **values}


def _tuples(written: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if key in _TUPLES and value is not None else value for key, value in written.items()}

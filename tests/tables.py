"""Read tables of cases: YAML beside a test, whose sections hold rows, each of which is one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

Row = dict[str, Any]
Test = TypeVar("Test", bound=Callable[..., Any])
MAX_ID = 100


class TableError(ValueError):
    """A table that some test would not read as it is written."""


class _UniqueKeys(yaml.CSafeLoader):
    """Refuse a key that stands twice in one mapping, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if repeated := sorted({key for key in keys if keys.count(key) > 1}):
            raise TableError(f"line {node.start_mark.line + 1}: {', '.join(repeated)} stands twice")
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict[str, list[Row]]:
    """Return the rows of each section: a list of mappings, or `columns` and `rows` with a value for each of them.

    Raise `TableError` for a row that stands twice, is no mapping, or has not as many values as there are columns.
    """
    sections: dict[str, list[Row]] = {}
    for section, written in yaml.load(path.read_text(), _UniqueKeys).items():
        sections[section] = rows = []
        for index, row in enumerate(_mappings(written), start=1):
            if row is None or row in rows:
                raise TableError(f"{path.name}: {section}: row {index} stands twice, or has other columns")
            rows.append(row)
    return sections


def _mappings(section: Any) -> Iterator[Row | None]:
    if isinstance(section, list):
        yield from (row if isinstance(row, dict) else None for row in section)
        return
    columns = section["columns"]
    for row in section["rows"]:
        yield dict(zip(columns, row, strict=True)) if len(row) == len(columns) else None


class Table:
    """The YAML file beside a test module; each of its sections has the name of the test that reads it."""

    def __init__(self, module: str) -> None:
        self.path = Path(module).with_suffix(".yaml")
        self.sections = read(self.path)

    def cases(self, test: Test) -> Test:
        """Run a test once for each row of its section; the keys are its parameters.

        Raise `TableError` for a key that the test has no parameter for, and for a row that lacks a key of others.
        """
        name = test.__name__
        if name not in self.sections:
            raise TableError(f"{self.path.name} has no section {name}")
        rows = self.sections[name]
        keys = tuple(rows[0])
        for row in rows:
            if set(row) != set(keys) or set(row) - set(inspect.signature(test).parameters):
                raise TableError(f"{self.path.name}: {name}: {row} has other keys than the test")
        params = [pytest.param(*(row[key] for key in keys), id=row_id(row)) for row in rows]
        return pytest.mark.parametrize(keys, params)(test)


def row_id(row: Row) -> str:
    return "-".join(str(value) for value in row.values())[:MAX_ID] or "nothing"

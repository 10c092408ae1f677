"""A table of cases refuses what its test would not read, and no table has a section that no test reads."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.root import ROOT
from tests.tables import Table, TableError, read

TABLES = [path for path in sorted((ROOT / "tests").rglob("test_*.yaml")) if path.with_suffix(".py").exists()]


def table(folder: Path, text: str) -> Table:
    (folder / "test_it.yaml").write_text(text)
    return Table(str(folder / "test_it.py"))


def run(number: int, word: str) -> Any:
    return number, word


def test_each_row_is_one_case_with_an_id_of_its_values(tmp_path: Path) -> None:
    rows = table(tmp_path, "run:\n- {number: 1, word: a}\n- {word: b, number: 2}\n").cases(run).pytestmark  # type: ignore[attr-defined]
    ((names, params),) = [mark.args for mark in rows]
    assert names == ("number", "word")
    assert [(param.values, param.id) for param in params] == [((1, "a"), "1-a"), ((2, "b"), "b-2")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("- {number: 1, word: a, other: 2}", "other keys than the test"),
        ("- {number: 1, word: a}\n- {number: 1}", "other keys than the test"),
        ("- {number: 1, word: a}\n- {word: a, number: 1}", "row 2 stands twice, or has other columns"),
        ("- 7", "row 1 stands twice, or has other columns"),
        ("  columns: [number, word]\n  rows:\n  - [1, a]\n  - [2]", "row 2 stands twice, or has other columns"),
        ("- {number: 1, number: 2, word: a}", "line 2: number stands twice"),
    ],
)
def test_a_row_that_its_test_would_not_read_as_it_stands_is_refused(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        table(tmp_path, f"run:\n{rows}\n").cases(run)


def test_columns_name_the_values_of_each_row(tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text("run:\n  columns: [number, word]\n  rows:\n  - [1, a]\n  - [2, b]\n")
    assert read(tmp_path / "it.yaml") == {"run": [{"number": 1, "word": "a"}, {"number": 2, "word": "b"}]}


def test_a_test_without_a_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"test_it\.yaml has no section run"):
        table(tmp_path, "other:\n- {number: 1}\n").cases(run)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_section_of_a_table_has_its_test(path: Path) -> None:
    module = ast.parse(path.with_suffix(".py").read_text())
    readers = {
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).endswith(".cases") for decorator in node.decorator_list)
    }
    assert set(read(path)) == readers

"""docs/mishaps.md against the code: each row has a test that exists, and quotes words that are said."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.root import ROOT

PAGE = (ROOT / "docs/mishaps.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "::" in line
]
BETWEEN_PIECES = re.compile(r"[\"']\s*\n\s*f?[\"']")
"""Where one string of the source goes on in the next line."""


def read(path: Path) -> str:
    return BETWEEN_PIECES.sub("", path.read_text())


@cache
def product() -> str:
    folders = ("infra", "trainer")
    return "\n".join(read(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def test_the_page_is_a_table_of_four_columns() -> None:
    assert len(ROWS) >= 30 and {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_mishap_has_a_test_that_exists_and_words_that_are_said(row: list[str]) -> None:
    path, _, name = row[3].strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path} has no {name}"
    said = [words for words in re.findall(r"`([^`]+)`", row[1]) if " " in words]
    for words in said:
        assert words in product() or words in read(ROOT / path), f"nobody says `{words}`"


def test_no_mishap_stands_there_twice() -> None:
    assert len({row[0] for row in ROWS}) == len(ROWS)

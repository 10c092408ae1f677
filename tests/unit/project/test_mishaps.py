"""docs/mishaps.md against the code: each item has a test that exists, and quotes words that are said."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.root import ROOT

PAGE = (ROOT / "docs/mishaps.md").read_text()
ITEMS = [" ".join(item.split()) for item in re.findall(r"^- (\*\*.*?)(?=^- |^$|\Z)", PAGE, re.MULTILINE | re.DOTALL)]
ROW = re.compile(r"\*\*(.+?)\*\*; \*said\*: (.+); \*costs at most\*: (.+); \*test\*: `(\S+)` `(\w+)`")
ROWS = [match.groups() for item in ITEMS if (match := ROW.fullmatch(item))]
BETWEEN_PIECES = re.compile(r"[\"']\s*\n\s*f?[\"']")
"""Where one string of the source goes on in the next line."""


def read(path: Path) -> str:
    return BETWEEN_PIECES.sub("", path.read_text())


@cache
def product() -> str:
    folders = ("infra", "trainer")
    return "\n".join(read(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def test_every_item_says_its_words_its_cost_and_its_test() -> None:
    assert len(ROWS) >= 30 and [item for item in ITEMS if not ROW.fullmatch(item)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_mishap_has_a_test_that_exists_and_words_that_are_said(row: tuple[str, ...]) -> None:
    path, name = row[3:]
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path} has no {name}"
    quotes = [words for words in re.findall(r"`([^`]+)`", row[1]) if " " in words]
    for words in quotes:
        assert words in product() or words in read(ROOT / path), f"nobody says `{words}`"


def test_no_mishap_stands_there_twice() -> None:
    assert len({row[0] for row in ROWS}) == len(ROWS)

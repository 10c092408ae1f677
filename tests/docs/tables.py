"""Markdown whose lines fit into 120 columns: tables, items of lists, and text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

WIDTH = 120
_CODE = re.compile(r"`[^`]+`")
_LONGEST_CODE = 90
_MARKER = re.compile(r" (?=(?:[-+*]|\d+[.)]|#+) )")
"""What would begin an item or a heading if a line began with it."""


def cell(text: str) -> str:
    """Return a text as one table cell: without line breaks, with its bars escaped."""
    return " ".join(text.split()).replace("|", r"\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table, or of a list where a row is too wide for one."""
    names, body = list(head), [list(row) for row in rows]
    lines = [f"| {' | '.join(cell(part) for part in row)} |" for row in (names, ["---"] * len(names), *body)]
    if max(map(len, lines)) <= WIDTH:
        return lines
    labels = ("; ".join(f"*{name}*: {part}" for name, part in zip(names[1:], row[1:], strict=True)) for row in body)
    return [line for row, cells in zip(body, labels, strict=True) for line in item(f"{row[0]}; {cells}")]


def item(text: str, marker: str = "- ") -> list[str]:
    """Return the lines of an item of a list, or with an empty `marker` those of a paragraph. Code stays on one line."""
    content = _MARKER.sub("\0", " ".join(text.split()))
    content = _CODE.sub(lambda code: code[0].replace(" ", "\0") if len(code[0]) <= _LONGEST_CODE else code[0], content)
    lines = textwrap.wrap(
        content, WIDTH, initial_indent=marker, subsequent_indent=" " * len(marker),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\0", " ") for line in lines]

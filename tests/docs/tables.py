"""Markdown tables and text that stand in one line each."""

from __future__ import annotations

from collections.abc import Iterable


def cell(text: str) -> str:
    """Return a text as one table cell: without line breaks, with its bars escaped."""
    return " ".join(text.split()).replace("|", r"\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return [f"| {' | '.join(cell(part) for part in line)} |" for line in lines]

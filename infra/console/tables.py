"""The tables that commands print: words as they are, and every id whole, on any terminal and in a pipe."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_PROSE = 32
"""Columns that prose gets at least."""
_ENDLESS = 100_000


class Listing(Table):
    """A column whose name starts with `>` is right-aligned; one that starts with `~` is prose, which may wrap.

    All others stay on one line. Cells are words, never markup: a tag that somebody wrote in AWS must not hide a part of
    itself in `[...]`, break the table, or move the cursor. Style is given by a `Text`.
    """

    def __init__(self, *columns: str, title: str = "", ruled: bool = False) -> None:
        super().__init__(
            title=Text(title) if title else None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD if ruled else None,
            pad_edge=not ruled,
        )
        for name in columns:
            prose = name.startswith("~")
            self.add_column(
                name.lstrip(">~"), justify="right" if name.startswith(">") else "left", no_wrap=not prose,
                overflow="fold",
            )  # fmt: skip

    def row(self, *cells: str | Text, style: str | None = None) -> None:
        self.add_row(*(cell if isinstance(cell, Text) else Text(_printable(cell)) for cell in cells), style=style)

    def show(self, console: Console) -> None:
        """As wide as its ids need: wider than a narrow terminal, or a pipe's 80 columns, rather than cut."""
        endless = console.options.update(max_width=_ENDLESS)
        for column in self.columns:
            sizes = [Measurement.get(console, endless, cell) for cell in (column.header, *column.cells)]
            widest = max(size.maximum for size in sizes)
            word = max(size.minimum for size in sizes)
            column.min_width = widest if column.no_wrap else max(word, min(widest, _PROSE))
        needed = Measurement.get(console, endless, self).minimum
        # By the table's own width: `print(width=)` is cut to the console's.
        self.width = needed if needed > console.width else None
        console.print(self, crop=False)


def _printable(text: str) -> str:
    """With what would act on the terminal, or turn the direction of writing, spelled out."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)

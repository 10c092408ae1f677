"""Tables of commands, with literal text and uncut ids on any terminal and in a pipe."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from infra.console.visible import visible

_PROSE = 32
"""Minimal width of prose."""
_ENDLESS = 100_000


class Listing(Table):
    """A table. A column whose name starts with `>` is right-aligned; one with `~` is prose and may wrap; others do not.

    Cells are text, never markup: a tag in AWS must not hide a part of itself in `[...]`, break the table, or move the
    cursor. A `Text` gives style.
    """

    def __init__(self, *columns: str, title: str = "", has_rule: bool = False) -> None:
        super().__init__(
            title=Text(title) if title else None, title_justify="left", title_style="bold",
            box=box.SIMPLE_HEAD if has_rule else None, pad_edge=not has_rule,
        )  # fmt: skip
        for name in columns:
            prose = name.startswith("~")
            self.add_column(
                name.lstrip(">~"), justify="right" if name.startswith(">") else "left", no_wrap=not prose,
                overflow="fold",
            )  # fmt: skip

    def row(self, *cells: str | Text, style: str | None = None) -> None:
        self.add_row(
            *(cell if isinstance(cell, Text) else Text(visible(cell, lines=False)) for cell in cells), style=style
        )

    def show(self, console: Console) -> None:
        """Print the table. One that a terminal is too narrow for is printed row by row, a line for each cell; in a file
        or a pipe it is as wide as its ids need."""
        endless = console.options.update(max_width=_ENDLESS)
        for column in self.columns:
            sizes = [Measurement.get(console, endless, cell) for cell in (column.header, *column.cells)]
            widest = max(size.maximum for size in sizes)
            word = max(size.minimum for size in sizes)
            column.min_width = widest if column.no_wrap else max(word, min(widest, _PROSE))
        least_width = Measurement.get(console, endless, self).minimum
        if least_width > console.width and console.is_terminal:
            self._show_rows(console)
            return
        # The table's own width: `print(width=)` is cut to the console's.
        self.width = least_width if least_width > console.width else None
        console.print(self, crop=False)

    def _show_rows(self, console: Console) -> None:
        if self.title:
            console.print(Text(str(self.title), "bold"), soft_wrap=True)
        label = max(len(str(column.header)) for column in self.columns)
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for number, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
                if not number:
                    console.print(cell, style="bold", soft_wrap=True)
                elif str(cell):
                    # An id stays whole, for the terminal to wrap; words are wrapped here.
                    is_id = " " not in str(cell)
                    line = Text.assemble("  " if is_id else "", f"{column.header!s:<{label}} ", cell)
                    console.print(line if is_id else Padding(line, (0, 0, 0, 2), expand=False), soft_wrap=is_id)

"""A line in a file or a CI's log is not broken; on a terminal it fits."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from infra.console.plain_console import PlainConsole

LINE = "plan " + "2 x p5.4xlarge, 2 ranks, " * 6 + "4.38 USD"


@pytest.mark.parametrize(("terminal", "lines"), [(False, 1), (True, 3)])
def test_a_long_line_is_broken_on_a_terminal_alone(terminal: bool, lines: int) -> None:
    output = io.StringIO()
    PlainConsole(file=output, width=80, force_terminal=terminal, highlight=False).print(LINE)
    assert len(output.getvalue().splitlines()) == lines


def test_a_table_in_a_file_keeps_its_width() -> None:
    output, table = io.StringIO(), Table("what")
    table.add_row(LINE)
    PlainConsole(file=output, width=80, force_terminal=False).print(table)
    assert max(map(len, output.getvalue().splitlines())) <= 80

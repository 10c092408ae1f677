"""What a terminal, a file and a CI's log get of progress and of tables."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from infra.cli.prepare.catalogue import table
from infra.console import progress as progress_module
from infra.console.progress import Progress
from infra.console.tables import Listing
from infra.plan import catalogue


def test_progress_in_a_log_backs_off_and_breaks_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: seconds[0])
    out = io.StringIO()
    progress = Progress(Console(file=out, width=40))
    with progress.stage("provision", "a purpose that is longer than forty columns are wide"):
        for second in range(200):
            seconds[0] = second
            progress.step(f"second {second} of a step whose text is longer than the log is wide")
        progress.note("a note that is longer than forty columns are wide, too")
    begin, *steps, note, end = out.getvalue().splitlines()
    assert begin.endswith("columns are wide") and note.endswith("wide, too") and "done in 199.0 s" in end
    assert [line.split()[2] for line in steps] == ["3", "14", "75", "136", "197"]


def test_a_failed_stage_shows_no_class_of_python() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError), Progress(Console(file=out)).stage("provision", "x"):
        raise ValueError
    assert "not done in" in out.getvalue() and "Error" not in out.getvalue()


@pytest.mark.parametrize("width", [80, 40])
def test_a_table_fits_the_terminal_and_loses_no_cell(width: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    items = catalogue.instance_types()
    table(items).show(terminal)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.strip() for line in lines if not line.startswith(" ")] == [item.name for item in items]
    assert sum(line.split()[:1] == ["accelerators"] for line in lines) == len(items)


def test_a_table_that_fits_stays_a_table() -> None:
    out = io.StringIO()
    rows = Listing("stage", ">time")
    rows.row("bake", "3 s")
    rows.show(Console(file=out, width=40, force_terminal=True, color_system=None))
    assert [line.split() for line in out.getvalue().splitlines()] == [["stage", "time"], ["bake", "3", "s"]]

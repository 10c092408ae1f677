"""The keys of `bivouac watch` on a pseudo-terminal: what a person types, and what stands on the screen then."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from rich.text import Text

from infra.cli.look.watch import watch
from infra.cli.look.watch.snapshot import Snapshot
from infra.cli.look.watch.views import View, ViewName, after_key, help_line, keys_of, picture
from infra.cli.look.watch.watch import LineScreen, LogTail, follow_rank
from infra.console.plain_console import PlainConsole
from infra.errors import UserError
from tests.unit.cli.look.test_watch import LIVE, MACHINES, pod, trains
from tests.unit.cli.test_logs import store, written
from tests.waiting import until as eventually
from tests.worlds.s3 import NOON

__all__ = ["store", "trains"]
_CONTROL = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])")


class Terminal:
    """A terminal of so many columns and lines; it knows the controls of ECMA-48 that a screen of lines needs."""

    def __init__(self, columns: int, lines: int) -> None:
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.columns, self.lines = columns, lines
        self._cells = [[" "] * columns for _ in range(lines)]
        self._row = self._column = 0
        self._rest = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self.ours, 4096):
                self._take(self._rest + data.decode(errors="ignore"))
        except OSError:
            return

    def _take(self, text: str) -> None:
        begin = text.rfind("\x1b")
        is_cut = begin >= 0 and not _CONTROL.match(text, begin)
        text, self._rest = (text[:begin], text[begin:]) if is_cut else (text, "")
        while text:
            if match := _CONTROL.match(text):
                self._obey(*match.groups())
                text = text[match.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _obey(self, private: str | None, numbers: str, letter: str) -> None:
        if letter == "H":
            self._row, self._column = (int(number) - 1 for number in numbers.split(";")) if numbers else (0, 0)
        elif letter == "J":
            self._cells = [[" "] * self.columns for _ in range(self.lines)]
        elif letter == "K":
            self._cells[self._row] = [" "] * self.columns

    def _put(self, character: str) -> None:
        if character in "\r\n":
            self._row, self._column = self._row + (character == "\n"), 0
        elif self._row < self.lines and self._column < self.columns:
            self._cells[self._row][self._column] = character
            self._column += 1

    def shown(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def garble(self) -> None:
        """Do what terminals do to their text when somebody draws at their corner."""
        self._cells = [["x"] * self.columns for _ in range(self.lines)]

    def awaits(self, *texts: str) -> list[str]:
        """Return the screen once it has all of these texts."""
        eventually(lambda: all(text in "\n".join(self.shown()) for text in texts), lambda: "\n".join(self.shown()))
        return self.shown()


def lines_of(rank: int, over: threading.Event) -> Iterator[str]:
    yield from (f"line {number} of rank {rank} \x1b[2J" for number in range(60))
    over.wait()


@pytest.fixture(params=[(40, 20), (80, 24), (200, 50)], ids=lambda size: f"{size[0]} columns")
def terminal(request: pytest.FixtureRequest, trains: Snapshot, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal on which somebody watches a campaign of two nodes."""
    terminal = Terminal(*request.param)
    monkeypatch.setattr(watch, "_STANDARD_INPUT", terminal.theirs)
    monkeypatch.setattr(watch, "source", lambda *_: lambda: trains)
    monkeypatch.setattr(watch, "follow_rank", lambda *_: lines_of)
    file = os.fdopen(os.dup(terminal.theirs), "w")
    columns, rows = request.param
    console = PlainConsole(file=file, force_terminal=True, width=columns, height=rows, color_system="standard")
    codes: list[int] = []
    watching = threading.Thread(
        target=lambda: codes.append(watch.watch_command("x", "us-east-1", False, console)), daemon=True
    )
    watching.start()
    yield terminal
    terminal.type("q")
    watching.join()
    assert codes == [0]
    file.close(), os.close(terminal.theirs)


def test_keys_lead_to_nodes_ranks_checkpoints_and_decisions_and_back(terminal: Terminal) -> None:
    terminal.awaits("campaign example", "alerts   PodSilent")
    terminal.type("n")
    screen = terminal.awaits("ip-0, ranks 0 to 7")
    assert any(line.startswith("> 0 ip-0 ■ trains, 1 rank not well") for line in screen)
    terminal.type("\x1b[B")
    terminal.awaits("> 1 ip-1 ? silent")
    terminal.awaits("ip-1, ranks 8 to 15", "ip-1 silent for 7 s", "by EC2 impaired")
    terminal.type("\r")
    screen = terminal.awaits("log of rank 8's node", "line 59 of rank 8 \\x1b[2J")
    assert "line 0 of rank 8" not in "\n".join(screen)
    terminal.type("k")
    terminal.awaits("1 line back")
    terminal.type("1")
    terminal.awaits("rank 1: Enter")
    terminal.type("\r")
    terminal.awaits("log of rank 1's node", "line 59 of rank 1 ")
    terminal.type("c")
    screen = terminal.awaits("step 48  local  committed")
    assert [line[:7] for line in screen if line.startswith("step ")][:3] == ["step 50", "step 48", "step 20"]
    terminal.type("d")
    terminal.awaits("12  22 Nov 12:01:00 alert PodSilent", "explain")
    terminal.type("?")
    terminal.awaits("q  quit; the campaign goes on")
    terminal.type("\x1b")
    terminal.awaits("campaign example", "alerts   PodSilent")


def test_no_view_is_wider_or_longer_than_the_terminal(trains: Snapshot) -> None:
    log = ["x" * 500, "short"] * 40
    for columns, lines in ((40, 10), (80, 24)):
        for name in ViewName:
            if name is ViewName.WHOLE:
                continue
            text = picture(View(name), trains, columns, lines, 8, log, "the cluster is away")
            console = PlainConsole(width=columns, force_terminal=True)
            rows = console.render_lines(text, console.options.update(width=columns, height=None))
            assert all(sum(segment.cell_length for segment in row) <= columns for row in rows)
            if name is ViewName.LOG:
                assert len(rows) == lines and rows[-1][0].text.startswith("short")
        assert len(help_line(View(digits="123"), columns).plain) <= columns


def test_a_chosen_node_of_many_stays_in_sight(trains: Snapshot) -> None:
    many = Snapshot(trains.record, LIVE | {"pods": [pod(index) for index in range(100)]})
    view = View(ViewName.NODES)
    for _ in range(150):
        turned = after_key(view, "j", many, 8)
        assert turned is not None
        view = turned
        assert f"> {view.place} " in picture(view, many, 40, 10, 8, [], "").plain
    assert view.place == 99


def test_keys_that_arrive_at_once_are_keys_apart() -> None:
    assert keys_of("n\x1b[B\r\x1b") == ["n", "\x1b[B", "\r", "\x1b"] and keys_of("") == []


def test_a_frame_that_has_hardly_changed_costs_a_slow_line_hardly_anything(trains: Snapshot) -> None:
    line = io.StringIO()
    screen = LineScreen(PlainConsole(file=line, force_terminal=True, width=80, height=24, color_system="standard"))
    sizes = list[int]()
    for seconds in (100, 100, 101):
        screen.draw(watch.frame(trains, NOON + timedelta(seconds=seconds), 80, MACHINES))
        sizes.append(len(line.getvalue()) - sum(sizes))
    assert sizes[1] == 0 and 0 < sizes[2] < sizes[0] / 2 and screen.rest_s > 0


def test_a_shorter_picture_leaves_nothing_of_a_longer_one_and_a_new_size_is_drawn_anew(trains: Snapshot) -> None:
    terminal = Terminal(80, 24)
    with os.fdopen(os.dup(terminal.theirs), "w") as file:
        console = PlainConsole(file=file, force_terminal=True, width=80, height=24)
        screen = LineScreen(console)
        screen.draw(watch.frame(trains, NOON + timedelta(seconds=100), 80, MACHINES))
        screen.draw(Text("bye"))
        eventually(lambda: terminal.shown() == ["bye", *[""] * 23], "nothing of the longer picture is left")
        console.width = 40
        terminal.garble()
        screen.draw(Text("bye"))
        eventually(lambda: terminal.shown() == ["bye", *[""] * 23], "all is drawn anew")
    os.close(terminal.theirs)


def test_a_ranks_log_comes_from_the_record_as_it_grows(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "record_of", lambda *_: store)
    monkeypatch.setattr(watch, "living_logs", lambda *_: nullcontext())
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    tail = LogTail(follow_rank("train", "us-east-1"))
    tail.show(0)
    eventually(lambda: list(tail.lines) == ["three"], "the newest attempt's first node")
    written(store, "train-a2-gang-0-0-z", "\nfive\n", begin=2)
    eventually(lambda: list(tail.lines) == ["three", "four", "five"], "what came since")
    tail.show(10**6)
    eventually(lambda: "there is no such rank" in tail.trouble, "the trouble is shown")
    assert not tail.lines
    tail.show(None)


def test_a_log_that_cannot_be_read_says_why() -> None:
    def refuse(rank: int, over: threading.Event) -> Iterator[str]:
        raise UserError("there is no such campaign")

    tail = LogTail(refuse)
    tail.show(3)
    eventually(lambda: tail.trouble == "there is no such campaign", "why no lines come")

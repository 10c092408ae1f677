"""`bivouac watch NAME`: a live view of a campaign on a terminal; one frame elsewhere, and of one that has ended."""

from __future__ import annotations

import os
import select
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx2
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment, Segments

from infra.cli.look.logs import Asked, PodReader, in_words, living_logs, node_of, pods_of
from infra.cli.look.watch.frame import frame
from infra.cli.look.watch.snapshot import GangFacts, Snapshot, machines_of, source
from infra.cli.look.watch.views import View, ViewName, after_key, help_line, keys_of, picture
from infra.cli.records import record_of
from infra.errors import BivouacError, first_line

READ_EVERY_S = 2.0
"""Between two looks into the record, at least."""
_REDRAW_S = 0.5
_TYPED_BYTES = 64  # an arrow is three at once
_STANDARD_INPUT = 0


KEPT = 500
_LOOK_S = 2.0
FollowLines = Callable[[int, threading.Event], Iterator[str]]
"""Yields the lines of a rank's node as they come, until the event is set."""


class LogTail:
    """Follows one rank at a time: another rank, or None, ends what was followed before."""

    def __init__(self, follow: FollowLines) -> None:
        self._follow = follow
        self._rank: int | None = None
        self._closing = threading.Event()
        self.lines: deque[str] = deque(maxlen=KEPT)
        self.trouble = ""
        """Why no lines come."""

    def show(self, rank: int | None) -> None:
        """Follow this rank from now on, if it is another."""
        if rank == self._rank:
            return
        self._closing.set()
        self._rank, self._closing, self.lines, self.trouble = rank, threading.Event(), deque(maxlen=KEPT), ""
        if rank is not None:
            threading.Thread(target=self._run, args=(rank, self._closing, self.lines), daemon=True).start()

    def _run(self, rank: int, closing: threading.Event, lines: deque[str]) -> None:
        try:
            for line in self._follow(rank, closing):
                if closing.is_set():
                    return
                lines.append(line)
        except (BivouacError, BotoCoreError, ClientError, httpx2.HTTPError, OSError, ValueError) as error:
            if not closing.is_set():
                self.trouble = first_line(error)


def follow_rank(campaign: str, region: str) -> FollowLines:
    """Return a function that follows a rank's node in the newest attempts, from the record and from the cluster."""

    def follow(rank: int, closing: threading.Event) -> Iterator[str]:
        store, request = record_of(campaign, region), Asked(rank=rank, tail=KEPT)
        node, readers = node_of(store, rank), dict[str, PodReader]()
        with living_logs(store, Console(quiet=True)) as living:
            while not closing.is_set():
                for pod in pods_of(store, living, request, node, readers):
                    readers.setdefault(pod, PodReader(store, living, pod, request, ""))
                for reader in readers.values():
                    yield from map(in_words, reader.read(to_the_end=False))
                closing.wait(_LOOK_S)

    return follow


def watch_command(campaign: str, region: str, once: bool, console: Console) -> int:
    """Show the campaign until it has ended or `q` is pressed. Raises `UserError` if neither the account nor the results
    folder has it."""
    read = source(campaign, region)
    newest = read()
    machines = machines_of(newest.record.spec)
    if not once and console.is_terminal and not newest.ended:
        newest = _follow(read, newest, machines, LogTail(follow_rank(campaign, region)), console)
    console.print(frame(newest, datetime.now(UTC), console.width, machines))
    return 0


def _follow(
    read: Callable[[], Snapshot], first_snapshot: Snapshot, machines: GangFacts, log: LogTail, console: Console
) -> Snapshot:
    """Draw until the campaign has ended or somebody quits; return the newest snapshot."""
    screen, view = LineScreen(console), View()
    with Looks(read, first_snapshot) as looks, pressed_keys(_STANDARD_INPUT) as key, console.screen(hide_cursor=True):
        while True:
            snapshot, trouble = looks.newest
            log.show(view.rank if view.name is ViewName.LOG else None)
            screen.draw(_whole_picture(view, snapshot, machines, log, console, trouble))
            if snapshot.ended:
                return snapshot
            for name in keys_of(key(max(_REDRAW_S, screen.rest_s))):
                next_view = after_key(view, name, snapshot, machines.ranks_per_node)
                if next_view is None:
                    log.show(None)
                    return snapshot
                view = next_view


def _whole_picture(
    view: View, snapshot: Snapshot, machines: GangFacts, log: LogTail, console: Console, trouble: str
) -> RenderableType:
    """Return the help line and the view below it."""
    width, now = console.width, datetime.now(UTC)
    if view.name is ViewName.WHOLE:
        body: RenderableType = frame(snapshot, now, width, machines, trouble)
    else:
        height, ranks = console.height - 1, machines.ranks_per_node
        body = picture(view, snapshot, width, height, ranks, list(log.lines), log.trouble)
    return Group(help_line(view, width), body)


class Looks:
    """A thread that reads the record, so that keys and ages never wait for it."""

    def __init__(self, read: Callable[[], Snapshot], first_snapshot: Snapshot) -> None:
        self._read, self._over = read, threading.Event()
        self.newest: tuple[Snapshot, str] = first_snapshot, ""
        """The newest snapshot, and why there is no newer one."""

    def __enter__(self) -> Looks:
        threading.Thread(target=self._run, name="looks", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(READ_EVERY_S):
            self.look()

    def look(self) -> None:
        """Read once. What was read before stays where the record cannot be read."""
        try:
            self.newest = self._read(), ""
        except (BivouacError, BotoCoreError, ClientError, OSError, ValueError) as error:
            self.newest = self.newest[0], first_line(error)


@contextmanager
def pressed_keys(descriptor: int) -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for keys and returns them, or nothing. Signals stay signals. The
    terminal is afterwards as it was; where there is none, no key ever comes."""
    try:
        modes = termios.tcgetattr(descriptor)
    except (termios.error, OSError, ValueError):
        yield _wait
        return
    usual_mode = modes[3]
    modes[3] = usual_mode & ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
    modes[3] = usual_mode
    try:
        yield lambda seconds: _key(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(descriptor: int, seconds: float) -> str:
    if not select.select([descriptor], [], [], seconds)[0]:
        return ""
    keys = os.read(descriptor, _TYPED_BYTES)
    return keys.decode(errors="replace") if keys else _wait(seconds)  # at the end nobody can type any more


_SHARE = 10
"""Of the time, drawing takes one part in so many."""


class LineScreen:
    """A terminal's alternate screen, drawn line by line, as little as has changed: a frame costs a slow line a few
    hundred bytes, not all of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._size = (0, 0)
        self._rows: list[list[Segment]] = []
        """As they stand on the screen."""
        self.rest_s = 0.0
        """Seconds to leave the terminal alone: a line that was slow to take the last frame is not flooded."""

    def draw(self, picture: RenderableType) -> None:
        """Draw the lines that differ from those that stand there. What is longer than the screen is cut off."""
        console, begin = self._console, time.monotonic()
        size = (console.width, console.height)
        rows = console.render_lines(picture, console.options.update(width=size[0], height=None), pad=False)[: size[1]]
        with console:  # one write
            if size != self._size:
                console.control(Control.clear())
                self._size, self._rows = size, []
            for number, row in enumerate(rows):
                if number >= len(self._rows) or row != self._rows[number]:
                    console.control(Control.move_to(0, number), Control((ControlType.ERASE_IN_LINE, 2)))
                    console.print(Segments(row), end="")
            for number in range(len(rows), len(self._rows)):
                console.control(Control.move_to(0, number), Control((ControlType.ERASE_IN_LINE, 2)))
        self._rows = rows
        self.rest_s = (_SHARE - 1) * (time.monotonic() - begin)

"""`bivouac watch NAME`: a live view of a campaign on a terminal; one frame elsewhere, and of one that has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.live import Live

from infra.cli.look.watch.frame import frame
from infra.cli.look.watch.keys import pressed_keys
from infra.cli.look.watch.snapshot import GangFacts, Snapshot, machines_of, source
from infra.errors import BivouacError, first_line

READ_EVERY_S = 2.0
"""Between two looks into the record, at least."""
_REDRAW_S = 0.5
_QUIT = ("q", "Q")
_STANDARD_INPUT = 0


def watch_command(campaign: str, region: str, once: bool, console: Console) -> int:
    """Show the campaign until it has ended or `q` is pressed. Raises `UserError` if neither the account nor the results
    folder has it."""
    read = source(campaign, region)
    newest = read()
    machines = machines_of(newest.record.spec)
    if not once and console.is_terminal and not newest.ended:
        newest = _follow(read, newest, machines, console)
    console.print(frame(newest, datetime.now(UTC), console.width, machines))
    return 0


def _follow(read: Callable[[], Snapshot], first: Snapshot, machines: GangFacts, console: Console) -> Snapshot:
    """Draw until the campaign has ended or somebody quits; return the newest snapshot."""
    with (
        Looks(read, first) as looks,
        pressed_keys(_STANDARD_INPUT) as key,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            snapshot, trouble = looks.newest
            now = datetime.now(UTC)
            live.update(frame(snapshot, now, console.width, machines, trouble), refresh=True)
            if snapshot.ended or key(_REDRAW_S) in _QUIT:
                return snapshot


class Looks:
    """A thread that reads the record, so that keys and ages never wait for it."""

    def __init__(self, read: Callable[[], Snapshot], first: Snapshot) -> None:
        self._read, self._over = read, threading.Event()
        self.newest: tuple[Snapshot, str] = first, ""
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

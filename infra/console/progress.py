"""Progress of a command: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from infra.console.visible import visible

_QUIET_S = 2.0
"""Longest time without output."""
_REMIND_S = 10.0


class Progress:
    """Prints the start and end of stages, and between them the newest step with its elapsed time."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._stage, self._said, self._begun, self._printed = "", "", 0.0, 0.0
        self._status = console.status("") if console.is_terminal else None

    @contextmanager
    def stage(self, name: str, purpose: str) -> Iterator[None]:
        """Print a stage's start, and its end with its seconds."""
        self._stage, self._said, self._begun, self._printed = name, "", time.monotonic(), time.monotonic()
        self.console.print(f"[bold]{name:<10}[/] {escape(visible(purpose))}")
        if self._status is not None:
            self._status.start()
        try:
            yield
        except BaseException as error:
            self._end(f"[red]{type(error).__name__}[/]")
            raise
        self._end("[green]done[/]")

    def step(self, text: str) -> None:
        """Show the newest step; safe from any thread."""
        with self._lock:
            elapsed = time.monotonic() - self._begun
            quiet_for = time.monotonic() - self._printed
            line = f"{self._stage:<10} {escape(visible(text))}  [dim]{elapsed:.0f} s[/]"
            if self._status is not None:
                self._status.update(line)
            elif (text != self._said and quiet_for > _QUIET_S) or quiet_for > _REMIND_S:
                self._printed, self._said = time.monotonic(), text
                self.console.print(f"  {line}")

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(f"{'':<10} {escape(visible(text))}")

    def _end(self, how: str) -> None:
        if self._status is not None:
            self._status.stop()
        self.console.print(f"{'':<10} {how} [dim]in {time.monotonic() - self._begun:.1f} s[/]")

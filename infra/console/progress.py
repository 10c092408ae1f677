"""Progress of a command: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from infra.console.visible import visible

_PAUSES_S = (2.0, 10.0, 60.0)
"""Time before the first line of a stage in a file or a CI's log, before the second, and before each later one."""


class Progress:
    """Prints the start and end of stages, and between them the newest step with its elapsed time."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._stage, self._begun, self._printed, self._lines = "", 0.0, 0.0, 0
        self._status = console.status("") if console.is_terminal else None

    @contextmanager
    def stage(self, name: str, purpose: str) -> Iterator[None]:
        """Print a stage's start, and its end with its seconds."""
        self._stage, self._begun, self._printed, self._lines = name, time.monotonic(), time.monotonic(), 0
        self.console.print(f"[bold]{name:<10}[/] {escape(visible(purpose))}", soft_wrap=True)
        if self._status is not None:
            self._status.start()
        try:
            yield
        except BaseException:
            self._end("[red]not done[/]")
            raise
        self._end("[green]done[/]")

    def step(self, text: str) -> None:
        """Show the newest step; safe from any thread."""
        with self._lock:
            now = time.monotonic()
            line = f"{self._stage:<10} {escape(visible(text))}  [dim]{now - self._begun:.0f} s[/]"
            if self._status is not None:
                self._status.update(line)
            elif now - self._printed > _PAUSES_S[min(self._lines, len(_PAUSES_S) - 1)]:
                self._printed, self._lines = now, self._lines + 1
                self.console.print(f"  {line}", soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(f"{'':<10} {escape(visible(text))}", soft_wrap=True)

    def _end(self, outcome: str) -> None:
        if self._status is not None:
            self._status.stop()
        self.console.print(f"{'':<10} {outcome} [dim]in {time.monotonic() - self._begun:.1f} s[/]")

"""A progress line for slow steps: the step, its usual time, and how far it is."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import TextIO

QUIET_INTERVAL_S = 30.0


class TransferProgress:
    """A line that a terminal rewrites in place; elsewhere (CI, a log) there is a new line every half minute."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._what, self._usual, self._started, self._said = "", timedelta(), 0.0, 0.0

    def begin(self, title: str, usual: timedelta | None = None) -> None:
        self._what, self._usual = title, usual or timedelta()
        self._started = self._said = time.monotonic()
        usually = f" (usually {_clock(self._usual.total_seconds())} on two cores)" if usual else ""
        self._write(f"{title}{usually}", final=not self._terminal)

    def tick(self, detail: str) -> None:
        now = time.monotonic()
        if not self._terminal and now - self._said < QUIET_INTERVAL_S:
            return
        self._said = now
        usual = f" of usually {_clock(self._usual.total_seconds())}" if self._usual else ""
        self._write(f"{self._what}: {detail}, {_clock(now - self._started)}{usual}", final=not self._terminal)

    def end(self, outcome: str) -> None:
        self._write(f"{self._what}: {outcome}, {_clock(time.monotonic() - self._started)}", final=True)

    def say(self, text: str) -> None:
        self._write(text, final=True)

    def _write(self, text: str, final: bool) -> None:
        start, end = ("\r\x1b[K", "\n" if final else "") if self._terminal else ("", "\n")
        self._stream.write(f"{start}{text}{end}")
        self._stream.flush()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

"""A terminal that may go away: a reader that leaves (`| head`), a closed descriptor, nobody to answer."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class Enduring:
    """A text stream that becomes silent when nobody can read it; `lost` holds a cause worth reporting."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        self._gone = False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._gone = True
        if error.errno != errno.EPIPE:
            self.lost = OSError(error.errno, error.strerror, "standard output")
        # Buffered text goes to /dev/null, instead of failing again when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def endure() -> Enduring:
    """Replace stdout and stderr by streams that cannot fail; return the one for stdout."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Closed by the caller: the next file we open would take its number and get our output.
            os.open(os.devnull, os.O_RDWR)
    streams = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        output = stream if stream is not None else os.fdopen(number, "w", encoding="utf-8", closefd=False)
        if hasattr(output, "reconfigure"):
            output.reconfigure(errors="backslashreplace")  # for characters that the terminal lacks
        streams.append(Enduring(output))
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    return streams[0]


def has_terminal() -> bool:
    """Return True if somebody may answer: standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask_yes(question: str, console: Console, word: str = "") -> bool:
    """Ask a person and return whether the answer is yes, or `word` where that must be typed; no answer is a no."""
    try:
        # No markup: rich would take [y/N] for a style and print nothing.
        answer = console.input(f"{question} [{word or 'y/N'}] ", markup=False)
    except EOFError:
        console.print("nobody answers")
        return False
    return answer.strip().lower() in ((word,) if word else ("y", "yes"))

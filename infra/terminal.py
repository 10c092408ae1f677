"""Output that may go away: a reader that leaves (`| head`) or a closed descriptor must not end a campaign."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO


class Enduring:
    """A text stream that goes quiet for good once nobody can read it; `lost` holds why, where someone should know."""

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
        # What is still buffered goes nowhere, instead of failing once more when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def endure() -> Enduring:
    """Replace stdout and stderr by streams that cannot fail; returns the one for stdout."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Closed by the caller: the next file we open would take its place and catch our words.
            os.open(os.devnull, os.O_RDWR)
    streams = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        whole = stream if stream is not None else os.fdopen(number, "w", encoding="utf-8", closefd=False)
        if hasattr(whole, "reconfigure"):
            whole.reconfigure(errors="backslashreplace")  # a terminal that cannot show a sign
        streams.append(Enduring(whole))
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    return streams[0]

"""Timestamps of a log's lines. A container writes its file directly, so a line gets the file's time at its reading.

A line keeps its first timestamp, and no two lines of a file share one, so readers may resume by it.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_S = 10**9


class Stamped:
    """One log file. Safe for several readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._times, self._ends = array("q"), array("q")
        """Per whole line: ns since the epoch, and the offset of its end."""
        self._lock = threading.Lock()

    def look(self, all_of_it: bool) -> int:
        """Read on and return the number of lines; `all_of_it` counts a last line without its newline."""
        with self._lock, self.path.open("rb") as file:
            offset = file.seek(self._ends[-1] if self._ends else 0)
            for line in file:
                if not line.endswith(b"\n") and not all_of_it:
                    break
                offset += len(line)
                written_ns = os.fstat(file.fileno()).st_mtime_ns
                self._times.append(max(written_ns, self._times[-1] + 1 if self._times else 0))
                self._ends.append(offset)
            return len(self._ends)

    def first_line_since(self, moment_ns: int) -> int:
        """Return the number of the first line that is not older than `moment_ns`, in ns since the epoch."""
        with self._lock:
            return bisect_left(self._times, moment_ns)

    def lines(self, start: int, end: int, with_times: bool) -> Iterator[bytes]:
        """Yield lines that `look` has read, in a kubelet's format."""
        with self.path.open("rb") as file:
            file.seek(self._ends[start - 1] if start else 0)
            for number in range(start, end):
                line = file.readline()
                yield _rfc3339(self._times[number]) + b" " + line if with_times else line


def nanoseconds(rfc3339: str) -> int:
    """Convert a time in the API server's format. Raises `ValueError`."""
    moment = datetime.fromisoformat(rfc3339.replace("Z", "+00:00"))
    return int(moment.timestamp()) * _S


def _rfc3339(moment_ns: int) -> bytes:
    return f"{datetime.fromtimestamp(moment_ns // _S, UTC):%Y-%m-%dT%H:%M:%S}.{moment_ns % _S:09d}Z".encode()

"""A file written past the page cache: one thread fills aligned buffers, another writes them to the device.

Buffered writing of a large checkpoint competes with the training for memory bandwidth and dirties the page cache until
the kernel throttles every writer. If the file system refuses direct I/O, the file is written buffered.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import queue
import threading
from pathlib import Path

import numpy

BUFFER_BYTES = 8 * 2**20
"""Size of one direct write, a multiple of any device's block."""
_BUFFERS = 3


class DirectFile:
    """A new file for sequential writes. Raises `FileExistsError` if it exists, and the device's `OSError` at the next
    `write` or at `flush`."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._free: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[mmap.mmap | None] = queue.SimpleQueue()
        self._buffer = mmap.mmap(-1, BUFFER_BYTES)
        self._filled = 0
        self._writer: threading.Thread | None = None
        self._error: OSError | None = None

    def fileno(self) -> int:
        return self._descriptor

    def write(self, content: bytes | memoryview) -> int:
        remainder = memoryview(content).cast("B")
        size = len(remainder)
        while remainder:
            length = min(len(remainder), BUFFER_BYTES - self._filled)
            # Unlike an assignment of slices, numpy copies without the interpreter lock.
            numpy.copyto(numpy.frombuffer(self._buffer, numpy.uint8, length, self._filled), remainder[:length])
            self._filled, remainder = self._filled + length, remainder[length:]
            if self._filled == BUFFER_BYTES:
                self._hand_over()
        return size

    def flush(self) -> None:
        """Pass everything written so far to the file system; later writes are buffered."""
        self._join()
        if self._filled:
            self._direct(False)
            _write_all(self._descriptor, memoryview(self._buffer)[: self._filled])
            self._filled = 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._join()
        os.close(self._descriptor)

    def _hand_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._writer is None:
            self._direct(True)
            for _ in range(_BUFFERS - 1):
                self._free.put(mmap.mmap(-1, BUFFER_BYTES))
            self._writer = threading.Thread(target=self._write_on, name="checkpoint-device", daemon=True)
            self._writer.start()
        self._full.put(self._buffer)
        self._buffer, self._filled = self._free.get(), 0

    def _write_on(self) -> None:
        while (buffer := self._full.get()) is not None:
            if self._error is None:
                try:
                    _write_all(self._descriptor, memoryview(buffer))
                except OSError as error:
                    self._error = error
            self._free.put(buffer)

    def _join(self) -> None:
        if self._writer is not None:
            self._full.put(None)
            self._writer.join()
            self._writer = None
        if self._error is not None:
            raise self._error

    def _direct(self, on: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        # A file system without direct I/O raises here: then the writes go through the page cache.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)


def _write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]

"""A background thread that does slow work in order; its first error stops it and stays readable."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

_NICENESS = 10
"""Niceness of a background thread: the step's threads come first on a shared core."""


class Worker:
    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._open += 1
        self._jobs.put(job)

    def busy(self) -> bool:
        with self._lock:
            return self._open > 0

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # Linux has a niceness per thread; threads that this one starts inherit it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            job = self._jobs.get()
            try:
                if self.error is None:
                    job()
            except BaseException as error:
                self.error = error
            finally:
                with self._lock:
                    self._open -= 1

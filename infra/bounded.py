"""A look that may never come back, such as at a file system whose server is away, with a bound for who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Seen = TypeVar("Seen")


class BoundedLook(Generic[Seen]):
    """One look at a time, in a daemon thread: what blocks there holds up nobody, not even the process's end."""

    def __init__(self, ask: Callable[[], Seen], name: str) -> None:
        self._ask, self._name = ask, name
        self._thread: threading.Thread | None = None
        self._begun = 0.0
        self._answer: Seen | Exception | None = None

    def within(self, seconds: float) -> Seen:
        """The answer, or the error of the look itself; `TimeoutError` while there is none.

        The bound is that of the look, not of this call: one that is still under way when it is asked for again is
        neither begun twice nor waited for twice.
        """
        if self._thread is None:
            self._begun = time.monotonic()
            self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
            self._thread.start()
        self._thread.join(max(0.0, seconds - self.under_way_s))
        if self._thread.is_alive():
            raise TimeoutError(f"no answer for {self.under_way_s:.0f} s")
        self._thread = None
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    @property
    def under_way_s(self) -> float:
        """Since the look that has no answer yet was begun; 0 where there is none."""
        return 0.0 if self._thread is None else time.monotonic() - self._begun

    def _look(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:
            self._answer = error

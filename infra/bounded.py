"""A time limit for calls that may block for ever, such as a look at a file system whose server is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Seen = TypeVar("Seen")


class BoundedLook(Generic[Seen]):
    """Runs one call at a time in a daemon thread, so that a blocked call delays neither the caller nor the exit."""

    def __init__(self, ask: Callable[[], Seen], name: str) -> None:
        self._ask, self._name = ask, name
        self._thread: threading.Thread | None = None
        self._begun = 0.0
        self._answer: Seen | Exception | None = None

    def within(self, seconds: float) -> Seen:
        """Return the call's answer or raise its error; raise `TimeoutError` while there is none.

        The limit counts from the start of the call: a call still under way is neither repeated nor waited for again.
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
        """Seconds since the unanswered call began; 0 if there is none."""
        return 0.0 if self._thread is None else time.monotonic() - self._begun

    def _look(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:
            self._answer = error

"""The current time as several clocks agree on it: nothing irreversible is done on this machine's clock alone."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Generic, TypeVar

TOLERANCE = timedelta(seconds=30)
"""Offset up to which clocks agree: `Date` headers are in whole seconds and take some time to arrive."""
OWN = "this machine"


def _boottime() -> float:
    """Return seconds on the monotonic clock that also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """The median of the times that servers report, carried on by the monotonic clock, which alone measures durations.

    This machine's clock counts if the number of servers is even, so that one of the clocks is the median. It counts
    alone only until a server has answered; against one server it loses, since AWS bills by its own time.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = _boottime,
        machine_time: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.monotonic, self._own = monotonic, machine_time
        self._heard: dict[str, float] = {}
        """Source -> its time less our monotonic clock, in seconds."""
        self._lock = threading.Lock()

    def hear(self, source: str, date: str | None) -> None:
        """Note the `Date` header of an answer that has just arrived; ignore what is not a date."""
        try:
            moment = parsedate_to_datetime(date or "")
        except ValueError:
            return
        with self._lock:
            self._heard[source] = moment.timestamp() - self.monotonic()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic() + self._offset(), UTC)

    def disagreement(self) -> str | None:
        """Return a sentence about the clocks that are off; None while all agree."""
        right, offsets = self._offset(), self._offsets()
        deviations = {
            source: offset - right
            for source, offset in offsets.items()
            if abs(offset - right) > TOLERANCE.total_seconds()
        }
        if not deviations:
            return None
        words = (
            f"{source} is {abs(difference):.0f} s {'ahead' if difference > 0 else 'behind'}"
            for source, difference in sorted(deviations.items())
        )
        agreeing = ", ".join(sorted(offsets.keys() - deviations.keys()))
        return f"clocks disagree: {', '.join(words)}; believed: {agreeing}"

    def _offsets(self) -> dict[str, float]:
        with self._lock:
            return {**self._heard, OWN: self._own().timestamp() - self.monotonic()}

    def _offset(self) -> float:
        offsets = self._offsets()
        machine_offset = offsets.pop(OWN)
        return statistics.median([*offsets.values(), *([machine_offset] if len(offsets) % 2 == 0 else [])])


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

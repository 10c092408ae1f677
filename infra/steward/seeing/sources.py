"""The steward's sources and their outages: one that does not answer is logged and asked again after growing pauses."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from infra.cluster.kubernetes import OF_WORLD
from infra.errors import LeaseUnproven
from infra.steward.seeing.views import Source, Unseen

log = logging.getLogger("steward")
PASSING = (*OF_WORLD, OSError, LeaseUnproven)
"""Errors that may pass with time. Ending the steward would not help: its successor would meet the same error."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
_SAY_AGAIN_S = 300.0
_DIGITS = re.compile(r"\d+")
Seen = TypeVar("Seen")


class Away(Exception):
    """The source does not answer, or its next try is not due."""


@dataclass
class _Outage:
    since: float
    why: str
    pause: float
    next: float
    said: float


class Sources:
    """Outages of the sources; each fails independently and for any time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._outages: dict[Source, _Outage] = {}
        self.failures = Counter[Source]()
        """Calls that each source has failed."""

    def ask(self, source: Source, look: Callable[[], Seen]) -> Seen:
        """Return the answer. Raises `Away`, and errors that are not `PASSING`."""
        if not self.due(source):
            raise Away(source)
        try:
            answer = look()
        except PASSING as error:
            self.note_failure(source, error)
            raise Away(source) from error
        self.note_answer(source)
        return answer

    def away(self, source: Source) -> bool:
        return source in self._outages

    def due(self, source: Source) -> bool:
        outage = self._outages.get(source)
        return outage is None or self._monotonic() >= outage.next

    def note_failure(self, source: Source, error: Exception) -> None:
        self.failures[source] += 1
        now, reason = self._monotonic(), f"{type(error).__name__}: {error}"[:300]
        outage = self._outages.get(source)
        if outage is None:
            self._outages[source] = _Outage(now, reason, FIRST_PAUSE_S, now + FIRST_PAUSE_S, now)
            log.warning("%s does not answer: %s", source, reason)
            return
        outage.pause = min(LONGEST_PAUSE_S, 2 * outage.pause)
        outage.next = now + outage.pause
        if _DIGITS.sub("", reason) != _DIGITS.sub("", outage.why) or now - outage.said >= _SAY_AGAIN_S:
            outage.said = now
            log.warning("%s has not answered for %.0f s: %s", source, now - outage.since, reason)
        outage.why = reason

    def note_answer(self, source: Source) -> None:
        outage = self._outages.pop(source, None)
        if outage is not None:
            log.info("%s answers again, after %.0f s", source, self._monotonic() - outage.since)

    def unseen(self) -> tuple[Unseen, ...]:
        now = self._monotonic()
        return tuple(
            Unseen(source=source, lasts=timedelta(seconds=now - outage.since), why=outage.why)
            for source, outage in self._outages.items()
        )

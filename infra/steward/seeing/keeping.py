"""The storage of the steward's clocks beside the record."""

from __future__ import annotations

from infra.clock import Clock
from infra.record.events import CampaignState
from infra.record.store import CampaignStore
from infra.steward.clocks import CLOCKS, EVERY_S, Clocks, StoredClocks, taken_over


class Keeper:
    def __init__(self, store: CampaignStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._stored: StoredClocks | None = None
        self._next = 0.0

    def take_over(self, state: CampaignState, attempt: int) -> Clocks:
        """Return clocks that continue the stored ones. Raises S3's errors."""
        # Of another version, or unreadable: the events still bound the durations.
        self._stored, launched = self._store.figures(CLOCKS, StoredClocks), None
        for known in state.attempts:
            if known.number == attempt:
                launched = known.launched_at
        mono, now = self._clock.monotonic(), self._clock.now()
        return taken_over(self._stored, attempt, launched, state.started_at, mono, now)

    def keep(self, clocks: Clocks) -> None:
        """Store changed clocks: at once the first time, then at most every `EVERY_S`. Raises S3's errors."""
        mono = self._clock.monotonic()
        kept = clocks.kept(mono, self._clock.now())
        if mono >= self._next and not kept.same_as(self._stored):
            self._store.put_json(CLOCKS, kept.model_dump(mode="json"))
            self._stored, self._next = kept, mono + EVERY_S

"""One turn of observation: ask every source, decide, publish the result."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from lightkube import Client

from infra.clock import Clock
from infra.cluster.nodes import GpuNodes
from infra.cluster.steward_config import StewardConfig
from infra.errors import LeaseUnproven
from infra.record import meter
from infra.record.events import CampaignState
from infra.record.lease import Lease
from infra.record.objects import Unreadable
from infra.record.store import STOP, CampaignStore
from infra.steward.clocks import CLOCKS, EVERY_S, Clocks, StoredClocks, taken_over
from infra.steward.decide import Action, History, Observation, Policy, decide
from infra.steward.live import Live
from infra.steward.seeing.observe import Observer
from infra.steward.seeing.sources import Away, Sources


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
            if known["attempt"] == attempt:
                launched = known["launched_at"]
        mono, now = self._clock.monotonic(), self._clock.now()
        return taken_over(self._stored, attempt, launched, state.started_at, mono, now)

    def keep(self, clocks: Clocks) -> None:
        """Store changed clocks: at once the first time, then at most every `EVERY_S`. Raises S3's errors."""
        mono = self._clock.monotonic()
        kept = clocks.kept(mono, self._clock.now())
        if mono >= self._next and not kept.same_as(self._stored):
            self._store.put_json(CLOCKS, kept.model_dump(mode="json"))
            self._stored, self._next = kept, mono + EVERY_S


class Lookout:
    """Observes and decides; writes only the figures beside the record."""

    def __init__(
        self, config: StewardConfig, client: Client, nodes: GpuNodes, store: CampaignStore, lease: Lease, clock: Clock
    ) -> None:
        self._store, self._lease, self._clock = store, lease, clock
        self.sources = Sources(clock.monotonic)
        self.observer = Observer(
            config, client, nodes, lambda: meter.read(config.lines, store.events(), clock.now()), clock, self.sources
        )
        self.given_back = ""
        """Reason for which the GPU nodes were given back unrecorded; empty when they were not."""
        self._live, self._keeper = Live(store, config.steps), Keeper(store, clock)
        self._stop = False

    def take_over(self, state: CampaignState, attempt: int) -> None:
        """Continue the predecessor's clocks. Raises S3's errors."""
        self.observer.go_on_from(self._keeper.take_over(state, attempt))

    def look(
        self,
        policy: Policy,
        history: History,
        at: tuple[int, bool, int],
        held_since: datetime | None,
        troubles: tuple[str, ...],
        loss: float | None,
    ) -> tuple[Observation, Action]:
        """Observe and decide. `at`: attempt, whether it is in flight, newest committed step. Raises `LeaseLost`."""
        self._prove()
        with suppress(Away):
            self._stop = self.sources.ask("record", self._stop_asked)
        attempt, in_flight, committed = at
        seen = self.observer.observe(attempt, in_flight, committed, self._stop, held_since)
        told = (*troubles, *map(str, seen.unseen), *filter(None, [self._clock.disagreement()]))
        seen = seen.model_copy(update={"troubles": told, "given_back": self.given_back})
        action = decide(seen, policy, history)
        with suppress(Away):
            self.sources.ask("record", lambda: self._tell(seen, action, loss))
        return seen, action

    def _stop_asked(self) -> bool:
        try:
            return self._store.get_json(STOP) is not None
        except Unreadable:
            return True  # that it is there is the request

    def _prove(self) -> None:
        """Note the record as failed when S3 does not answer for the lease."""
        try:
            self._lease.check()
        except LeaseUnproven as error:
            self.sources.failed("record", error)

    def _tell(self, seen: Observation, action: Action, loss: float | None) -> None:
        self._lease.check()
        self._live.tell(seen, action, loss)
        self._keeper.keep(self.observer.clocks)

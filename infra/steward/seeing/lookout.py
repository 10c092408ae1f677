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
from infra.steward.decide import Action, History, Observation, Policy, decide
from infra.steward.live import Live
from infra.steward.seeing.keeping import Keeper
from infra.steward.seeing.observe import Observer
from infra.steward.seeing.sources import Away, Sources


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

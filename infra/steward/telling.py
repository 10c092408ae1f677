"""The steward's notices: it tells what the record says while it lives, also after the training, until the teardown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from botocore.exceptions import BotoCoreError, ClientError

from infra.cluster.steward_config import StewardConfig
from infra.errors import BivouacError, LeaseUnproven
from infra.notices.outbox import Outbox
from infra.notices.ways import ways
from infra.record.events import CampaignState
from infra.record.store import CampaignStore

log = logging.getLogger("steward")
_EVERY_S = 5.0


class Teller:
    """Tells in a thread of its own, so that no decision waits for it."""

    def __init__(
        self, config: StewardConfig, store: CampaignStore, guard: Callable[[], None], now: Callable[[], datetime]
    ) -> None:
        self._config, self._store, self._guard = config, store, guard
        self._outbox = Outbox(store, config.spec.notify, ways(config.spec, guard), now)

    def open(self) -> None:
        threading.Thread(target=self._tell, name="notices", daemon=True).start()

    def _tell(self) -> None:
        while True:
            try:
                self.look()
            except (ClientError, BotoCoreError, OSError, LeaseUnproven) as error:
                log.info("notices wait: %s", error)
            except BivouacError:
                return  # the lease is lost: another steward tells from here on
            time.sleep(_EVERY_S)

    def look(self) -> int:
        """Send what is due; return the number sent. Raises `LeaseLost` before anything is sent."""
        self._guard()
        return self._outbox.tell(lambda: cost(self._config, self._store.state()))


def cost(config: StewardConfig, state: CampaignState) -> str:
    """Return what bills by the plan's prices, in words."""
    nodes = 0
    if state.gpu_nodes_up:
        nodes = state.archives_on[0] if state.archives_on else config.spec.nodes.count
    rate = config.base_usd_per_hour + nodes * config.node_usd_per_hour
    with_ = f"with {nodes} GPU nodes" if nodes else "without a GPU node"
    return f"about {rate.quantize(Decimal('0.01'))} USD/h {with_}, until the teardown"

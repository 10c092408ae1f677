"""The list of checkpoints on the local and shared tiers, in the record: nobody outside the cluster can look there."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

from infra.checkpoints.find import TIERS, TIERS_EVERY_S
from infra.checkpoints.place import FolderPlace, Place
from infra.record.store import CampaignStore
from infra.steward.seeing import agents
from trainer.contract import AGENT_PORT, SHARED_CHECKPOINTS
from trainer.contract.listing import CHECKPOINTS_PATH, Listed, Listing

_TIMEOUT_S = 2.0
_NODES_AT_ONCE = 4
"""Few, since an answer may be large."""


class TierWatch:
    """Looks every few seconds, in a thread of its own, and writes the list when it has changed."""

    def __init__(
        self, store: CampaignStore, shared: Path = Path(SHARED_CHECKPOINTS), bucket: Place | None = None
    ) -> None:
        """`bucket`: the shared tier in S3, instead of the folder `shared`."""
        self._store, self.bucket = store, bucket
        self._shared = bucket or FolderPlace(shared / store.campaign)
        self._next, self._said = 0.0, ""
        self._looking: threading.Thread | None = None

    def tell(self, agents: Mapping[str, str]) -> None:
        """Start a look if one is due and none runs. Never raises or waits. `agents`: pod name -> pod IP."""
        if time.monotonic() < self._next or (self._looking is not None and self._looking.is_alive()):
            return
        self._next = time.monotonic() + TIERS_EVERY_S
        look_arguments = (tuple(agents.values()),)
        self._looking = threading.Thread(target=self.look, args=look_arguments, name="tiers", daemon=True)
        self._looking.start()

    def look(self, addresses: tuple[str, ...]) -> Listing:
        """Return the list. Omit nodes that do not answer: their disks may be unchanged or gone."""
        rows = self._shared.shared_rows(self._store.campaign)
        with ThreadPoolExecutor(_NODES_AT_ONCE, thread_name_prefix="tiers") as pool:
            for node_rows in pool.map(_of_node, addresses):
                rows += node_rows
        listing = Listing(rows=tuple(rows))
        if (listing_text := listing.model_dump_json()) != self._said:
            self._store.put_json(TIERS, listing.model_dump(mode="json"))
            self._said = listing_text
        return listing


def _of_node(address: str) -> list[Listed]:
    try:
        answer = agents.get(address, CHECKPOINTS_PATH, _TIMEOUT_S, agents.LISTING_BYTES, AGENT_PORT)
        return list(Listing.model_validate_json(answer.body).rows) if answer.code == HTTPStatus.OK else []
    except (OSError, ValueError):
        return []

"""The steward's attributes that its helper modules use; the protocol breaks an import cycle."""

from __future__ import annotations

from typing import Protocol

from lightkube import Client

from infra.clock import Clock
from infra.cluster.standing.borrowed import GangNodes
from infra.cluster.steward_config import StewardConfig
from infra.record.lease import Lease
from infra.record.store import CampaignStore
from infra.spec.names import Names
from infra.steward.seeing.committed import Committed
from infra.steward.seeing.logs import LogShipper
from infra.steward.seeing.observe import Observer


class Parts(Protocol):
    client: Client
    clock: Clock
    committed: Committed
    config: StewardConfig
    lease: Lease
    logs: LogShipper
    names: Names
    nodes: GangNodes
    observer: Observer
    store: CampaignStore

    def committed_step(self) -> int: ...

    def pause(self) -> None: ...

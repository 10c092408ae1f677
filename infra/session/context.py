"""What every stage is given: the spec, the names, the account, the record, the lease, a voice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from infra.aws.account import Account
from infra.console.progress import Progress
from infra.plan.plan import Plan
from infra.record.events import CampaignState, Stage
from infra.record.lease import Lease
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.spec.names import Buckets, Names


def turns(seconds: float, interval: float = 0.5) -> Iterator[None]:
    """Turns of a bounded wait; ends silently when the time is up. Each turn should announce where it is.

    The last turn begins after the time: whoever was kept from looking for so long looks once more.
    """
    until, over = time.monotonic() + seconds, False
    while not over:
        over = time.monotonic() >= until
        yield
        if not over:
            time.sleep(interval)


@dataclass
class Context:
    spec: Spec
    plan: Plan
    account: Account
    operator_arn: str
    buckets: Buckets
    store: CampaignStore
    lease: Lease
    progress: Progress
    results: Path
    """Folder on this machine that outlives the campaign: report, certificate, what is kept on purpose."""
    deadline: datetime
    identity: str = ""
    """Of the campaign, beyond its name; empty where none is recorded: a bake ahead, a look at what was never begun."""
    outputs: dict[Stage, dict[str, Any]] = field(default_factory=dict)
    """Outputs of the stages that have finished, by stage."""

    @property
    def names(self) -> Names:
        return Names(self.spec.campaign)

    def guard(self) -> None:
        """Before every mutation: raises `LeaseLost` when this driver no longer drives."""
        self.lease.check()

    def state(self) -> CampaignState:
        return self.store.state()

    def turns(self, seconds: float, interval: float = 0.5) -> Iterator[None]:
        return turns(seconds, interval)

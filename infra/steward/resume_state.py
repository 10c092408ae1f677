"""The state that a new steward reads from the record: history, money and the attempt in flight."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from infra.cluster.steward_config import StewardConfig
from infra.record import meter
from infra.record.events import CampaignState
from infra.record.store import LIVE, CampaignStore
from infra.steward.decide import Attempt, FailureClass, History


def spent(store: CampaignStore, config: StewardConfig, now: datetime) -> Decimal:
    """Return the USD spent from the begin of provisioning to `now`, which comes from `infra.clock.Clock`."""
    nodes = config.node_usd_per_hour * config.spec.nodes.count
    return meter.spent(store.events(), store.get_json(LIVE), config.base_usd_per_hour, nodes, now)


def history(state: CampaignState) -> History:
    """Return the attempts that failed since the last relaunch by a person, and all repairs."""
    ended = tuple(
        Attempt(
            number=a["attempt"],
            failure=FailureClass(a["failure"]),
            ended_at=a["ended_at"],
            committed_at_launch=a["committed_step"],
            committed_at_end=a["committed_at_end"],
            dead_nodes=tuple(a.get("dead_nodes", ())),
            first_failed=a.get("first_failed"),
            instances=a.get("instances", {}),
        )
        for a in state.attempts
        if a.get("failure") and a["attempt"] > state.judged
    )
    return History(attempts=ended, repairs=state.repairs)


def in_flight(state: CampaignState) -> tuple[int, bool]:
    """Return (newest attempt, whether it is in flight)."""
    newest = state.attempts[-1] if state.attempts else None
    return (newest["attempt"], "ended_at" not in newest) if newest else (0, False)


def done(state: CampaignState) -> bool:
    """Return whether the newest attempt reached the last step; its steward may have ended before it recorded more."""
    newest = state.attempts[-1] if state.attempts else None
    return newest is not None and "ended_at" in newest and newest.get("failure") is None

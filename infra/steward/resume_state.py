"""The state that a new steward reads from the record: history, money and the attempt in flight."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from infra.cluster.steward_config import StewardConfig
from infra.record import meter
from infra.record.events import CampaignState
from infra.record.live import live_figures
from infra.record.store import CampaignStore
from infra.steward.decide import Attempt, FailureClass, History


def spent(store: CampaignStore, config: StewardConfig, now: datetime) -> Decimal:
    """Return the USD spent from the begin of provisioning to `now`, which comes from `infra.clock.Clock`."""
    nodes = config.node_usd_per_hour * config.spec.nodes.count
    return meter.spent(store.events(), live_figures(store), config.base_usd_per_hour, nodes, now)


def history(state: CampaignState) -> History:
    """Return the attempts that failed since the last relaunch by a person, and all repairs."""
    ended = tuple(failed(a) for a in state.attempts if a.get("failure") and a["attempt"] > state.judged)
    return History(attempts=ended, repairs=state.repairs)


def failed(told: Mapping[str, Any]) -> Attempt:
    """Return an attempt that failed from what the events of its launch and its end tell."""
    return Attempt(
        number=told["attempt"],
        failure=FailureClass(told["failure"]),
        ended_at=told["ended_at"],
        committed_at_launch=told.get("committed_step", -1),
        committed_at_end=told.get("committed_at_end", told.get("committed_step", -1)),
        dead_nodes=tuple(told.get("dead_nodes", ())),
        first_failed=told.get("first_failed"),
        instances=told.get("instances", {}),
    )


def in_flight(state: CampaignState) -> tuple[int, bool]:
    """Return (newest attempt, whether it is in flight)."""
    newest = state.attempts[-1] if state.attempts else None
    return (newest["attempt"], "ended_at" not in newest) if newest else (0, False)


def done(state: CampaignState) -> bool:
    """Return whether the newest attempt reached the last step; its steward may have ended before it recorded more."""
    newest = state.attempts[-1] if state.attempts else None
    return newest is not None and "ended_at" in newest and newest.get("failure") is None

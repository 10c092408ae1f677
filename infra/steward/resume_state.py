"""What a new steward takes over: history, money and the attempt in flight, all from the record."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from infra.cluster.steward_config import StewardConfig
from infra.record import meter
from infra.record.events import CampaignState
from infra.record.store import LIVE, CampaignStore
from infra.steward.decide import Attempt, FailureClass, History


def spent(store: CampaignStore, config: StewardConfig, now: datetime) -> Decimal:
    """What was spent before this steward, since provisioning began. `now`: by no machine's own clock."""
    nodes = config.node_usd_per_hour * config.spec.nodes.count
    return meter.spent(store.events(), store.get_json(LIVE), config.base_usd_per_hour, nodes, now)


def history(state: CampaignState) -> History:
    """The attempts that failed since a person last judged, and all repairs."""
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
    """(newest attempt, whether it is in flight), as the record has it."""
    newest = state.attempts[-1] if state.attempts else None
    return (newest["attempt"], "ended_at" not in newest) if newest else (0, False)


def done(state: CampaignState) -> bool:
    """The newest attempt reached the last step, though nobody came to say that training is over."""
    newest = state.attempts[-1] if state.attempts else None
    return newest is not None and "ended_at" in newest and newest.get("failure") is None

"""Money according to the record: spent before the steward counts, and billed per hour now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from infra.record.events import CampaignState, Event, Kind, Stage


def spent(
    events: Iterable[Event],
    live: Mapping[str, Any] | None,
    base_usd_per_hour: Decimal,
    nodes_usd_per_hour: Decimal,
    now: datetime,
) -> Decimal:
    """Return USD since provisioning began: the steward's newest figure extrapolated, or the stages' times x rates.

    GPU nodes count from preflight's request: EC2 bills from their start, not from the steward's. Nodes that prepare the
    data count by the price in their event.
    """
    total = Decimal(str(live["spent_usd"])) if live is not None else Decimal(0)
    at = datetime.fromisoformat(live["at"]) if live is not None else None
    base, up, data = False, Decimal(0), Decimal(0)
    for event in sorted(events, key=lambda event: (event.at, event.writer, event.sequence)):
        if at is not None and event.at > at:
            total += _between(at, event.at, base_usd_per_hour * base + nodes_usd_per_hour * up + data)
        at = max(at, event.at) if at is not None else event.at
        base, up = _after(event, base, up)
        data = _data_nodes(event, data)
    if at is None:
        return total
    return total + _between(at, now, base_usd_per_hour * base + nodes_usd_per_hour * up + data)


def rate(
    state: CampaignState, live: Mapping[str, Any] | None, base_usd_per_hour: Decimal, nodes_usd_per_hour: Decimal
) -> Decimal:
    """Return the present USD per hour: 0 after teardown, the base rate without GPU nodes."""
    begun = state.started_at is not None
    if not begun or Stage.TEARDOWN in state.finished_stages:
        return Decimal(0)
    if not state.gpu_nodes_up:
        return base_usd_per_hour + state.data_usd_per_hour
    if part := state.archives_on or state.pilot_on:
        nodes, of = part
        return base_usd_per_hour + nodes_usd_per_hour * nodes / of
    if live is not None:
        return Decimal(str(live["usd_per_hour"]))
    return base_usd_per_hour + nodes_usd_per_hour


def _after(event: Event, base: bool, up: Decimal) -> tuple[bool, Decimal]:
    """Return whether the campaign's stack bills after this event, and the share of its GPU nodes that does."""
    stage = event.data.get("stage")
    match event.kind:
        case Kind.STAGE_STARTED if stage not in (Stage.CERTIFY, Stage.REPORT):
            return True, Decimal(1) if stage == Stage.PREFLIGHT else up
        case Kind.STAGE_FINISHED if stage == Stage.TEARDOWN:
            return False, Decimal(0)
        case Kind.STAGE_FAILED if stage == Stage.PREFLIGHT and not event.data.get("cut_off"):
            return base, Decimal(0)
        case Kind.PILOT_PROVEN:
            return base, Decimal(1)
        case Kind.ARCHIVE_BEGUN | Kind.PILOT_BEGUN:
            return base, Decimal(event.data["nodes"]) / event.data["of"]
        case Kind.NODES_AT_ZERO:
            return base, Decimal(0)
    return base, up


def _data_nodes(event: Event, usd_per_hour: Decimal) -> Decimal:
    """Return what the nodes that prepare the data cost per hour after this event. Earlier versions noted no price."""
    match event.kind:
        case Kind.DATA_BEGUN:
            return Decimal(event.data.get("usd_per_hour", 0))
        case Kind.STAGE_FINISHED if event.data.get("stage") in (Stage.PROVISION, Stage.TEARDOWN):
            return Decimal(0)
        case Kind.DATA_ENDED:
            return Decimal(0)
    return usd_per_hour


def _between(begin: datetime, end: datetime, usd_per_hour: Decimal) -> Decimal:
    return usd_per_hour * Decimal(max(0.0, (end - begin).total_seconds())) / 3600

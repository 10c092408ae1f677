"""`bivouac close NAME`: what the closer's build runs. It does what `bivouac down NAME` does, under the campaign's
lease, but only when nobody drives the campaign and it is over; else it says why not, and costs a minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.console import Console

from infra import target
from infra.cli.end.down import ask_to_stop, end
from infra.cli.records import record_of
from infra.cluster.steward_config import STEWARD_LEASE
from infra.errors import LeaseHeld
from infra.record.events import CampaignState, Kind, Stage
from infra.record.store import CampaignStore
from infra.session.session import CLOCK, DRIVER_LEASE, LEASE_TTL, opened, stored_plan, stored_spec

SILENT = timedelta(minutes=20)
"""A steward that Kubernetes starts again is back within minutes, also on another node."""


def close_command(campaign: str, region: str, console: Console) -> int:
    """End the campaign, or say why it is not ended now. Raises what `down` raises."""
    store = record_of(campaign, region)
    state = store.state()
    found = store.lease(DRIVER_LEASE, LEASE_TTL).current()
    if found is not None and found.living:
        console.print(f"{campaign} is driven by {found.record.holder}: left to it", markup=False, soft_wrap=True)
        return 0
    if state.ended or (why := why_over(store, state, datetime.now(UTC))) is None:
        unsettled = "is not archived, and waits for a person" if state.closed else "is not over"
        said = "has ended" if state.ended else unsettled
        console.print(f"{campaign} {said}: nothing to do", markup=False, soft_wrap=True)
        return 0
    console.print(f"{campaign} is ended by the closer: {why}", markup=False, soft_wrap=True)
    target.have_engine()
    spec = stored_spec(store)
    try:
        with opened(spec, stored_plan(store, spec), console, target.about()) as context:
            store.append(Kind.CLOSING, why=why)
            if state.outcome is None:
                ask_to_stop(store)
            end(context)
    except LeaseHeld as held:
        console.print(f"somebody was quicker: {held}", markup=False, soft_wrap=True)
    return 0


def why_over(store: CampaignStore, state: CampaignState, now: datetime) -> str | None:
    """Return why nobody will go on with a campaign that nobody drives; None if its steward or a person still may."""
    if state.abandoned or Stage.TEARDOWN in state.finished_stages or state.running_stage is Stage.TEARDOWN:
        return "its teardown was begun and nobody finished it"
    if state.closed:
        # What is not archived, a person archives or gives up.
        return "the steward is done" if state.settled else None
    clock = store.get_json(CLOCK)
    if clock is not None and now >= datetime.fromisoformat(clock["deadline"]):
        return f"the deadline {clock['deadline']} has passed"
    if state.attempts and (silence := _silence(store)) > SILENT:
        return f"the steward has been silent for {int(silence.total_seconds() // 60)} minutes"
    return None


def _silence(store: CampaignStore) -> timedelta:
    """Return how long ago the steward's lease was renewed, by S3's clock; zero if it never held it."""
    found = store.lease(STEWARD_LEASE, LEASE_TTL).current()
    return timedelta() if found is None else timedelta(seconds=found.age_s)

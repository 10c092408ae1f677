"""`bivouac close NAME`: what the closer's build runs. It does what `bivouac down NAME` does, under the campaign's
lease, but only when nobody drives the campaign and it is over; else it says why not, tells people what is due, and
costs a minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.console import Console

from infra import target
from infra.cli.end.down import ask_to_stop, end
from infra.cli.end.unattended import attend
from infra.cli.records import record_of
from infra.cluster.steward_config import STEWARD_LEASE
from infra.errors import LeaseHeld
from infra.record.events import CampaignState, Kind, Stage
from infra.record.store import CampaignStore
from infra.session.closer import driver_of, is_left
from infra.session.session import LEASE_TTL, opened, stored_deadline, stored_plan, stored_spec

SILENT = timedelta(minutes=20)
"""A steward that Kubernetes starts again is back within minutes, also on another node."""


def close_command(campaign: str, region: str, console: Console) -> int:
    """End the campaign, or say why it is not ended now. Raises what `down` raises."""
    store = record_of(campaign, region)
    state = store.state()
    why, rather = why_over(store, state, datetime.now(UTC))
    if why is None:
        console.print(f"{campaign} {rather}: nothing to do", markup=False, soft_wrap=True)
        driver = driver_of(store)
        if not state.ended and not (driver is not None and driver.living):
            attend(store, console)
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


def why_over(store: CampaignStore, state: CampaignState, now: datetime) -> tuple[str | None, str]:
    """Return why the closer ends a campaign; else None, and what the campaign is: nobody but the closer would go on."""
    if state.ended:
        return None, "has ended"
    driver = driver_of(store)
    if driver is not None and driver.living:
        return None, f"is driven by {driver.record.holder}"
    if state.closed and not state.settled and not state.abandoned:
        return None, "is not archived, and waits for a person"
    deadline = stored_deadline(store)
    if deadline is not None and now >= deadline:
        return f"the deadline {deadline.isoformat()} has passed", ""
    if not is_left(driver, state):
        return None, "waits for whoever interrupted its driver, until its deadline"
    if state.abandoned or Stage.TEARDOWN in state.finished_stages or state.running_stage is Stage.TEARDOWN:
        return "its teardown was begun and nobody finished it", ""
    if state.closed:
        return "the steward is done", ""
    if state.attempts and (silence := _silence(store)) > SILENT:
        return f"the steward has been silent for {int(silence.total_seconds() // 60)} minutes", ""
    return None, "is not over"


def _silence(store: CampaignStore) -> timedelta:
    """Return how long ago the steward's lease was renewed, by S3's clock; zero if it never held it."""
    found = store.lease(STEWARD_LEASE, LEASE_TTL).current()
    return timedelta() if found is None else timedelta(seconds=found.age_s)

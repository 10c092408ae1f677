"""What the money and the time that are left still cover. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from infra.steward.seeing.views import Observation, Policy


def out_of_means(view: Observation, policy: Policy) -> str | None:
    """Return why the money or time left does not cover one more interval and the archive; None when it does."""
    if view.now + policy.interval_and_archive > view.deadline:
        return f"the deadline {view.deadline.isoformat()} leaves no time for another interval and the archive"
    interval_usd = view.usd_per_hour * Decimal(policy.interval_and_archive.total_seconds()) / 3600
    if view.spent_usd + interval_usd > policy.budget_usd:
        return f"{view.spent_usd:.2f} of {policy.budget_usd} USD are spent: the rest is for the archive"
    return None


def hold_until(view: Observation, policy: Policy, hold_start: datetime) -> datetime:
    """Return the earliest of the hold's end, the deadline less the archive, and the budget less the archive."""
    ends = [hold_start + policy.hold_for, view.deadline - policy.archive]
    if view.usd_per_hour > 0:
        hours = float((policy.budget_usd - view.spent_usd) / view.usd_per_hour)
        if hours < 24 * 365:
            ends.append(view.now + timedelta(hours=hours) - policy.archive)
    return min(ends)


def archive_uncovered(view: Observation, policy: Policy) -> str | None:
    """Return why the money or time left covers the archive alone; None when it covers more."""
    if view.now + policy.archive >= view.deadline:
        return f"the deadline {view.deadline.isoformat()} leaves time for the archive only"
    archive_usd = view.usd_per_hour * Decimal(policy.archive.total_seconds()) / 3600
    if view.spent_usd + archive_usd >= policy.budget_usd:
        return f"{view.spent_usd:.2f} of {policy.budget_usd} USD are spent: the rest is for the archive"
    return None

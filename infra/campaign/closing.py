"""When the closer gives a campaign's GPU nodes back, and when it ends the campaign: by record, leases, clock and bill.

From the first GPU node on somebody ends it: a driver by its own waits, the steward by the spec's limits, else the
closer. No rule leaves GPU nodes to the deadline.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from infra.cluster.steward_config import LEASE_TTL, STEWARD_LEASE
from infra.console.words import moment
from infra.errors import NotProven, UserError
from infra.inventory.stakes import refuse_unproven
from infra.plan.estimates.clock import launch_wait
from infra.plan.plan import Plan
from infra.record import meter
from infra.record.events import CampaignState, Stage
from infra.record.identity import read_identity
from infra.record.lease import StoredLease
from infra.record.objects import Unreadable
from infra.record.payloads.attempts import LaunchBudget
from infra.record.store import CampaignStore
from infra.session.closer import driver_of, is_left
from infra.session.context import Context
from infra.session.session import stored_deadline, stored_plan, stored_spec
from infra.spec import duration

SILENT = timedelta(minutes=20)
"""A steward that Kubernetes starts again is back within minutes, also on another node."""


class Act(StrEnum):
    LEAVE = "leave"
    GIVE_BACK = "give back"
    """Set the nodes to zero; the rest waits for a person, or for a steward that comes back and archives."""
    END = "end"
    """Set the nodes to zero, then do what `bivouac down` does."""


@dataclass(frozen=True)
class CloserView:
    """What the closer judges by."""

    state: CampaignState
    now: datetime
    driver: StoredLease | None
    steward: StoredLease | None
    deadline: datetime | None
    money: tuple[Decimal, Decimal] | None
    """USD spent, and the budget; None if spec or plan cannot be read."""
    loses_nothing: bool
    """A teardown would not be refused for what is not archived."""
    data_limit: timedelta | None = None
    """Longest time that the Job may prepare the data; None: no node does, or the spec cannot be read."""

    @property
    def driven(self) -> bool:
        return self.driver is not None and self.driver.living

    def silence(self, lease: StoredLease | None) -> timedelta:
        """Return for how long a lease was not renewed; without one, the time since the newest launch, or the begin."""
        starts = [attempt.launched_at for attempt in self.state.attempts] or [self.state.started_at or self.now]
        return self.now - max(starts) if lease is None else timedelta(seconds=lease.age_s)

    @property
    def steward_gone(self) -> bool:
        return self.silence(self.steward) > SILENT


def look(store: CampaignStore, now: datetime) -> CloserView:
    """Return the view of a campaign. Raises what S3 answers: what cannot be seen is no reason to touch anything."""
    state, loses_nothing, money, deadline, data_limit = store.state(), True, None, None, None
    try:
        refuse_unproven(state, store.campaign, read_identity(store))
    except (NotProven, Unreadable):
        loses_nothing = False
    with suppress(Unreadable, UserError):  # then leases alone decide, or time
        deadline = stored_deadline(store)
        spec = stored_spec(store)
        data_limit = spec.data.prepare.limit if spec.data is not None and spec.prepares_data else None
        money = spent_usd(store, stored_plan(store, spec), now), spec.money.budget_usd
    steward = store.lease(STEWARD_LEASE, LEASE_TTL).current()
    return CloserView(state, now, driver_of(store), steward, deadline, money, loses_nothing, data_limit)


def judge(view: CloserView) -> tuple[Act, str]:
    """Return what the closer does now, and why; of `LEAVE`, what the campaign is. Pure."""
    state, dear = view.state, _budget_excess(view)
    if state.ended:
        return Act.LEAVE, "has ended"
    if view.driver is not None and view.driven:
        if dear and state.gpu_nodes_up and state.running_stage is not Stage.TEARDOWN:
            return Act.GIVE_BACK, dear
        return Act.LEAVE, f"is driven by {view.driver.record.holder}"
    if state.closed and not state.settled and not state.abandoned:
        return Act.LEAVE, "is not archived, and waits for a person"
    left, late = is_left(view.driver, state), view.deadline is not None and view.now >= view.deadline
    reason = _end_reason(view, left, late) or _neglect_reason(view) or dear
    if reason and (left or late) and (view.loses_nothing or not view.steward_gone):
        return Act.END, reason
    # A preflight that failed has ended on record, and reserved nodes stay after it.
    if reason and (state.gpu_nodes_up or (state.launch_budget is not None and not state.attempts)):
        return Act.GIVE_BACK, reason
    if state.data_begun_at is not None and (data_reason := _data_excess(view) or reason):
        return Act.GIVE_BACK, data_reason
    if left and state.gpu_nodes_up and (reason := _driver_silence(view)):
        return Act.GIVE_BACK, reason
    if reason and not view.loses_nothing and view.steward_gone:
        return Act.LEAVE, f"is not archived, and waits for a person: {reason}"
    waits = "waits for whoever interrupted its driver, until its deadline"
    return Act.LEAVE, "is not over" if left else waits


def _end_reason(view: CloserView, left: bool, late: bool) -> str:
    """Return why nobody but the closer would go on with the campaign."""
    state = view.state
    if late and view.deadline is not None:
        return f"the deadline {view.deadline.isoformat()} has passed"
    if left and (state.abandoned or Stage.TEARDOWN in (*state.finished_stages, state.running_stage)):
        return "its teardown was begun and nobody finished it"
    return "the steward is done" if left and state.closed else ""


def _neglect_reason(view: CloserView) -> str:
    """Return why nobody watches the GPU nodes any more, or brings them to training."""
    state, budget = view.state, view.state.launch_budget
    if not view.steward_gone:
        return ""
    if state.attempts:
        return f"the steward has been silent for {view.silence(view.steward) // timedelta(minutes=1)} minutes"
    if budget is not None and view.now >= budget.until:
        return f"training did not run by {moment(budget.until)}, the end of its launch budget"
    if budget is not None and view.money is not None and view.money[0] > budget.usd:
        return f"training did not run before {budget.usd} USD were spent, the end of its launch budget"
    return ""


def _driver_silence(view: CloserView) -> str:
    """Return that a driver died before anything trained: it may come back to the stack, but its nodes do not wait."""
    if view.state.attempts or not view.steward_gone or (silence := view.silence(view.driver)) <= SILENT:
        return ""
    return f"its driver has been silent for {silence // timedelta(minutes=1)} minutes, and nothing trains"


def _data_excess(view: CloserView) -> str:
    """Return that nodes are up for a Job that has ended by its own limit, which nobody gives back."""
    begun_at, limit = view.state.data_begun_at, view.data_limit
    if begun_at is None or limit is None or view.now < begun_at + limit:
        return ""
    return f"the nodes for the data have had the {duration.text(limit)} that `data.prepare.limit` gives them"


def _budget_excess(view: CloserView) -> str:
    """Return that the bill has passed the budget. The archive of a steward that lives has bounds of its own."""
    archives = view.state.outcome is not None and not view.steward_gone
    if view.money is None or view.money[0] <= view.money[1] or archives:
        return ""
    return f"the bill of {view.money[0]:.2f} USD has passed the budget of {view.money[1]} USD"


def spent_usd(store: CampaignStore, plan: Plan, now: datetime) -> Decimal:
    """Return USD spent according to the record."""
    return meter.read(plan.cost, store.events(), now).spent_usd


def give_launch_budget(context: Context) -> None:
    """Record the time and the bill by which training must run, before GPU nodes are asked for. It binds nobody who
    lives: driver and steward have their own waits."""
    now = datetime.now(UTC)
    end = min(now + launch_wait(context.spec), context.deadline)
    rate = Decimal(str(context.plan.totals.usd_per_hour.value))
    usd = spent_usd(context.store, context.plan, now) + rate * Decimal((end - now).total_seconds()) / 3600
    context.guard()
    context.store.append(LaunchBudget(until=end.isoformat(), usd=f"{usd:.2f}"))

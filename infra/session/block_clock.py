"""The clock of a campaign in a capacity block: it ends with the block, and nodes are requested only after its start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from infra.aws.account import Account
from infra.aws.blocks import LOST, Block, find_block, refuse_unfit
from infra.errors import PermanentError
from infra.plan.estimates.clock import BEFORE_TRAINING, seconds
from infra.plan.plan import Plan
from infra.session.context import Context
from infra.spec import duration
from infra.spec.campaign import Spec

LEAD = timedelta(minutes=60)
"""Provisioning starts this long before a block: the control plane takes 10 to 20 minutes, the bake 10."""
_NEAR = timedelta(minutes=2)
_FAR_S, _NEAR_S = 15.0, 0.5
"""Seconds between two requests for a block that begins later, or soon."""


def clock_of(account: Account, spec: Spec, plan: Plan, now: datetime) -> tuple[datetime, datetime]:
    """Return (begin, deadline) of a campaign that starts now; in a block, times within the block and `LEAD` before it.

    Raises `UserError` if the block does not fit the campaign.
    """
    block = find_block(account, spec)
    if block is None:
        return now, now + spec.money.deadline
    refuse_unfit(block, spec, now, _needed_time(plan, in_block=now >= block.starts))
    start = max(now, block.starts - LEAD)
    deadline = start + spec.money.deadline
    return start, deadline if block.nodes_until is None else min(deadline, block.nodes_until)


def await_lead(context: Context) -> None:
    """Wait until `LEAD` before the block; nothing is created yet, since an idle control plane would bill for days.

    Raises `PermanentError` as soon as the block is lost: a payment may fail up to 12 hours after the purchase.
    """
    block = find_block(context.account, context.spec)
    if block is None or datetime.now(UTC) >= block.starts - LEAD:
        return
    end = block.starts - LEAD
    begins = block.starts.isoformat(timespec="minutes")
    with context.progress.stage(
        "wait", f"the block begins at {begins}; nothing is created yet; you may interrupt this"
    ):
        while block.state not in LOST and (left := (end - datetime.now(UTC)).total_seconds()) > 0:
            context.guard()
            context.progress.step(f"{_round(end)} until the campaign is provisioned, an hour before the block")
            for _ in context.turns(min(left, _FAR_S), min(left, _FAR_S)):
                pass
            block = find_block(context.account, context.spec) or block
        if block.state in LOST:
            raise _never(context, block, timedelta(0), has_stacks=False)


def await_active(context: Context) -> None:
    """Wait until the block can be used; raise `PermanentError` with the billing resources if it is lost or late."""
    block = find_block(context.account, context.spec)
    if block is None:
        return
    patience = context.spec.capacity_timeout
    end = min(max(block.starts, datetime.now(UTC)) + patience, context.deadline)
    while block.state != "active" and block.state not in LOST and datetime.now(UTC) < end:
        context.guard()
        is_near = block.starts - datetime.now(UTC) < _NEAR
        context.progress.step(
            f"block {block.reservation_id} is {block.state}; it begins at {block.starts.isoformat(timespec='minutes')}"
            f"{'' if is_near else f', in {_round(block.starts)}'}; the GPU group stays at zero"
        )
        for _ in context.turns(_NEAR_S if is_near else _FAR_S, _NEAR_S):
            pass
        block = find_block(context.account, context.spec) or block
    if block.state != "active":
        raise _never(context, block, patience)


def _never(context: Context, block: Block, patience: timedelta, *, has_stacks: bool = True) -> PermanentError:
    idle_text = f"the rest of the campaign bills {Decimal(context.plan.totals.usd_per_hour_idle.value):f} USD per hour"
    reason = LOST.get(block.state, f"it is late by more than {duration.text(patience)} (recovery.capacity_timeout)")
    name = context.spec.campaign
    return PermanentError(
        "the capacity block did not become active",
        seen=f"{block.reservation_id} is {block.state}, planned begin {block.starts.isoformat(timespec='minutes')}: "
        f"{reason}; no GPU node was requested, none bills; {idle_text if has_stacks else 'nothing else was made yet'}",
        cure=f"see the block in EC2's console and AWS support; once it is active `bivouac run` continues; "
        f"`bivouac down {name}` ends all that bills",
    )


def _needed_time(plan: Plan, *, in_block: bool) -> timedelta:
    """Return the time from the block's begin, or from now if it has begun, to the end of the archive."""
    stages = ("preflight", "launch", "supervise", "archive")
    return timedelta(seconds=float(seconds(plan.clock, *(BEFORE_TRAINING if in_block else ()), *stages)))


def _round(moment: datetime) -> str:
    return duration.text(timedelta(seconds=max(0, int((moment - datetime.now(UTC)).total_seconds()))))

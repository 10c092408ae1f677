"""What the closer does is one table of what it sees: who lives, how far the campaign is, clock and bill."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from infra.campaign.closing import SILENT, Act, CloserView, judge
from infra.record.events import CampaignState, Stage
from infra.record.lease import LeaseRecord, StoredLease
from infra.record.payloads.attempts import AttemptLaunched, AttemptRecord, LaunchBudget
from infra.record.payloads.checkpoints import CheckpointUnrecognised
from infra.record.payloads.outputs import StageOutput
from infra.record.payloads.stages import Certified
from tests.worlds.closer import LAPTOP
from tests.worlds.s3 import NOON

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
TRAINS = AttemptRecord(launched=AttemptLaunched(attempt=1), launched_at=NOON - timedelta(hours=2))
PAST = LaunchBudget(until=NOON, usd=Decimal(5))
AHEAD = LaunchBudget(until=NOON + MINUTE, usd=Decimal(5))
EMPTY = CheckpointUnrecognised(files=0, bytes=0, why="")


def lease(age: timedelta, released: bool = False) -> StoredLease:
    record = LeaseRecord(holder=LAPTOP, renewed_at=NOON - age, ttl_s=30, released=released)
    return StoredLease(record, "e", age.total_seconds())


LIVES, DEAD, LONG_DEAD = lease(timedelta(0)), lease(2 * MINUTE), lease(SILENT + MINUTE)
INTERRUPTED = lease(2 * MINUTE, released=True)


def view(
    driver: StoredLease | None = DEAD,
    steward: StoredLease | None = LONG_DEAD,
    deadline: timedelta | None = timedelta(hours=1),
    money: tuple[int, int] | None = (1, 10),
    loses_nothing: bool = True,
    **state: Any,
) -> CloserView:
    """A campaign whose GPU nodes are up, whose driver has just died, and whose steward is silent or never was there."""
    campaign_state = CampaignState(**{"started_at": NOON - timedelta(hours=3), "gpu_nodes_up": True, **state})
    usd = None if money is None else (Decimal(money[0]), Decimal(money[1]))
    return CloserView(
        campaign_state, NOON, driver, steward, None if deadline is None else NOON + deadline, usd, loses_nothing
    )


def data_nodes(driver: StoredLease, begun_at: datetime | None, **changes: Any) -> CloserView:
    """A campaign whose nodes prepare the data, for three hours at most, before any GPU node."""
    limit = changes.pop("data_limit", 3 * HOUR)
    known = view(driver, steward=None, deadline=20 * HOUR, gpu_nodes_up=False, data_begun_at=begun_at, **changes)
    return replace(known, data_limit=limit)


CASES: dict[str, tuple[CloserView, Act, str]] = {
    "it has ended": (
        view(deadline=-MINUTE, finished_stages={Stage.REPORT: StageOutput()}, certificate=Certified(clean=True)),
        Act.LEAVE,
        "has ended",
    ),
    "a driver lives": (view(LIVES, deadline=-MINUTE), Act.LEAVE, "is driven by"),
    "a driver lives, and the bill is the budget to the cent": (view(LIVES, money=(10, 10)), Act.LEAVE, "is driven by"),
    "a driver lives, and the bill is over the budget": (view(LIVES, money=(11, 10)), Act.GIVE_BACK, "the bill of"),
    "the same, and its nodes are gone": (view(LIVES, money=(11, 10), gpu_nodes_up=False), Act.LEAVE, "is driven by"),
    "the same, and it tears down": (view(LIVES, money=(11, 10), running_stage="teardown"), Act.LEAVE, "is driven by"),
    "the steward is done and nothing is archived": (
        view(closed=True, attempts=(TRAINS,), deadline=-MINUTE, loses_nothing=False),
        Act.LEAVE,
        "is not archived, and waits for a person",
    ),
    "the same, and a person gave it up": (
        view(closed=True, attempts=(TRAINS,), abandoned=True), Act.END, "its teardown was begun"
    ),
    "the deadline is now": (view(deadline=timedelta(0)), Act.END, "the deadline"),
    "the deadline is past, and the driver was interrupted": (view(INTERRUPTED, deadline=-MINUTE), Act.END, "the dead"),
    "the deadline is past, the steward lives and may archive": (
        view(deadline=-MINUTE, steward=DEAD, loses_nothing=False, attempts=(TRAINS,)), Act.END, "the deadline"
    ),
    "the deadline is past, and what is not archived would be lost": (
        view(deadline=-MINUTE, loses_nothing=False, attempts=(TRAINS,)), Act.GIVE_BACK, "the deadline"
    ),
    "the same without nodes": (
        view(deadline=-MINUTE, loses_nothing=False, attempts=(TRAINS,), gpu_nodes_up=False),
        Act.LEAVE,
        "is not archived, and waits for a person: the deadline",
    ),
    "a teardown was begun": (view(running_stage="teardown"), Act.END, "its teardown was begun"),
    "a teardown was done, and not certified": (
        view(finished_stages={Stage.TEARDOWN: StageOutput()}), Act.END, "its teardown was begun"
    ),
    "a teardown was begun and interrupted": (
        view(INTERRUPTED, running_stage="teardown", gpu_nodes_up=False), Act.LEAVE, "waits for whoever interrupted"
    ),
    "the steward is done": (
        view(closed=True, attempts=(TRAINS,), committed_at_finish=-1, unrecognised=EMPTY),
        Act.END,
        "the steward is done",
    ),
    "the steward is silent": (
        view(attempts=(TRAINS,), loses_nothing=False), Act.GIVE_BACK, "the steward has been silent for 21 minutes"
    ),
    "the steward is silent for as long as it may be": (
        view(attempts=(TRAINS,), loses_nothing=False, steward=lease(SILENT)), Act.LEAVE, "is not over"
    ),
    "there never was a lease of the steward's": (
        view(attempts=(TRAINS,), loses_nothing=False, steward=None), Act.GIVE_BACK, "silent for 120 minutes"
    ),
    "training did not run in time": (view(launch_budget=PAST), Act.END, "training did not run by"),
    "it has another minute": (view(launch_budget=AHEAD), Act.LEAVE, "is not over"),
    "the same, and the bill is the launch's to the cent": (
        view(launch_budget=AHEAD, money=(5, 10)), Act.LEAVE, "is not over"
    ),
    "the bill passed the launch's": (
        view(launch_budget=AHEAD, money=(6, 10)), Act.END, "training did not run before 5 USD were spent"
    ),
    "nobody can read the bill": (view(launch_budget=AHEAD, money=None), Act.LEAVE, "is not over"),
    "a failed preflight has its nodes, reserved ones, on no record, and its driver was interrupted": (
        view(INTERRUPTED, launch_budget=PAST, gpu_nodes_up=False), Act.GIVE_BACK, "training did not run by"
    ),
    "the same without a launch budget": (
        view(INTERRUPTED, money=(11, 10), gpu_nodes_up=False), Act.LEAVE, "waits for whoever interrupted"
    ),
    "the bill passed the budget while the steward lives, whose nodes are gone": (
        view(attempts=(TRAINS,), steward=DEAD, money=(11, 10), loses_nothing=False, gpu_nodes_up=False),
        Act.END,
        "the bill of",
    ),
    "the same, and somebody interrupted the driver": (
        view(INTERRUPTED, attempts=(TRAINS,), steward=DEAD, money=(11, 10), loses_nothing=False, gpu_nodes_up=False),
        Act.LEAVE,
        "waits for whoever interrupted",
    ),
    "the steward lives and archives beyond the budget": (
        view(attempts=(TRAINS,), steward=DEAD, money=(11, 10), outcome="done"), Act.LEAVE, "is not over"
    ),
    "the driver has been silent, and nothing trains": (
        view(LONG_DEAD), Act.GIVE_BACK, "its driver has been silent for 21 minutes, and nothing trains"
    ),
    "the driver has been silent for as long as it may be": (view(lease(SILENT)), Act.LEAVE, "is not over"),
    "the same with a steward that lives": (view(LONG_DEAD, steward=DEAD), Act.LEAVE, "is not over"),
    "the driver has been silent, and it has no nodes": (view(LONG_DEAD, gpu_nodes_up=False), Act.LEAVE, "is not over"),
    "a person interrupted the driver long ago": (
        view(lease(2 * SILENT, released=True)), Act.LEAVE, "waits for whoever interrupted its driver"
    ),
    "nobody ever drove": (view(None), Act.LEAVE, "waits for whoever"),
    "nobody ever drove, and the deadline is past": (view(None, deadline=-MINUTE), Act.END, "the deadline"),
    "no deadline is known": (view(INTERRUPTED, deadline=None), Act.LEAVE, "waits for whoever"),
    "the nodes for the data have had their time, and its driver was interrupted": (
        data_nodes(INTERRUPTED, NOON - 3 * HOUR), Act.GIVE_BACK, "have had the 3h that `data.prepare.limit` gives them"
    ),
    "the same, and their driver died": (data_nodes(DEAD, NOON - 3 * HOUR), Act.GIVE_BACK, "have had the 3h"),
    "the same, and it lives": (data_nodes(LIVES, NOON - 3 * HOUR), Act.LEAVE, "is driven by"),
    "the nodes for the data have another minute": (
        data_nodes(INTERRUPTED, NOON - 3 * HOUR + MINUTE), Act.LEAVE, "waits for whoever interrupted"
    ),
    "the data are prepared long ago": (data_nodes(INTERRUPTED, None), Act.LEAVE, "waits for whoever interrupted"),
    "nodes prepare the data, and the bill has passed the budget": (
        data_nodes(INTERRUPTED, NOON - MINUTE, money=(11, 10)), Act.GIVE_BACK, "the bill of"
    ),
    "the same, and nobody can read the spec": (
        data_nodes(INTERRUPTED, NOON - 9 * HOUR, data_limit=None), Act.LEAVE, "waits for whoever interrupted"
    ),
    "the driver left on purpose, and the steward is done": (
        view(INTERRUPTED, detached=NOON, closed=True, abandoned=True), Act.END, "its teardown was begun"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_the_closer_does_follows_from_what_it_sees(case: str) -> None:
    seen, act, words = CASES[case]
    done, reason = judge(seen)
    assert done is act and words in reason

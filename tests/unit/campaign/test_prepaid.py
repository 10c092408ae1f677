"""Nodes whose places bill in any case: how long they are waited for, and that a failure does not give them back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import capacity, launch
from infra.errors import PermanentError
from infra.record.events import CampaignState
from infra.record.payloads.attempts import LaunchBudget
from infra.spec.campaign import Spec
from tests.example import example_spec
from tests.worlds.progress import SilentProgress

BLOCK = {"capacity": "capacity-block", "reservation_id": "cr-0123456789abcdef0", "block_fee_usd": 5000}
RESERVED = {"capacity": "reservation", "reservation_id": "open"}
SPOT = {"capacity": "spot"}
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("nodes", "longest"), [({}, 0.75 * HOUR), (SPOT, 0.75 * HOUR), (RESERVED, 4 * HOUR), (BLOCK, 6 * HOUR)]
)
def test_nodes_that_are_paid_anyway_are_waited_for_longest(nodes: dict[str, Any], longest: timedelta) -> None:
    assert example_spec(nodes=nodes).capacity_timeout == longest
    assert example_spec(nodes=nodes, recovery={"capacity_timeout": "6m"}).capacity_timeout == HOUR / 10
    short = example_spec(nodes=nodes, money={"deadline": "30m"})
    assert short.capacity_timeout == HOUR / 2, "not beyond the deadline"


class PaidNodes:
    """What a failed launch or health check calls; no cluster answers."""

    def __init__(self, spec: Spec, left: timedelta) -> None:
        self.spec, self.deadline = spec, (datetime.now(UTC) + left).replace(microsecond=0)
        self.sizes, self.recorded = list[int](), list[str]()
        self.names = SimpleNamespace(gpu_group="gpu")
        self.store = SimpleNamespace(append=lambda payload: self.recorded.append(payload.kind), events=lambda: ())
        self.progress = SilentProgress()
        self.account = self.guard = self.plan = None
        self.budget: LaunchBudget | None = None

    def state(self) -> CampaignState:
        return CampaignState(launch_budget=self.budget)

    def turns(self, seconds: float) -> Any:
        return iter(())

    def launched(self) -> tuple[()]:
        return ()

    def set_desired(self, count: int) -> None:
        self.sizes.append(count)


@pytest.mark.parametrize(
    ("nodes", "left", "stay"),
    [(BLOCK, HOUR, True), (RESERVED, HOUR, True), (SPOT, HOUR, False), ({}, HOUR, False), (BLOCK, -HOUR, False)],
)
def test_a_failure_keeps_paid_nodes_until_the_deadline_and_gives_others_back(
    monkeypatch: pytest.MonkeyPatch, nodes: dict[str, Any], left: timedelta, stay: bool
) -> None:
    world: Any = PaidNodes(example_spec(nodes=nodes), left)
    monkeypatch.setattr(capacity, "bills_on", lambda context: None)
    monkeypatch.setattr(launch, "GpuNodes", lambda *_: world)
    monkeypatch.setattr(launch, "_came_to", lambda client: "nothing")
    monkeypatch.setattr(launch, "withdraw", lambda context, client: None)
    said = capacity.retreat(world, world)
    with pytest.raises(PermanentError) as failed:
        launch._first_attempt(world, world)
    until = f"stay until {world.deadline.isoformat(timespec='minutes')}"
    assert (until in said) == (until in failed.value.what) == stay
    assert world.sizes == ([] if stay else [0, 0])
    assert world.recorded == ([] if stay else ["nodes.at-zero"]), "kept nodes stay proven"
    assert ("uses them" in (failed.value.cure or "")) == stay


def test_paid_nodes_stay_no_longer_than_their_launch_budget() -> None:
    world: Any = PaidNodes(example_spec(nodes=BLOCK), HOUR)
    until = datetime.now(UTC) + HOUR / 2
    world.budget = LaunchBudget(until=until, usd=Decimal(9))
    assert f"stay until {until.isoformat(timespec='minutes')}" in (capacity.stay_reason(world) or "")
    world.budget = LaunchBudget(until=until + HOUR, usd=Decimal(9))
    assert f"stay until {world.deadline.isoformat(timespec='minutes')}" in (capacity.stay_reason(world) or "")
    world.budget = LaunchBudget(until=until - HOUR, usd=Decimal(9))
    assert capacity.stay_reason(world) is None

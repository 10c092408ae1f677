"""When a pilot comes first, what the plan says of it, and what bills meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from infra.plan.pilot import pilot_figures, pilot_first
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Event, Stage, fold
from infra.record.meter import read
from tests.tables import Table
from tests.unit.record.cost_lines import lines

TABLE = Table(__file__)

RESERVED = {"nodes.capacity": "reservation", "nodes.reservation_id": "cr-0123456789abcdef0"}


@TABLE.cases
def test_a_pilot_comes_first_where_many_waiting_nodes_bill_or_the_spec_says_so(
    spec_file: Callable[..., Any], changes: dict[str, Any], first: bool
) -> None:
    assert pilot_first(spec_file({"training.global_batch": 256} | changes).spec) is first


def test_the_plan_says_what_it_saves_and_costs_and_how_long_it_takes(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({"nodes.count": 4, "training.global_batch": 256}).spec
    figures = {figure.name: figure for figure in pilot_figures(spec, Decimal(241), Decimal(1))}
    # 3 nodes x 60 USD/h x 10 min = 30; (60 + 1) / 6 = 10.17
    assert figures["saves at most"].value == 30 and figures["costs"].value == Decimal("10.17")
    assert figures["takes"].value == 10
    plan = make_plan(spec, survey(spec))
    preflight = next(one for one in plan.clock if one.stage == "preflight")
    assert preflight.seconds == 1200 and "a pilot, 1 of 4 nodes, 10" in preflight.formula and plan.pilot
    prepaid = spec_file({"nodes.count": 4, "training.global_batch": 256, **RESERVED}).spec
    plan = make_plan(prepaid, survey(prepaid))
    preflight = next(one for one in plan.clock if one.stage == "preflight")
    assert preflight.seconds == 600 and "reservation bills in any case" in preflight.formula and not plan.pilot


def test_while_a_pilot_proves_itself_one_node_bills_and_then_all_do() -> None:
    began = datetime(2026, 11, 23, 12, tzinfo=UTC)
    told: list[tuple[int, str, dict[str, Any]]] = [
        (0, "stage.started", {"stage": Stage.PREFLIGHT}),
        (0, "pilot.begun", {"nodes": 1, "of": 4}),
        (30, "pilot.proven", {"node": "n", "instance": "i", "digest": "d"}),
    ]
    events = [
        Event(at=began + timedelta(minutes=at), writer="w", sequence=number, kind=kind, data=data)
        for number, (at, kind, data) in enumerate(told)
    ]
    alone, proved = fold(events[:2]), fold(events)
    bill = lines(2, 400)
    assert read(bill, events[:2], began).usd_per_hour == 102 and read(bill, events, began).usd_per_hour == 402
    # half an hour at 102, half an hour at 402
    assert read(bill, events, began + timedelta(hours=1)).spent_usd == 51 + 201
    assert proved.pilot_proved == "d" and alone.pilot_proved == ""
    failed = Event(at=began, writer="x", sequence=0, kind="stage.failed", data={"stage": "preflight", "error": "e"})
    assert not fold([*events[:2], failed]).gpu_nodes_up

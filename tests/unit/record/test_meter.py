"""The one meter against sums made by hand: what bills by the hour, what the plan estimates, and which order counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from infra.record.events import Event, Stage
from infra.record.meter import Reading, read
from tests.unit.record.cost_lines import line, lines

NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)
BILL = (*lines(2, 80), line("builder", 6), line("data nodes", 3))
Row = tuple[int, str, dict[str, Any]]


def began(minute: int, stage: Stage) -> Row:
    return minute, "stage.started", {"stage": stage}


def ended(minute: int, stage: Stage, **data: Any) -> Row:
    return minute, "stage.finished", {"stage": stage, **data}


def events(*rows: Row, writer: str = "driver") -> list[Event]:
    return [
        Event(at=NOON + timedelta(minutes=minute), writer=writer, sequence=number, kind=kind, data=data)
        for number, (minute, kind, data) in enumerate(rows)
    ]


def reading(*rows: Row, until: int = 60, bill: Any = BILL) -> Reading:
    return read(bill, events(*rows), NOON + timedelta(minutes=until))


UP = (began(0, Stage.PROVISION), ended(15, Stage.PROVISION), began(30, Stage.PREFLIGHT))


@pytest.mark.parametrize(
    ("rows", "usd", "per_hour"),
    [
        ((), 0, 0),
        ((began(0, Stage.CHECK), ended(1, Stage.CHECK)), 0, 0),
        ((began(0, Stage.BAKE), ended(30, Stage.BAKE, outputs={"baked": True})), 3, 0),
        ((began(0, Stage.BAKE), ended(30, Stage.BAKE, outputs={"baked": False})), 0, 0),
        (
            (began(0, Stage.BAKE), ended(30, Stage.BAKE, outputs={"builder_s": 1500.0})),
            Decimal("2.5"),
            0,
        ),
        ((began(0, Stage.BAKE), ended(30, Stage.BAKE, outputs={"builder_s": 3300.0})), Decimal("5.5"), 0),
        ((began(0, Stage.BAKE), ended(30, Stage.BAKE, outputs={"baked": False, "builder_s": 0.0})), 0, 0),
        ((began(30, Stage.BAKE),), 6, 12),
        ((began(0, Stage.PROVISION), (30, "relaunched", {"version": 2, "bake": {"builder_s": 600.0}})), 2 + 1, 2),
        ((began(0, Stage.PROVISION), (30, "relaunched", {"version": 2, "bake": {"builder_s": 0.0}})), 2, 2),
        ((began(0, Stage.BAKE), (30, "driver.took-over", {})), 6, 0),
        ((began(0, Stage.BAKE), (30, "stage.failed", {"stage": "bake"})), 6, 0),
        (
            (
                began(0, Stage.BAKE),
                (10, "stage.failed", {"stage": "bake"}),
                began(20, Stage.BAKE),
                ended(20, Stage.BAKE, outputs={"baked": False, "builder_s": 0.0}),
            ),
            2,
            0,
        ),
        (
            (
                began(0, Stage.BAKE),
                (10, "stage.failed", {"stage": "bake"}),
                began(20, Stage.BAKE),
                ended(30, Stage.BAKE, outputs={"baked": False, "builder_s": 0.0}),
            ),
            2,
            0,
        ),
        ((began(0, Stage.BAKE), began(30, Stage.PROVISION)), 6 + 1, 2),
        ((began(0, Stage.PROVISION), (15, "data.begun", {}), (35, "data.ended", {})), 2 + 1, 2),
        ((began(0, Stage.PROVISION), (15, "data.begun", {})), Decimal("4.25"), 5),
        ((began(0, Stage.PROVISION), (15, "data.begun", {}), ended(35, Stage.PROVISION)), 2 + 1, 2),
        (UP, 2 + 40, 82),
        ((*UP, (45, "stage.failed", {"stage": "preflight", "cut_off": True})), 2 + 40, 82),
        ((*UP, (45, "stage.failed", {"stage": "preflight"})), 2 + 20, 2),
        ((*UP, (45, "stage.failed", {"stage": "launch"})), 2 + 40, 82),
        ((*UP, (30, "pilot.begun", {"nodes": 1, "of": 4}), (45, "pilot.proven", {"digest": ""})), 2 + 25, 82),
        ((*UP, (45, "nodes.counted", {"nodes": 3, "of": 4})), 2 + 35, 62),
        ((*UP, (45, "nodes.counted", {"nodes": 0, "of": 4})), 2 + 20, 2),
        (
            (*UP, (45, "nodes.counted", {"nodes": 3, "of": 4}), (45, "attempt.launched", {"attempt": 2})),
            2 + 40,
            82,
        ),
        (
            (*UP, (45, "nodes.counted", {"nodes": 3, "of": 4}), (45, "attempt.launched", {"attempt": 2, "nodes": 3})),
            2 + 35,
            62,
        ),
        ((*UP, (45, "nodes.counted", {"nodes": 5, "of": 4}), (45, "attempt.launched", {"attempt": 2})), 47, 102),
        ((*UP, (45, "archive.begun", {"nodes": 1, "of": 4})), 2 + 25, 22),
        ((*UP, (45, "nodes.at-zero", {})), 2 + 20, 2),
        (
            (*UP, (45, "nodes.at-zero", {}), began(45, Stage.TEARDOWN), ended(50, Stage.TEARDOWN)),
            Decimal("21.67"),
            0,
        ),
        ((*UP, began(40, Stage.TEARDOWN), ended(45, Stage.TEARDOWN), began(50, Stage.CERTIFY)), Decimal("21.5"), 0),
    ],
)
def test_what_bills_by_the_hour_counts_from_its_request_to_its_end(
    rows: tuple[Row, ...], usd: Any, per_hour: int
) -> None:
    found = reading(*rows)
    assert found.metered_usd.quantize(Decimal("0.01")) == usd and found.usd_per_hour == per_hour
    assert found.estimated_usd == 0 and found.spent_usd == found.metered_usd


SIZED = (
    line("EKS control plane", 2),
    line("NAT traffic", 0, 4, passes="nodes"),
    line("S3 archive", 0, 10, passes="archive"),
    line("S3 checkpoints", 0, 8, passes="training", hours=2),
    line("reservation, unused", 0, 6, passes="waiting", hours=1),
    line("of an older plan", 0, 1),
)
TRAINED = (*UP, (30, "attempt.launched", {"attempt": 1}))


@pytest.mark.parametrize(
    ("rows", "traffic", "archive", "checkpoints", "waiting", "other"),
    [
        ((), 0, 0, 0, 0, 0),
        ((began(0, Stage.PROVISION),), 0, 0, 0, 6, 1),
        ((*UP, (30, "pilot.begun", {"nodes": 1, "of": 4})), 1, 0, 0, 3, 1),
        (TRAINED, 4, 0, 2, 3, 1),
        ((*TRAINED, (45, "training.finished", {"outcome": "done"})), 4, 0, 1, 3, 1),
        ((*TRAINED, (45, "archive.verified", {"step": 1})), 4, 10, 2, 3, 1),
        ((*TRAINED, (45, "archive.failed", {"error": ""})), 4, 10, 2, 3, 1),
        ((*TRAINED, (45, "archive.unproven", {})), 4, 10, 2, 3, 1),
    ],
)  # fmt: skip
def test_the_plans_estimate_counts_as_it_passes(
    rows: tuple[Row, ...], traffic: int, archive: int, checkpoints: int, waiting: int, other: int
) -> None:
    bill = (*SIZED, line("GPU nodes", 80, gpu=True))
    found = reading(*rows, bill=bill)
    assert list(found.estimated.values()) == [traffic, archive, checkpoints, waiting, other]
    assert found.spent_usd == found.metered_usd + traffic + archive + checkpoints + waiting + other
    late = reading(*rows, until=60 * 24, bill=bill)
    assert all(late.estimated[one.name] <= one.usd for one in SIZED if not one.usd_per_hour)


@pytest.mark.parametrize(("until", "rest", "per_hour"), [(60, 60, 2), (105, 0, 82), (120, 0, 82)])
def test_a_fee_paid_at_once_counts_from_the_begin_and_its_nodes_are_free_meanwhile(
    until: int, rest: int, per_hour: int
) -> None:
    bill = (*lines(2, 80), line("capacity block, unused", 0, 1, upfront_usd=100))
    found = reading(*UP, until=until, bill=bill)
    assert found.estimated_usd == rest and found.usd_per_hour == per_hour and found.prepaid is (rest > 0)
    assert found.spent_usd == 2 * Decimal(until) / 60 + max(Decimal(100), 80 * (Decimal(until) - 30) / 60)
    assert reading(bill=bill).spent_usd == 0 and not reading(bill=bill).prepaid


def test_a_clock_that_is_set_back_leaves_no_node_that_bills_for_good() -> None:
    """The driver's clock went back by 20 minutes while its nodes were up: a sort by time alone puts their end before
    their begin, and counts all nodes until now."""
    rows = (began(0, Stage.PROVISION), began(10, Stage.PREFLIGHT), (1, "stage.failed", {"stage": "preflight"}))
    later = reading(*rows, ended(2, Stage.TEARDOWN), until=24 * 60)
    assert later.spent_usd == Decimal(2) * 10 / 60 and later.usd_per_hour == 0
    assert reading(*rows, until=24 * 60).usd_per_hour == 2

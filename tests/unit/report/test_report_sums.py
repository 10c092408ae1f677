"""Every figure against arithmetic of its own over the events; parts add up to the whole, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Event, Stage
from infra.report.build import build
from infra.report.causes import TimeCause
from infra.report.money import allot
from infra.report.record import Record
from infra.spec.campaign import Capacity, load
from tests.unit.conftest import CAMPAIGNS
from tests.unit.report.campaign_story import BEGUN, ToldRecord, abandoned, failed, held, whole, with_a_node_lost

STORIES: tuple[Callable[[], ToldRecord], ...] = (whole, with_a_node_lost, held, abandoned, failed)
SPEC = load(CAMPAIGNS / "rehearsal.yaml").spec
PLAN = make_plan(SPEC, survey(SPEC))


def at(event: Event) -> float:
    return (event.at - BEGUN).total_seconds()


def times(record: Record, kind: str, **data: object) -> list[float]:
    return sorted(at(e) for e in record.events if e.kind == kind and data.items() <= e.data.items())


def paid(record: Record) -> tuple[float, float]:
    """First provision to the end of teardown, or to now; nothing of it taken from the report's own code."""
    begin = times(record, "stage.started", stage=Stage.PROVISION)[0]
    ends = times(record, "stage.finished", stage=Stage.TEARDOWN)
    return begin, ends[-1] if ends else (record.at - BEGUN).total_seconds()


def gpu_seconds(record: Record) -> float:
    begun = times(record, "stage.started", stage=Stage.PREFLIGHT)
    zero = times(record, "nodes.at-zero")
    return ((zero[0] if zero else paid(record)[1]) - begun[0]) if begun else 0.0


def gang_seconds(record: Record) -> float:
    """GPU seconds, in which one node of two counts half."""
    zero = times(record, "nodes.at-zero")
    alone = times(record, "archive.begun")
    return (
        gpu_seconds(record) - ((zero[0] if zero else paid(record)[1]) - alone[0]) / 2 if alone else gpu_seconds(record)
    )


def trained(record: Record) -> float:
    """Seconds from the first launch to the end of training."""
    launched, finished = times(record, "attempt.launched"), times(record, "training.finished")
    return (finished[-1] if finished else (record.at - BEGUN).total_seconds()) - launched[0] if launched else 0.0


def logged(record: Record) -> list[dict[str, float]]:
    pods = sorted(pod for pod in record.logs if "gang-0-0" in pod)
    return [json.loads(line) for pod in pods for line in record.logs[pod].splitlines()]


@pytest.mark.parametrize("story", STORIES)
def test_figures_agree_with_sums_made_by_hand(story: Callable[[], ToldRecord]) -> None:
    record = story().record(SPEC, PLAN, 192.0)
    report = build(record)
    money = report.money
    assert money.by_time_usd == record.reading.metered_usd.quantize(money.resolution_usd), "one meter"
    assert money.by_size_usd == record.reading.estimated_usd.quantize(money.resolution_usd)
    begin, end = paid(record)
    assert report.paid_s == pytest.approx(end - begin, abs=0.001)
    assert report.gpu_s == pytest.approx(gpu_seconds(record), abs=0.001)
    steps: dict[int, float] = {}
    for line in logged(record):
        if line["event"] == "step":
            steps.setdefault(int(line["step"]), line["seconds"])
    useful = sum(row.seconds for row in report.shares if row.cause is TimeCause.USEFUL)
    assert useful == pytest.approx(sum(steps.values()), abs=0.1)
    assert report.training.steps_done == max(steps, default=0)
    hours = {"GPU nodes": gang_seconds(record) / 3600, "builder": 0.0}
    baked = times(record, "stage.started", stage=Stage.BAKE), times(record, "stage.finished", stage=Stage.BAKE)
    hours["builder"] = (baked[1][0] - baked[0][0]) / 3600 if baked[0] else 0.0
    for item, planned in zip(report.money.items, PLAN.cost, strict=True):
        up = hours.get(item.name, (end - begin) / 3600)
        passed = {"nodes": gpu_seconds(record) > 0, "archive": bool(times(record, "archive.verified"))}
        part = min(1.0, trained(record) / 3600 / float(planned.hours)) if planned.hours else passed[planned.passes]
        by_hand = float(planned.usd_per_hour) * up if planned.usd_per_hour else float(planned.usd) * part
        assert float(item.usd) == pytest.approx(by_hand, abs=0.0002), item.name
        assert item.planned_usd == planned.usd


def random_story(draw: st.DrawFn) -> tuple[ToldRecord, float]:
    """Stages of any length, drivers that go away, attempts that fail in any way; cut off anywhere."""
    story, now = ToldRecord(), 0.0

    def passes(most: float = 50.0) -> float:
        nonlocal now
        now = round(now + draw(st.floats(0, most)), 6)
        return now

    for stage in (Stage.PROVISION, Stage.BAKE, Stage.PREFLIGHT):
        if draw(st.integers(0, 4)) == 0:
            story.event(passes(), "stage.started", stage=stage)
            story.event(passes(), *draw(st.sampled_from([("driver.took-over",), ("stage.failed",)])), stage=stage)
        story.stage(stage, passes(), passes())
    story.event(passes(1), "stage.started", stage=Stage.SUPERVISE)
    committed = 0
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        story.event(passes(9), "attempt.launched", "steward", attempt=attempt, committed_step=committed or -1)
        last = committed + draw(st.integers(0, 12))
        now = max(now, story.steps(attempt, committed + 1, last, passes(9)))
        ended = {"attempt": attempt, "failure": draw(st.sampled_from(["node", "process", None])), "step": last}
        if draw(st.booleans()):
            story.event(passes(9), "attempt.ended", "steward", **ended)
        committed = draw(st.integers(committed, max(committed, last)))
    if draw(st.booleans()):
        story.event(passes(5), "training.finished", "steward", outcome="done")
        if draw(st.booleans()):
            story.event(passes(5), "archive.begun", "steward", group="g", nodes=1, of=3)
        story.event(passes(5), "nodes.at-zero", "steward", group="g")
        story.stage(Stage.TEARDOWN, passes(), passes())
    kept = draw(st.integers(1, len(story.events)))
    story.events = sorted(story.events, key=lambda event: event.at)[:kept]
    return story, now + draw(st.floats(0, 500))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_whatever_happens_causes_and_items_add_up_exactly(data: st.DataObject) -> None:
    story, at_s = data.draw(st.composite(lambda draw: random_story(draw))())
    report = build(story.record(SPEC, PLAN, at_s))
    money = report.money
    assert sum(round(row.seconds * 1000) for row in report.shares) == round(report.paid_s * 1000)
    assert sum(row.usd for row in report.shares) == money.by_time_usd
    assert sum(row.usd for row in money.items) == money.total_usd == money.by_time_usd + money.by_size_usd
    for row in report.interruptions:
        if row.attempt is not None:
            assert sum(item.usd for item in row.losses) == row.usd
            assert sum(item.seconds for item in row.losses) == pytest.approx(row.seconds, abs=1e-6)
    meter = story.record(SPEC, PLAN, at_s).reading
    assert abs(meter.spent_usd - money.total_usd) <= 2 * money.resolution_usd
    caused = sum((row.usd or Decimal(0) for row in report.interruptions), Decimal(0))
    # Four digits each are rounded on their own.
    assert caused <= money.by_time_usd + Decimal("0.0001") * (len(report.interruptions) + 1)


@given(st.lists(st.decimals(0, 1000, places=7), min_size=1, max_size=20))
def test_parts_are_rounded_so_that_they_add_up_and_none_moves_by_a_unit(parts: list[Decimal]) -> None:
    unit = Decimal("0.01")
    rounded = allot(parts, unit)
    assert sum(rounded) == sum(parts, Decimal()).quantize(unit)
    assert all(abs(mine - part) < unit for mine, part in zip(rounded, parts, strict=True))


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("fee", [Decimal("0.001"), Decimal(500)])
def test_a_capacity_blocks_fee_is_paid_in_full_whatever_its_nodes_did(
    story: Callable[[], ToldRecord], fee: Decimal
) -> None:
    nodes = SPEC.nodes.model_copy(
        update={"capacity": Capacity.CAPACITY_BLOCK, "block_fee_usd": fee, "usd_per_hour": Decimal(5)}
    )
    spec = SPEC.model_copy(update={"nodes": nodes})
    report = build(story().record(spec, make_plan(spec, survey(spec)), 192.0))
    items = {item.name: item for item in report.money.items}
    gpu, rest = items["GPU nodes"].usd, items["capacity block, unused"].usd
    assert (gpu > 0) == (report.gpu_s > 0)
    assert abs(max(fee, gpu) - gpu - rest) <= report.money.resolution_usd
    assert sum(item.usd for item in report.money.items) == report.money.total_usd
    assert any("paid at once" in assumption for assumption in report.money.assumptions)

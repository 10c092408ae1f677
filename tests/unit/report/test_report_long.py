"""The report of three weeks on 64 nodes with 40 interruptions; the campaign is synthetic."""

from __future__ import annotations

import math
import random
import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.report.build import build
from infra.report.model import Report
from infra.report.page import render
from infra.report.record import Record
from infra.spec.campaign import load
from tests.built_in import training_of
from tests.unit.conftest import CAMPAIGNS
from tests.unit.report.campaign_story import ToldRecord
from tests.unit.report.test_report_page import well_formed

NODES, INTERRUPTIONS, STEP_S, SAVED_EVERY, WEEKS = 64, 40, 20.0, 90, 3
SPIKE = 50_123
"""One step whose loss stands out: a picture that hides it is not honest."""


def loss_of(step: int) -> float:
    smooth = 1.9 + 8.6 * (step + 40) ** -0.22 + 0.02 * math.sin(step * 1.7)
    return smooth + (3.0 if step == SPIKE else 0.0)


def three_weeks(seed: int = 7) -> ToldRecord:
    """Failures at random moments, each answered within minutes, each losing the steps since the last save."""
    dice, story, now = random.Random(seed), ToldRecord(), 0.0
    story.stage(Stage.PROVISION, 0, 1300, data_digest="5b" * 32, unigram_loss=7.9)
    story.stage(Stage.BAKE, 1310, 1900, image="repo@sha256:" + "9f" * 32, code="c0" * 32)
    story.stage(Stage.PREFLIGHT, 1910, 2700)
    story.event(2701, "stage.started", stage=Stage.SUPERVISE)
    end = WEEKS * 7 * 86400.0
    ends = sorted(dice.uniform(9000, end - 9000) for _ in range(INTERRUPTIONS))
    step, now, nodes = 0, 2710.0, [f"ip-10-42-{index // 200}-{index % 200}" for index in range(NODES)]
    for attempt, until in enumerate([*ends, end], 1):
        story.event(
            now, "attempt.launched", "steward", attempt=attempt, jobset=f"x-a{attempt}", committed_step=step or -1
        )
        story.event(now + 240, "attempt.running", "steward", attempt=attempt, nodes=list(nodes))
        now += 240
        while now + STEP_S < until:
            step, now = step + 1, now + STEP_S
            line(story, attempt, now, "step", step=step, loss=loss_of(step), seconds=STEP_S - 0.2)
            if step % 1000 == 0:
                now += 60
                line(story, attempt, now, "evaluated", step=step, loss=loss_of(step) + 0.05, seconds=60.0)
        committed, lost = step - step % SAVED_EVERY, dice.randrange(NODES)
        failure = dice.choice(["node", "node", "process", "fabric"]) if attempt <= INTERRUPTIONS else None
        now += dice.uniform(20, 60)
        ended = {"attempt": attempt, "failure": failure, "detail": f"{nodes[lost]} is dead", "step": step}
        story.event(now, "attempt.ended", "steward", **ended, committed_at_end=committed)
        if failure == "node":
            story.event(now + 1, "node.quarantined", "steward", node=nodes[lost], instance="i-0", reason="dead")
            nodes[lost], now = f"ip-10-43-0-{attempt}", now + 400
        step = committed if failure else step
        now += 5
    story.event(now, "training.finished", "steward", outcome="done", why="done", committed_step=step)
    story.event(now + 1, "stage.finished", stage=Stage.SUPERVISE, seconds=now - 2701, outputs={})
    story.event(now + 900, "nodes.at-zero", "steward", group="g")
    return story


def line(story: ToldRecord, attempt: int, at_s: float, event: str, **fields: object) -> None:
    for index in (0, 1):
        story.line(f"big-a{attempt}-gang-0-{index}-abcde", at_s, event, **fields)


def long_record() -> Record:
    spec = load(CAMPAIGNS / "p5-32-nodes.yaml").spec
    changes = {
        "nodes": spec.nodes.model_copy(update={"count": NODES}),
        "training": training_of(spec).model_copy(update={"steps": 90_000, "step_seconds_estimate": STEP_S}),
        "money": spec.money.model_copy(update={"budget_usd": Decimal(2_000_000), "deadline": timedelta(weeks=4)}),
    }
    spec = spec.model_copy(update=changes)
    return three_weeks().record(spec, make_plan(spec, survey(spec)), (WEEKS * 7 * 86400.0) + 2000)


pytestmark = pytest.mark.nightly
"""Three weeks of events and lines take ten seconds to write; `test_report_page` has a short story of the same kind."""


@pytest.fixture(scope="module")
def record() -> Record:
    return long_record()


@pytest.fixture(scope="module")
def report(record: Record) -> Report:
    return build(record)


def test_three_weeks_are_rendered_in_under_two_seconds_and_300_kilobytes(report: Report) -> None:
    begun = time.process_time()
    page = render(report)
    assert time.process_time() - begun < 2.0
    assert len(page.encode()) < 300_000 and len(report.model_dump_json()) < 2_000_000
    well_formed(page)


def test_all_forty_interruptions_are_there_with_their_prices(report: Report) -> None:
    assert len([row for row in report.interruptions if row.attempt is not None]) == INTERRUPTIONS
    assert [row.number for row in report.interruptions] == list(range(1, len(report.interruptions) + 1))
    assert all(row.usd and row.caught_up_s is not None for row in report.interruptions)
    page = render(report)
    assert all(f'<span class="badge">{row.number}</span>' in page for row in report.interruptions)


def test_a_thinned_loss_says_so_and_hides_no_spike(report: Report, record: Record) -> None:
    points = [point for series in report.training.losses for point in series.points]
    ran = sum(series.steps for series in report.training.losses)
    logged = sum(text.count('"event": "step"') for pod, text in record.logs.items() if "-gang-0-0-" in pod)
    assert ran == logged > 80_000 and len(points) < 4_000
    assert max(points, key=lambda point: point.loss if point.step > 1000 else 0).step == SPIKE
    assert f"{ran:,} steps are drawn as {len(points):,} points" in render(report)
    repeated = {point.step for point in points if point.repeated}
    assert len(repeated) >= INTERRUPTIONS and report.training.repeats.bitwise_equal


def test_three_weeks_still_add_up_exactly(report: Report) -> None:
    assert sum(row.usd for row in report.shares) == report.money.by_time_usd
    assert sum(row.usd for row in report.money.items) == report.money.total_usd
    assert sum(round(row.seconds * 1000) for row in report.shares) == round(report.paid_s * 1000)


if __name__ == "__main__":
    # To look at it: python -m tests.unit.report.test_report_long OUT.html
    import sys

    begun = time.process_time()
    told = long_record()
    read = time.process_time()
    found = build(told)
    built = time.process_time()
    Path(sys.argv[1]).write_text(render(found))
    print(f"story {read - begun:.1f} s, build {built - read:.1f} s, render {time.process_time() - built:.1f} s of CPU")

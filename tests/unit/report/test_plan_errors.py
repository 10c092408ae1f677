"""The report prints how far the plan was from what was measured, of the built-in training and of a job."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.report.build import build
from infra.report.model import PlanError, Report
from infra.report.page import render
from infra.spec.campaign import Spec
from tests.example import example_spec
from tests.unit.report.campaign_story import ToldRecord, until_training
from tests.unit.report.test_report_of_a_job import PLAN, SPEC, Job, pod


def errors(report: Report) -> dict[str, PlanError]:
    return {row.figure.name: row for row in report.plan_errors}


def trained(story: ToldRecord, *seconds: float) -> ToldRecord:
    now = 80.0
    for step, step_s in enumerate(seconds, 1):
        now += step_s
        story.line(pod(1), now, "step", step=step, loss=3.0, tokens=step * 2048, seconds=step_s)
    story.event(now + 1, "stage.finished", stage=Stage.SUPERVISE, seconds=now - 80, outputs={})
    story.stage(Stage.TEARDOWN, now + 2, now + 40)
    return story


def on_aws() -> tuple[Spec, Plan]:
    spec = example_spec(training={"step_seconds_estimate": 3.0, "precision": "bfloat16"})
    return spec, make_plan(spec, survey(spec))


def test_the_median_step_is_held_against_the_plans_and_the_mfu_follows() -> None:
    spec, plan = on_aws()
    report = build(trained(until_training(), 60.0, 4.0, 4.0, 4.2, 3.9).record(spec, plan, 300.0))
    found = errors(report)
    assert (float(found["step time"].figure.value), found["step time"].measured) == (3.0, 4.0)
    assert found["step time"].error == pytest.approx(-0.25)
    mfu = found["implied MFU"]
    assert mfu.measured == pytest.approx(float(mfu.figure.value) * 3 / 4) and mfu.error == pytest.approx(1 / 3)
    assert found["clock"].measured is not None and found["clock"].figure == plan.totals.clock
    assert found["cost"].measured == float(report.money.total_usd)
    page = " ".join(render(report).split())
    assert "The plan&#39;s error" in page or "The plan's error" in page
    assert "-25 %" in page


def test_a_job_has_its_steps_time_and_a_rehearsal_measures_no_clock_and_no_cost_of_aws() -> None:
    story = Job()
    story.event(0, "attempt.launched", "steward", attempt=1, jobset="rehearsal-a1", committed_step=-1)
    now = 10.0
    for step in range(1, 9):
        now += 0.5
        story.line(pod(1), now, "step", step=step, loss=None, seconds=0.5, attempt=1)
    report = build(story.record(SPEC, PLAN, 60.0, site={"emulated": []}))
    found = errors(report)
    assert (found["step time"].measured, found["step time"].error) == (0.5, 1.0)
    assert found["clock"].measured is None and found["cost"].error is None
    assert "not measured" in render(report)


def test_a_campaign_that_still_runs_has_no_error_of_clock_and_cost() -> None:
    spec, plan = on_aws()
    found = errors(build(until_training().record(spec, plan, timedelta(minutes=2).total_seconds())))
    assert all(row.measured is None and row.error is None for row in found.values())

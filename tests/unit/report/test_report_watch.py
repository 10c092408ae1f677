"""The page shows the gradients' norm and each alarm of the watch with what it did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.report.build import build
from infra.report.charts.losses import norm_curve
from infra.report.model import Report
from infra.report.page import MOST_ALARMS, render
from infra.spec.campaign import SpecFile
from tests.unit.report.campaign_story import ToldRecord, failed, whole

ALARM = {"attempt": 1, "detector": "loss", "value": 6.0, "threshold": 4.0, "action": "log", "did": "logged"}


@pytest.fixture
def report(spec_file: Callable[..., SpecFile]) -> Callable[[ToldRecord], Report]:
    spec = spec_file().spec
    plan = make_plan(spec, survey(spec))
    return lambda story: build(story.record(spec, plan, 192.0))


def alarmed(count: int) -> ToldRecord:
    story = whole()
    for step in range(1, count + 1):
        story.event(90 + step / 100, "watch", "steward", step=step, text=f"the loss <{step}>", **ALARM)
    return story


def test_norms_are_drawn_by_attempt_with_alarms_as_ticks(report: Callable[[ToldRecord], Report]) -> None:
    made = report(alarmed(2))
    assert [row.attempt for row in made.training.norms] == [1, 2]
    assert [point.loss for point in made.training.norms[0].points[:3]] == [1.0, 1 / 2, 1 / 3]
    picture = norm_curve(made)
    assert picture.count("tickmark") == 2 and "step 2, loss: the loss &lt;2&gt;" in picture
    page = render(made)
    assert str(picture) in page and "step 1, loss: the loss &lt;1&gt;; logged" in page


def test_of_many_alarms_the_page_shows_the_last_and_says_so(report: Callable[[ToldRecord], Report]) -> None:
    page = render(report(alarmed(100)))
    assert f"the last {MOST_ALARMS} of 100" in page and "step 100, loss" in page


def test_without_norms_and_alarms_the_page_has_no_word_of_them(report: Callable[[ToldRecord], Report]) -> None:
    page = render(report(failed()))
    assert "Norm of the gradients" not in page and "Alarms of the watch" not in page

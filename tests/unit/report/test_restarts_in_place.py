"""A restart in place in the report: its time, its repeated steps and its cause, within one attempt."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import fold
from infra.report.build import build
from infra.report.causes import TimeCause
from infra.report.model import Report
from infra.report.page import render
from infra.report.trainer_log import losses, read, repeats
from infra.spec.campaign import SpecFile
from tests.unit.report.campaign_story import NODES, STEP_S, ToldRecord, curve, until_training

DIED_S, SECONDS = 120.0, 6.5


def restarted() -> ToldRecord:
    """Steps 1 to 60 from second 80 on; a process dies, and the same pods go on from step 50."""
    story = until_training()
    steps = story.steps(1, 1, 60, 80.0)
    assert steps < DIED_S
    data = {"attempt": 1, "generation": 1, "step": 51, "culprit": 3, "of_node": NODES[1], "seconds": SECONDS}
    begun = DIED_S + SECONDS - STEP_S
    again = until_training()
    again.steps(1, 51, 70, begun)
    for pod, lines in again.logs.items():
        story.logs[pod] += [json.dumps(json.loads(line) | {"generation": 1}) for line in lines if "step" in line]
    story.event(DIED_S + SECONDS, "attempt.restarted-in-place", "steward", cause="died of SIGKILL", **data)
    return story


@pytest.fixture
def report(spec_file: Callable[..., SpecFile]) -> Report:
    spec = spec_file().spec
    return build(restarted().record(spec, make_plan(spec, survey(spec)), 192.0))


def test_repeated_steps_of_one_attempt_are_compared_and_drawn_once(spec_file: Callable[..., SpecFile]) -> None:
    spec = spec_file().spec
    log = read(restarted().record(spec, make_plan(spec, survey(spec)), 192.0))
    again = repeats(log)
    assert (again.steps, again.equal, again.first_step, again.last_step) == (10, 10, 51, 60)
    (row,) = losses(log)
    assert [point.step for point in row.points] == list(range(1, 71))
    assert row.points[50].loss == curve(51)


def test_its_time_is_a_start_and_its_repeated_steps_are_redo(report: Report) -> None:
    (row,) = [interruption for interruption in report.interruptions if interruption.action == "restarted in place"]
    assert row.at_s == pytest.approx(DIED_S) and row.seconds == SECONDS
    assert "rank 3" in row.what and "SIGKILL" in row.what
    spent = {share.cause: share.seconds for share in report.shares}
    assert spent[TimeCause.REDO] == pytest.approx(10 * STEP_S, abs=0.01)
    assert spent[TimeCause.USEFUL] == pytest.approx(70 * STEP_S, abs=0.5)
    page = render(report)
    assert "restarted in place" in page


def test_the_record_counts_it_and_says_it_in_a_sentence() -> None:
    story = restarted()
    assert fold(story.events).restarted_in_place == 1
    said = next(e.sentence() for e in story.events if e.kind == "attempt.restarted-in-place")
    assert said == "attempt 1 trains again in its pods after 6.5 s, since a process on ip-10-42-1-23: died of SIGKILL"

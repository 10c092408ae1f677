"""The report of a campaign whose checkpoints nobody recognised: never good, and with the place of what was trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.report.build import build
from infra.report.model import Report
from infra.report.page import render
from infra.spec.campaign import SpecFile
from tests.unit.report.campaign_story import CERTIFICATE, ToldRecord, until_training, whole

LEFT = {"files": 3, "bytes": 12_000_000, "newest": "run/e=3.ckpt", "why": "looked for *.pt", "fits": "lightning"}
COPIED = {"prefix": "s3://archive/campaigns/x/unproven/attempt-0001", **LEFT}
Make = Callable[..., Report]


@pytest.fixture
def report(spec_file: Callable[..., SpecFile]) -> Make:
    spec = spec_file().spec
    plan = make_plan(spec, survey(spec))
    return lambda story: build(story.record(spec, plan, 192.0, certificate=CERTIFICATE))


def ended(left: dict[str, Any] | None, *more: tuple[str, dict[str, Any]]) -> ToldRecord:
    """All steps are trained, nothing was committed, and the teardown is certified."""
    story = until_training()
    story.steps(1, 1, 110, 80)
    done = {"attempt": 1, "failure": None, "detail": "", "step": 110, "committed_at_end": -1}
    story.event(150, "attempt.ended", "steward", **done)
    finished = {"outcome": "done", "why": "", "committed_step": -1, "unrecognised": left}
    story.event(150.1, "training.finished", "steward", **finished)
    for number, (kind, data) in enumerate(more):
        story.event(151 + number, kind, "steward", **data)
    story.event(155, "nodes.at-zero", "steward", group="gpu")
    story.stage(Stage.TEARDOWN, 160, 170, resources=84)
    story.event(170.1, "stage.started", stage=Stage.CERTIFY)
    story.event(171, "certified", clean=True, found=[], could_not_look=[], looks=26, kept=[])
    story.event(171.1, "stage.finished", stage=Stage.CERTIFY, seconds=1, outputs={})
    return story


@pytest.mark.parametrize(
    ("left", "more", "said"),
    [
        (LEFT, (("archive.unproven", COPIED),), "s3://archive/campaigns/x/unproven/attempt-0001"),
        (LEFT, (), "3 files (12.0 MB) of the job are no known checkpoint"),
        (None, (), "Nobody could look at what the job left"),
        ({"files": 0, "bytes": 0}, (), ""),
    ],
)
def test_a_campaign_without_a_proven_checkpoint_is_never_good(
    report: Make, left: dict[str, Any] | None, more: tuple[tuple[str, dict[str, Any]], ...], said: str
) -> None:
    found = report(ended(left, *more))
    assert (found.status, found.level) == ("ended without a proven checkpoint", "bad")
    assert "golden checkpoint" not in found.verdict
    bad = [notice.text for notice in found.notices if notice.level == "bad"]
    assert (said in " ".join(bad)) and (bool(bad) or not said)
    render(found)


def test_the_campaign_with_its_checkpoint_archived_is_good_and_says_what_was_copied(report: Make) -> None:
    story = whole()
    at = next(event for event in story.events if event.kind == "archive.verified").at
    plain = report(whole())
    story.event((at - story.events[0].at).total_seconds() - 0.1, "archive.unproven", "steward", **COPIED)
    found = report(story)
    assert (found.status, found.level) == (plain.status, plain.level) and found.level == "good"
    assert any("unproven/attempt-0001" in notice.text and notice.level == "warning" for notice in found.notices)


def test_doubts_are_told_in_the_report(report: Make) -> None:
    story = ended({"files": 0, "bytes": 0})
    story.event(100, "training.started-over", "steward", attempt=2, before=35, why="nothing was committed")
    texts = [notice.text for notice in report(story).notices]
    assert any(text.startswith("Attempt 2 begins again at step 0 although step 35 was trained") for text in texts)

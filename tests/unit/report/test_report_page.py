"""The report as people see it: one page that needs nothing but itself, whatever the campaign came to."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.report.build import build
from infra.report.model import Report
from infra.report.page import code_marked, render
from infra.report.record import Record
from infra.spec.campaign import SpecFile
from tests.unit.report.campaign_story import (
    ToldRecord,
    abandoned,
    failed,
    held,
    until_training,
    whole,
    with_a_node_lost,
)

Make = Callable[..., Report]


@pytest.mark.parametrize("kept", range(0, 46, 3))
def test_any_beginning_of_a_record_makes_a_page(record: Callable[..., Record], kept: int) -> None:
    story = whole()
    story.events.sort(key=lambda event: event.at)
    story.events = story.events[:kept]
    found = build(record(story, at_s=192.0))
    assert sum(row.seconds for row in found.shares) == pytest.approx(found.paid_s, abs=0.01)
    well_formed(render(found))


def test_a_certificate_that_is_not_clean_is_said_at_the_head(report: Make) -> None:
    story = whole()
    story.events = [e for e in story.events if e.kind != "certified"]
    denied = ["log group: AccessDenied: logs:DescribeLogGroups"]
    story.event(191, "certified", clean=False, found=["volume vol-1"], could_not_look=denied, looks=26, kept=[])
    found = report(story)
    assert (found.status, found.level) == ("ended, not certified", "bad")
    page = render(found)
    assert "volume vol-1" in page and "AccessDenied" in page


def test_the_page_needs_nothing_but_itself(report: Make) -> None:
    page = render(report())
    tags = well_formed(page)
    assert not {"script", "link", "iframe", "img", "object"} & set(tags)
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\((?!#)", without_namespace)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_the_page_says_what_was_emulated_and_escapes_what_it_shows(report: Make) -> None:
    page = render(report())
    assert "moto, extended" in page and "EFA installer &amp; &lt;fabric&gt;" in page
    assert "what AWS would have billed" in page and "would have cost" in page
    on_aws = render(report(site=None))
    assert "would have" not in on_aws and "Emulated" not in on_aws


UNFINISHED: dict[str, tuple[Callable[[], ToldRecord], float, str, str]] = {
    "nothing begun": (ToldRecord, 0.0, "nothing has begun", "Empty: no stage has begun."),
    "training begins": (until_training, 85.0, "under way: supervise", "Empty: it is issued after teardown"),
    "under way": (with_a_node_lost, 150.0, "under way: supervise", "Empty: no checkpoint has been verified"),
    "failed": (failed, 60.0, "failed at provision", "no capacity for p5.4xlarge in us-east-1a"),
    "held": (held, 110.0, "held after an error that a retry would repeat", "Training is held"),
    "abandoned": (abandoned, 140.0, "ended by an error, nothing left behind", "Torn down with --abandon"),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_unfinished_campaign_has_as_good_a_page_and_says_why_parts_are_empty(report: Make, name: str) -> None:
    story, at_s, status, said = UNFINISHED[name]
    found = report(story(), at_s=at_s, certificate=None)
    page = render(found)
    well_formed(page)
    assert found.status == status and said in page
    for title in ("Timeline", "Loss", "Interruptions", "Goodput", "Money against", "Golden checkpoint", "Certificate"):
        assert f"<h2>{title}" in page


def test_an_end_far_from_the_estimate_and_the_error_that_holds_are_said(report: Make) -> None:
    def said(story: ToldRecord) -> list[str]:
        return [row.text for row in report(story, at_s=170.0, certificate=None).notices]

    assert any("repeat its last error: the trainer exited with 64." in text for text in said(held()))
    words = "the job exited 0 at step 40 of 80, which was an estimate"
    story = until_training()
    story.event(95, "attempt.ended", "steward", attempt=1, failure=None, detail="done", step=40, words=words)
    story.event(95.1, "training.finished", "steward", outcome="done", why=words, committed_step=40)
    assert f"The job ended by itself: {words}." in said(story)


def test_what_still_bills_is_said_with_its_rate(report: Make) -> None:
    def said(story: ToldRecord) -> str:
        return next(row.text for row in report(story, at_s=170.0, certificate=None).notices if row.level == "open")

    assert "$14.36 an hour" in said(held())
    at_zero = held()
    at_zero.event(160, "nodes.at-zero", "steward", group="g")
    assert "$0.60 an hour" in said(at_zero)
    assert "training held: the trainer exited with 64" in report(held(), certificate=None).interruptions[0].answer


def test_a_gap_without_a_driver_is_named(report: Make) -> None:
    (gap,) = report(failed(), at_s=60.0, certificate=None).gaps
    assert (gap.begun_s, gap.ended_s) == (31, 60) and "provision had failed" in gap.why


def test_suspects_are_for_a_person_to_judge(report: Make) -> None:
    story = whole()
    story.events = [e for e in story.events if e.kind != "certified"]
    named = ["volume vol-7: created by another principal"]
    story.event(191, "certified", clean=True, found=[], suspects=named, could_not_look=[], looks=26, kept=[])
    found = report(story)
    assert found.level == "warning" and "1 suspected" in found.verdict
    assert "vol-7" in render(found)
    assert "Suspects" not in render(report())


def test_a_loss_that_is_not_the_recorded_one_is_not_called_verified(report: Make) -> None:
    story = whole()
    story.events = [
        e.model_copy(update={"data": e.data | {"restored_evaluation_loss": 9.9}})
        if "restored_evaluation_loss" in e.data
        else e
        for e in story.events
    ]
    found = report(story)
    assert found.notices[0].level == "bad" and "evaluates to 9.9" in found.notices[0].text
    assert "equals the recorded one" not in render(found)


def test_a_cost_above_the_budget_is_said_at_the_head(report: Make, spec_file: Callable[..., SpecFile]) -> None:
    spec = spec_file({"money.budget_usd": 0.2}).spec
    found = build(whole().record(spec, make_plan(spec, survey(spec)), 192.0))
    assert any(row.level == "bad" and "budget of $0.20 is exceeded" in row.text for row in found.notices)


def test_whatever_people_and_machines_write_is_shown_and_never_run(spec_file: Callable[..., SpecFile]) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&`<b>`"
    spec = spec_file({"purpose": evil, "data.source": f"/data/{evil}", "data.pattern": evil}).spec
    story = ToldRecord()
    story.event(0, "stage.started", stage=Stage.PROVISION)
    story.event(9, "stage.failed", stage=Stage.PROVISION, error=evil)
    story.event(10, "driver.took-over", holder=evil, previous=evil)
    for ending in (story, whole()):
        ending.event(191, "certified", clean=False, found=[evil], suspects=[evil], could_not_look=[evil], kept=[evil])
        site = {"emulated": [evil], "not_rehearsed": [evil]}
        page = render(build(ending.record(spec, make_plan(spec, survey(spec)), 200.0, site=site)))
        tags = well_formed(page)
        assert not {"script", "img", "b"} & set(tags) and "&lt;script&gt;alert(1)" in page


def test_backticks_mark_code_in_text_that_stays_escaped() -> None:
    assert code_marked("a `b` <i> `<u>`") == "a <code>b</code> &lt;i&gt; <code>&lt;u&gt;</code>"


def test_the_page_loads_itself_again_until_there_is_a_certificate(report: Make) -> None:
    under_way = render(report(with_a_node_lost(), at_s=150.0, certificate=None))
    assert '<meta http-equiv="refresh" content="60">' in under_way and "loads itself every minute" in under_way
    assert "http-equiv" not in render(report()) and "loads itself" not in render(report())


def test_every_axis_says_what_it_shows(report: Make) -> None:
    names = re.findall(r'class="axisname"[^>]*>([^<]*)<', render(report()))
    assert names[0] == "time since the first stage began"
    assert names.count("step") == names.count("loss, nats per token") + names.count("log10 of the norm") == 3
    assert names[-1] == "share of all paid time, and of all money"


def test_pictures_can_be_read_out_and_reached_by_keyboard(report: Make) -> None:
    page = render(report())
    pictures = re.findall(r'<svg viewBox="[^"]*" ([^>]*)>', page)
    assert len(pictures) == 5 and all('role="img"' in row and "aria-label=" in row for row in pictures)
    assert page.count('class="figurebox" tabindex="0"') + page.count('class="figurebox timeline" tabindex="0"') == 5


class _Tags(HTMLParser):
    EMPTY = frozenset({"meta", "br", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def well_formed(page: str) -> list[str]:
    """The page's tags; asserts that each is closed in its place and that no number is missing from a drawing."""
    parser = _Tags()
    parser.feed(page)
    assert not parser.open
    assert "nan" not in re.findall(r'[xy\d]="([^"]*)"', page) and "None" not in re.findall(r">(None)<", page)
    return parser.seen

"""What a drill says of a fault: from a record written here by hand, with its moments."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from infra.errors import UserError
from infra.record.events import Event
from infra.record.payloads import payload_of
from infra.rehearsal.drills import page
from infra.rehearsal.drills.judge import DrillResult, judge
from infra.rehearsal.drills.moments import Moment, Moments, moments_in, note
from infra.spec.drills.scenarios import Expectation, Scenario

NOON = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
NODE = Scenario(
    what="a node dies",
    expect=Expectation(
        attempts=1, failure="node", alerts=("PodSilent",), absent=("held",), seen_within_s=10, committed_within_s=60
    ),
)
ROWS: list[tuple[float, str, dict[str, Any]]] = [
    (-50, "attempt.launched", {"attempt": 1}),
    (-5, "attempt.ended", {"attempt": 0, "failure": "hang", "step": 3}),
    (4, "attempt.ended", {"attempt": 1, "failure": "node", "step": 124, "detail": "it is dead"}),
    (5, "node.quarantined", {"node": "n1"}),
    (6, "alert.fired", {"alert": "PodSilent", "severity": "page", "summary": "", "runbook": "", "began": "t"}),
    (7, "alert.fired", {"alert": "Straggler", "severity": "ticket", "summary": "", "runbook": "", "began": "t"}),
    (8, "attempt.launched", {"attempt": 2, "committed_step": 120}),
    (20, "checkpoint.restored", {"step": 110, "attempt": 2}),
    (900, "certified", {"clean": True, "looks": 40}),
]


def events(*more: tuple[float, str, dict[str, Any]], without: str = "") -> list[Event]:
    rows = sorted([row for row in ROWS if row[1] != without] + list(more), key=lambda row: row[0])
    return [
        Event.of(payload_of(kind, data), NOON + timedelta(seconds=s), "steward-1", n)
        for n, (s, kind, data) in enumerate(rows)
    ]


def moments(committed_s: float | None = 40, other_s: float | None = None) -> Moments:
    struck = Moment(fault=0, kind="struck", at=NOON, step=121, usd_per_hour=36.0)
    made: Moments = {(0, "struck"): struck}
    made[0, "caught-up"] = struck.model_copy(update={"kind": "caught-up", "at": NOON + timedelta(seconds=30)})
    if committed_s is not None:
        made[0, "recovered"] = struck.model_copy(
            update={"kind": "recovered", "at": NOON + timedelta(seconds=committed_s)}
        )
    if other_s is not None:
        made[1, "struck"] = struck.model_copy(update={"fault": 1, "at": NOON + timedelta(seconds=other_s)})
    return made


def judged(scenario: Scenario, record: list[Event], seen: Moments) -> DrillResult:
    return judge("node-killed", 0, scenario, "drill", record, seen)


def test_a_dead_node_is_told_with_its_seconds_its_losses_and_what_was_done() -> None:
    result = judged(NODE, events(), moments())
    assert result.problems == ()
    assert (result.sign_by, result.sign_s, result.action) == ("steward", 4.0, "node replaced")
    assert "it is dead" in result.sign and (result.attempts, result.failure) == (1, "node")
    assert result.alerts == {"PodSilent": 6.0, "Straggler": 7.0}
    assert (result.caught_up_s, result.committed_s) == (30.0, 40.0)
    assert result.lost_steps == 124 - 110 and result.lost_usd == Decimal("0.30"), "30 s at 36 USD/h"
    assert result.left == ()


@pytest.mark.parametrize(("end_s", "attempts"), [(-0.9, 1), (-1.1, 0)])
def test_the_records_clock_may_be_a_second_behind_the_strikes(end_s: float, attempts: int) -> None:
    end = (end_s, "attempt.ended", {"attempt": 1, "failure": "user", "step": 124})
    record = [row for row in events(end) if row.payload != payload_of(*ROWS[2][1:])]
    result = judged(NODE, record, moments())
    assert result.attempts == attempts and (not attempts or result.sign_s == 0.0)


@pytest.mark.parametrize(
    ("record", "seen", "problem"),
    [
        (events(), moments(other_s=3.5), "0 attempts ended, 1 expected"),
        (events(without="attempt.ended"), moments(), "the failure's class is None, node expected"),
        (events(without="alert.fired"), moments(), "the alert PodSilent has not fired"),
        (events((9, "held", {"attempt": 1})), moments(), "unexpected event held"),
        (events(), moments(committed_s=61), "committed again after 61 s, within 60 s expected"),
        (events(), moments(committed_s=None), "committed again never, within 60 s expected"),
        (events(without="certified"), moments(), "no certificate says what is left"),
        (events((901, "certified", {"clean": False, "found": ["eni-1"]})), moments(), "left behind: eni-1"),
        (events((901, "certified", {"could_not_look": ["ec2"]})), moments(), "left behind: could not look: ec2"),
        (
            events((9, "alert.fired", ROWS[4][2] | {"alert": "StewardSilent", "began": "u"})),
            moments(),
            "unexpected alert StewardSilent",
        ),
    ],
)
def test_what_is_not_as_expected_is_a_problem(record: list[Event], seen: Moments, problem: str) -> None:
    problems = judged(NODE, record, seen).problems
    assert problem in problems
    if (1, "struck") not in seen and "class" not in problem:
        assert problems == (problem,), "nothing else is wrong"


def test_what_the_next_fault_does_is_not_this_ones() -> None:
    result = judged(NODE, events(), moments(other_s=3.5))
    assert (result.attempts, result.sign, result.alerts) == (0, "", {})


def test_how_the_drill_ends_the_campaign_is_no_faults_doing() -> None:
    stopping = Moment(fault=0, kind="stopping", at=NOON + timedelta(seconds=50))
    stopped = events((60, "attempt.ended", {"attempt": 2, "failure": "interrupted"}))
    assert judged(NODE, stopped, moments() | {(0, "stopping"): stopping}).attempts == 1
    assert judged(NODE, stopped, moments()).attempts == 2


def test_a_fault_that_nobody_is_to_see_is_well_while_nothing_ends() -> None:
    quiet = Scenario(what="", expect=Expectation(absent=("attempt.ended",), committed_within_s=60))
    result = judged(quiet, events()[:2] + events()[-1:], moments())
    assert result.problems == () and result.action == "went on" and result.lost_usd == 0
    assert judged(quiet, events(), moments()).problems == (
        "unexpected event attempt.ended",
        "unexpected alert PodSilent",
    )


def test_the_first_moment_of_a_kind_counts_and_a_torn_line_does_not(tmp_path: Path) -> None:
    (tmp_path / "campaigns").mkdir()
    struck = Moment(fault=0, kind="struck", at=NOON, step=3)
    note(tmp_path, "c", struck)
    note(tmp_path, "c", struck.model_copy(update={"step": 9}))
    with (tmp_path / "campaigns/c.moments").open("a") as file:
        file.write('{"fault": 0, "ki')
    assert moments_in(tmp_path, "c") == {(0, "struck"): struck}
    assert moments_in(tmp_path, "other") == {}


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| ") and "---" not in line:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_takes_the_place_of_the_last_one_and_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "drills.md"
    path.write_text(f"# Before\n\n{page.BEGIN}\n\nold\n\n{page.END}\n\nafter\n")
    result = judged(NODE, events(), moments())
    page.write(path, [result, result.model_copy(update={"fault": "rank-slow", "problems": ("p",), "sign_by": ""})])
    text = path.read_text()
    assert text.startswith("# Before\n") and text.endswith("\nafter\n") and "old" not in text
    head, second, first, *of_alerts = rows(text)
    assert dict(zip(head, first, strict=True)) == {
        "fault": "node-killed", "seen by": "steward", "s": "4", "action": "node replaced",
        "page, s": "PodSilent 6", "new commit, s": "40", "lost steps": "14", "USD": "0.30",
        "day": "2026-11-26", "as expected": "yes",
    }  # fmt: skip
    assert (second[0], second[1], second[-1]) == ("rank-slow", "nobody", "no")
    assert of_alerts == [
        ["alert", "severity", "raised by", "after, s", "day"],
        ["PodSilent", "page", "node-killed", "6", "2026-11-26"],
        ["Straggler", "ticket", "node-killed", "7", "2026-11-26"],
    ]
    assert "Faults without a result: " in text and "rank-killed" in text.partition("without a result")[2]
    assert max(map(len, text.splitlines())) <= 120, "as all lines of pages"
    assert "node-killed" not in text.partition("without a result")[2].partition(".")[0]
    assert "StewardSilent" in text.partition("has raised: ")[2]
    page.write(path, [result.model_copy(update={"fault": "rank-killed", "alerts": {"StewardSilent": 9}})])
    assert {row[0] for row in rows(path.read_text())} >= {
        "node-killed", "rank-slow", "rank-killed", "PodSilent", "Straggler", "StewardSilent"
    }, "what others' drills have shown stays"  # fmt: skip
    path.write_text("no place")
    with pytest.raises(UserError, match="no place for the table"):
        page.write(path, [])


ENDING = Scenario(what="", expect=Expectation(attempts=1, failure="user", outcome="held", ends_within_s=60))
HELD: list[tuple[float, str, dict[str, Any]]] = [
    (4, "attempt.ended", {"attempt": 1, "failure": "user", "step": 124, "detail": "a NameError"}),
    (5, "training.finished", {"outcome": "held", "why": "a retry would repeat it"}),
]


def test_a_fault_that_ends_the_training_is_told_with_its_end_and_needs_no_commit() -> None:
    kinds = ("training.finished", "certified")
    ours = [event for event in events(*HELD) if event.kind in kinds or "a NameError" in event.sentence()]
    result = judged(ENDING, ours, moments(committed_s=None))
    assert result.problems == () and result.action == "ended as held"
    assert (result.ended_s, result.committed_s) == (5.0, None)
    words = page.lines(result)
    assert words[-1] == "  left: nothing" and "  new committed step: none, ended after 5.0 s" in words
    assert "| end 5 |" in page.fault_rows([result])[result.fault]


def test_a_training_that_does_not_end_or_ends_otherwise_is_a_problem() -> None:
    went_on = judged(ENDING, events(), moments())
    assert "the training node replaced, its end as held expected" in went_on.problems
    assert "ended never, within 60 s expected" in went_on.problems
    stopped = events((5, "training.finished", {"outcome": "stopped", "why": "no capacity"}))
    assert "the training ended as stopped, its end as held expected" in judged(ENDING, stopped, moments()).problems


def test_faults_of_the_teardown_strike_together_and_are_judged_by_the_certificate() -> None:
    scenario = Scenario(what="", stage="teardown", expect=Expectation(events=("driver.took-over",), ends_within_s=950))
    both = events((20, "driver.took-over", {"holder": "b", "previous": "a"}))
    record = [event for event in both if event.kind in ("driver.took-over", "certified")]
    result = judged(scenario, record, moments(other_s=1))
    assert (result.ended_s, result.sign_s) == (900.0, 20.0) and result.problems == ()
    late = scenario.model_copy(update={"expect": Expectation(ends_within_s=800)})
    assert judged(late, record, moments()).problems == ("ended after 900 s, within 800 s expected",)

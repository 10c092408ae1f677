"""The report of a job of one's own: its steps count whether or not it tells losses, each step or every tenth."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from infra.campaign import report as report_stage
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.identity import CampaignIdentity
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.pod_logs import piece
from infra.record.store import CampaignStore
from infra.report.build import build
from infra.report.causes import TimeCause
from infra.report.model import Report
from infra.report.page import render
from infra.spec.campaign import Spec
from tests.example import example_spec
from tests.unit.report.campaign_story import BEGUN, NODES, STEP_S, ToldRecord, curve, until_training
from tests.worlds.s3 import FakeS3, Time

MARK = chr(0x1E)


def job() -> Spec:
    workload: dict[str, Any] = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 80, "step_seconds": 1},
    }  # fmt: skip
    return example_spec(target="rehearsal", training=None, data=None, workload=workload)


SPEC = job()
PLAN = make_plan(SPEC, survey(SPEC))
Say = Callable[[ToldRecord, int, int, float], None]
"""Tells one finished step of an attempt that ended at this second."""


class Job(ToldRecord):
    """Lines as a supervisor prints them."""

    def line(self, pod: str, at_s: float, event: str, **fields: Any) -> None:
        line = {"event": event, "time": round(BEGUN.timestamp() + at_s, 3), **fields, "node": "n0"}
        self.logs.setdefault(pod, []).append(MARK + json.dumps(line))


def pod(attempt: int, index: int = 0) -> str:
    return f"rehearsal-a{attempt}-gang-0-{index}-x{attempt}{index}yz"


def told(every: int = 1, loss: bool = True, by: int = 0) -> Say:
    def say(story: ToldRecord, attempt: int, step: int, at_s: float) -> None:
        if step % every == 0:
            value = curve(step) if loss else None
            story.line(pod(attempt, by), at_s, "step", step=step, loss=value, seconds=STEP_S, attempt=attempt)

    return say


def loss_on_a_later_line(story: ToldRecord, attempt: int, step: int, at_s: float) -> None:
    for value in (None, curve(step)):
        story.line(pod(attempt), at_s, "step", step=step, loss=value, seconds=STEP_S, attempt=attempt)


def by_two_pods(story: ToldRecord, attempt: int, step: int, at_s: float) -> None:
    told(loss=False, by=0)(story, attempt, step, at_s)
    told(by=1)(story, attempt, step, at_s)


def killed_after_35(say: Say) -> Job:
    """80 steps; a node dies after step 35, and what follows begins at step 30."""
    story = Job()
    begun = until_training()
    story.events = begun.events
    story.line(pod(1), 79, "started_fresh", step=0)
    for step in range(1, 36):
        say(story, 1, step, 80 + step * STEP_S)
    died = 80 + 35 * STEP_S
    ended = {"attempt": 1, "failure": "node", "detail": "dead", "step": 35, "committed_at_end": 30}
    story.event(died + 5, "attempt.ended", "steward", **ended)
    story.event(died + 10, "attempt.launched", "steward", attempt=2, jobset="rehearsal-a2", committed_step=30)
    story.line(pod(2), died + 12, "restored", step=30)
    story.event(died + 14, "attempt.running", "steward", attempt=2, step=31, nodes=NODES[:2])
    for step in range(31, 81):
        say(story, 2, step, died + 15 + (step - 30) * STEP_S)
    over = died + 15 + 50 * STEP_S + 1
    story.event(over, "attempt.ended", "steward", attempt=2, step=80, committed_at_end=80)
    story.event(over, "training.finished", "steward", outcome="done", why="done", step=80, committed_step=80)
    story.event(over + 1, "nodes.at-zero", "steward", group="gpu")
    return story


def made(story: ToldRecord) -> Report:
    return build(story.record(SPEC, PLAN, 200.0))


def seconds(report: Report, cause: TimeCause) -> float:
    return sum(row.seconds for row in report.shares if row.cause is cause)


ALIKE = {
    "without losses": told(loss=False),
    "losses on later lines": loss_on_a_later_line,
    "by the other pod": told(by=1),
    "by two pods": by_two_pods,
}


@pytest.mark.parametrize("say", ALIKE.values(), ids=ALIKE)
def test_steps_count_the_same_whatever_is_known_of_their_losses_and_whoever_tells_them(say: Say) -> None:
    report, twin = made(killed_after_35(say)), made(killed_after_35(told()))
    assert twin.training.repeats.steps == twin.training.repeats.equal == 5, "steps 31 to 35"
    assert report.training.steps_done == 80 and "step 80 of 80" in report.verdict
    assert report.goodput == twin.goodput and (twin.goodput or 0) > 0.1
    assert seconds(report, TimeCause.REDO) == pytest.approx(5 * STEP_S)
    rows = [(row.steps, row.repeated, row.last_step, row.from_step) for row in report.attempts]
    assert rows == [(35, 0, 35, 0), (50, 5, 80, 30)]
    repeats = report.training.repeats
    assert (repeats.steps, repeats.first_step, repeats.last_step, repeats.bitwise_equal) == (5, 31, 35, True)
    assert not [notice for notice in report.notices if "gave another loss" in notice.text]


def test_what_has_no_loss_is_counted_and_not_compared() -> None:
    report = made(killed_after_35(told(loss=False)))
    page = render(report)
    assert report.training.losses == () and report.training.repeats.uncompared == 5
    assert "the job told of no loss" in page and "bit for bit" not in page
    assert any("told of no loss" in notice.text for notice in report.notices)
    assert not any("No step is in the logs" in notice.text for notice in report.notices)


def test_a_job_that_tells_of_every_fifth_step_trained_all_of_them() -> None:
    sparse, dense = made(killed_after_35(told(every=5))), made(killed_after_35(told()))
    assert [(row.steps, row.repeated) for row in sparse.attempts] == [(35, 0), (50, 5)]
    assert sparse.goodput == pytest.approx(dense.goodput)
    assert seconds(sparse, TimeCause.REDO) == pytest.approx(seconds(dense, TimeCause.REDO))
    assert sparse.training.repeats.steps == 5 and sparse.training.repeats.compared == 1
    assert [len(series.points) for series in sparse.training.losses] == [7, 10]
    assert "repeated losses are equal" in render(sparse)


def test_the_start_of_a_job_is_not_taken_for_its_first_steps() -> None:
    """The supervisor's seconds of the first line it hears cover the imports before it."""

    def say(story: ToldRecord, attempt: int, step: int, at_s: float) -> None:
        if step % 5 == 0:
            first = step == (5 if attempt == 1 else 35)
            story.line(pod(attempt), at_s, "step", step=step, loss=None, seconds=2.0 if first else STEP_S)

    late, plain = made(killed_after_35(say)), made(killed_after_35(told(every=5, loss=False)))
    assert late.goodput == pytest.approx(plain.goodput)


def test_what_a_job_prints_is_no_step() -> None:
    story = killed_after_35(told(loss=False))
    before = made(story)
    at = BEGUN.timestamp() + 100
    for text in (
        {"event": "step", "step": 79, "loss": 0.1, "seconds": 9.0, "time": at},
        {"event": "restored", "step": 70, "time": at},
        {"event": "evaluated", "step": 70, "loss": 0.1, "time": at},
    ):
        story.logs[pod(1)] += [json.dumps(text), f"\u2028{json.dumps(text)}", f"x\x85{MARK}{json.dumps(text)}"]
    assert made(story).training == before.training and made(story).goodput == before.goodput


def test_a_log_of_an_older_supervisor_is_read_without_marks() -> None:
    story = killed_after_35(told())
    bare = {name: "\n".join(line.removeprefix(MARK) for line in lines) for name, lines in story.logs.items()}
    record = story.record(SPEC, PLAN, 200.0)
    assert build(type(record)(record.spec, record.plan, record.events, record.at, bare)) == build(record)


HOSTILE = [
    b'{"event": "step", "step": -5, "time": 1.0}', b'{"event": "step", "step": 1, "loss": NaN}', b"[" * 20_000,
    b'{"event": "step", "step": 1e400, "time": 1}', b'{"event": ["step"], "step": 1, "time": 2}',
    b'{"event": "step", "step": 1, "seconds": -9, "time": 2}', b'{"event": "restored", "step": {}, "time": 2}',
    b'{"event": "watch", "step": "x"}', b"\xff\xfe", b'{"event": "step", "step": 3, "time": "now"}',
]  # fmt: skip


def test_no_line_ends_the_report() -> None:
    story = killed_after_35(told())
    before = made(story)
    for body in HOSTILE:
        story.logs[pod(1)].insert(0, MARK + body.decode(errors="replace"))
    assert made(story) == before


@pytest.mark.parametrize("teller", [0, 1, 2, 7])
def test_the_log_of_the_pod_that_told_the_steps_is_read(teller: int) -> None:
    time = Time()
    store = CampaignStore(FakeS3(time), "b", SPEC.campaign, "driver", now=time.wall)
    store.put(f"{store.prefix}/spec.json", SPEC.model_dump_json().encode())
    store.put(f"{store.prefix}/plan.json", PLAN.model_dump_json().encode())
    store.put(f"{store.prefix}/identity.json", CampaignIdentity(identity="x").model_dump_json().encode())
    store.append(AttemptLaunched(attempt=1, jobset="rehearsal-a1", committed_step=-1))
    at = (time.wall() + timedelta(seconds=1)).timestamp()
    for index in range(8):
        lines = [MARK + json.dumps({"event": "agent", "time": at})]
        if index == teller:
            lines += [MARK + json.dumps({"event": "step", "step": 60, "loss": 0.5, "seconds": 0.1, "time": at})]
        store.put(f"{store.prefix}/{piece(pod(1, index), 0)}", ("\n".join(lines) + "\n").encode())
    record = report_stage.read(store)
    assert build(record).training.steps_done == 60
    assert len(record.logs) <= (2 if teller < 2 else 4 if teller == 7 else 8)

"""What people are told of a record, and in which words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.notices.changes import changes
from infra.notices.notice import SUBJECT, notice
from infra.record.events import Event
from infra.spec.notify import Change

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
RUNNING = ("attempt.running", {"attempt": 1, "nodes": ["a", "b"]})
HELD = ("held", {"until": "2026-11-23T20:00:00+00:00", "cause": "the loss is NaN"})
RISES = ("watch", {"step": 900, "detector": "drift", "text": "the loss has risen since step 800", "did": "logged"})
AT_ZERO = ("nodes.at-zero", {"group": "bivouac-train-gpu"})
TEARDOWN_BEGINS = ("stage.started", {"stage": "teardown"})
TEARDOWN_FAILS = ("stage.failed", {"stage": "teardown", "error": "the VPC has a stranger's interface"})
TORN_DOWN = ("stage.finished", {"stage": "teardown", "seconds": 300.0, "outputs": {"resources": 91, "swept": []}})


def record(*told: tuple[str, dict[str, Any]], hours: tuple[float, ...] = ()) -> list[Event]:
    """Events of one writer, a second after each other, or at the `hours` after noon."""
    at = hours or tuple(number / 3600 for number in range(len(told)))
    return [
        Event(at=NOON + timedelta(hours=hour), writer="w", sequence=number, kind=kind, data=data)
        for number, (hour, (kind, data)) in enumerate(zip(at, told, strict=True))
    ]


def told(events: list[Event], after: float = 0.01) -> list[tuple[Change, str]]:
    """Change and key of what is told so many hours after noon."""
    return [(change.change, change.key) for change in changes(events, NOON + timedelta(hours=after))]


@pytest.mark.parametrize(
    ("kind", "data", "change"),
    [
        (*RUNNING, Change.TRAINING),
        ("node.quarantined", {"node": "ip-1", "instance": "i-1", "reason": "dead"}, Change.NODE),
        (*HELD, Change.HELD),
        ("training.finished", {"outcome": "stopped", "why": "the deadline leaves no time"}, Change.FINISHED),
        ("archive.verified", {"step": 110, "objects": 12}, Change.ARCHIVED),
        ("archive.failed", {"error": "no GPU node"}, Change.FAILED),
        ("archive.unproven", {"prefix": "s3://a/b/unproven", "files": 4, "bytes": 9}, Change.ARCHIVED),
        ("checkpoint.unrecognised", {"files": 3, "bytes": 12, "newest": "a.ckpt", "why": "x"}, Change.CHECKPOINTS),
        ("checkpoint.not-sealed", {"step": 30, "why": "a link leads out"}, Change.CHECKPOINTS),
        ("checkpoint.look-failed", {"why": "OSError: [Errno 5] Input/output error"}, Change.CHECKPOINTS),
        ("checkpoint.step-refused", {"step": 30, "why": "a digest differs"}, Change.CHECKPOINTS),
        ("checkpoint.weights-only", {"attempt": 2, "why": "x"}, Change.CHECKPOINTS),
        ("training.started-over", {"attempt": 2, "before": 35, "why": "x"}, Change.CHECKPOINTS),
        ("training.resumed-elsewhere", {"attempt": 2, "offered": 30, "first": 1}, Change.CHECKPOINTS),
        ("training.loss-jumped", {"step": 31, "before": 2.5, "now": 7.1}, Change.CHECKPOINTS),
        (*RISES, Change.WATCH),
        ("watch", {"step": 900, "detector": "divergence", "text": "x", "did": "logged"}, Change.WATCH),
        ("watch", {"step": 900, "detector": "norm", "text": "x", "did": "logged"}, None),
        (*TEARDOWN_FAILS, Change.FAILED),
        (*TORN_DOWN, Change.TORN_DOWN),
        ("certified", {"clean": False, "found": ["volume vol-1"]}, Change.FAILED),
        ("certified", {"clean": True, "found": []}, None),
        ("stage.finished", {"stage": "bake"}, None),
        ("decision", {"action": "launch", "why": "enough fit nodes"}, None),
    ],
)
def test_a_change_is_told_by_its_place_in_the_record(kind: str, data: dict[str, Any], change: Change | None) -> None:
    assert told(record((kind, data))) == ([] if change is None else [(change, "w-000000")])


def test_a_slow_rise_is_told_once_in_an_attempt_and_says_what_to_do() -> None:
    events = record(RISES, RISES, ("attempt.launched", {"attempt": 2}), RISES)
    assert told(events) == [(Change.WATCH, "w-000000"), (Change.WATCH, "w-000003")]
    (first, _) = changes(events, NOON + timedelta(hours=0.01))
    text = notice(first, "camp", "us-east-1", "bills now: 4.27 USD/h").text
    assert "the loss has risen since step 800" in text and "bivouac relaunch camp" in text


def test_only_the_first_attempt_begins_the_training_and_one_after_a_hold_begins_it_again() -> None:
    relaunched = ("relaunched", {"version": 1})
    events = record(RUNNING, RUNNING, HELD, relaunched, RUNNING, RUNNING)
    assert told(events) == [(Change.TRAINING, "w-000000"), (Change.HELD, "w-000002"), (Change.TRAINING, "w-000004")]


def test_a_doubt_is_told_once_in_each_attempt() -> None:
    unrecognised = ("checkpoint.unrecognised", {"files": 3, "bytes": 12, "newest": "a.ckpt", "why": "x"})
    not_sealed = ("checkpoint.not-sealed", {"step": 30, "why": "a link leads out"})
    launched = ("attempt.launched", {"attempt": 2, "committed_step": -1})
    events = record(unrecognised, unrecognised, not_sealed, unrecognised, launched, unrecognised, not_sealed)
    assert [key for _, key in told(events)] == ["w-000000", "w-000002", "w-000005", "w-000006"]


def test_a_doubt_of_another_reason_is_told_again_and_of_another_step_it_is_not() -> None:
    def not_sealed(step: int, why: str) -> tuple[str, dict[str, Any]]:
        return "checkpoint.not-sealed", {"step": step, "why": why}

    events = record(
        not_sealed(10, "step-10 was written again"), not_sealed(20, "step-20 was written again"),
        not_sealed(30, "No space left on device"), not_sealed(40, "step-40 was written again"),
    )  # fmt: skip
    assert [key for _, key in told(events)] == ["w-000000", "w-000002"]
    many = record(*(not_sealed(step, f"{chr(65 + step)} is gone") for step in range(9)))
    assert [key for _, key in told(many)] == [f"w-{number:06d}" for number in range(5)], "no more in an attempt"


def test_a_notice_of_unrecognised_content_says_what_lies_there_and_what_would_fit() -> None:
    found = {"files": 3, "bytes": 12_000_000, "newest": "epoch=3.ckpt", "why": "looked for *.pt", "fits": "lightning"}
    subject, text = said(("checkpoint.unrecognised", found))
    assert "3 files (12.0 MB) of the job are no known checkpoint" in subject
    assert "the newest epoch=3.ckpt: looked for *.pt; `format: lightning` would fit" in text
    assert "bivouac relaunch train" in text


def test_a_notice_of_weights_alone_says_what_a_resume_will_miss() -> None:
    _, text = said(("checkpoint.weights-only", {"attempt": 1, "why": "it has no optimizer"}))
    assert "the job's checkpoints are weights alone: it has no optimizer" in text


def test_a_notice_of_a_start_over_names_the_step_that_was_trained() -> None:
    _, text = said(("training.started-over", {"attempt": 2, "before": 35, "why": "nothing was committed"}))
    assert "attempt 2 begins again at step 0 although step 35 was trained: nothing was committed" in text


def test_what_nobody_told_for_a_day_is_told_no_more() -> None:
    assert told(record(RUNNING), after=23.9) and not told(record(RUNNING), after=24.0)


@pytest.mark.parametrize(
    ("hours", "reminder"),
    [(0.99, None), (1.0, 1), (6.99, 1), (7.0, 2), (13.0, 3), (49.0, 9)],  # 1 + 6 n
)
def test_a_hold_is_told_again_after_an_hour_and_then_every_six(hours: float, reminder: int | None) -> None:
    due = [key for change, key in told(record(HELD), after=hours) if change is Change.BILLING]
    assert due == ([] if reminder is None else [f"w-000000+{reminder}"])


@pytest.mark.parametrize(
    ("then", "waits"),
    [
        (TEARDOWN_BEGINS, False),
        (("relaunched", {"version": 1}), False),
        (("training.finished", {"outcome": "held", "why": "x"}), False),
        (("stage.started", {"stage": "supervise"}), True),  # a driver that only watches
        (("decision", {"action": "wait", "why": "held"}), True),
    ],
)
def test_a_wait_ends_when_somebody_acts(then: tuple[str, dict[str, Any]], waits: bool) -> None:
    reminded = [change for change, _ in told(record(HELD, then), after=2.0) if change is Change.BILLING]
    assert bool(reminded) is waits


def test_gpu_nodes_at_zero_and_no_teardown_still_bill() -> None:
    assert (Change.BILLING, "w-000000+1") in told(record(AT_ZERO), after=1.5)
    assert told(record(AT_ZERO, TEARDOWN_BEGINS, TORN_DOWN), after=9) == [(Change.TORN_DOWN, "w-000002")]


def test_a_teardown_that_fails_again_and_again_is_told_once_and_then_by_reminders() -> None:
    """A closer tries every quarter of an hour, say: its tries are no news, that it still bills is."""
    tries = [event for _ in range(6) for event in (TEARDOWN_BEGINS, TEARDOWN_FAILS)]
    events = record(*tries, hours=(0, 0.1, 0.3, 0.4, 0.6, 0.7, 0.9, 1.0, 1.2, 1.3, 1.5, 1.6))
    assert told(events[:8], after=1.05) == [(Change.FAILED, "w-000001")]
    assert told(events, after=1.61) == [(Change.FAILED, "w-000001"), (Change.BILLING, "w-000001+1")]
    assert told(events, after=7.2)[-1] == (Change.BILLING, "w-000001+2")
    done = [
        *events,
        *(one.model_copy(update={"sequence": 12, "at": NOON + timedelta(hours=2)}) for one in record(TORN_DOWN)),
    ]
    assert told(done, after=9)[-1] == (Change.TORN_DOWN, "w-000012")


def said(event: tuple[str, dict[str, Any]], after: float = 0.01) -> tuple[str, str]:
    due = changes(record(event), NOON + timedelta(hours=after))[-1]
    made = notice(due, "train", "us-east-1", "bills now: 4.27 USD/h")
    return made.subject, made.text


def test_a_notice_says_who_what_the_cost_and_the_next_command() -> None:
    assert said(HELD) == (
        "bivouac train: held until 2026-11-23T20:00:00+00:00 for you to judge: the loss is NaN",
        "held until 2026-11-23T20:00:00+00:00 for you to judge: the loss is NaN.\n"
        "Cost: bills now: 4.27 USD/h.\n"
        "Next: `bivouac relaunch train --spec FILE` goes on with a mended spec; `bivouac down train` ends it\n"
        "Campaign train in us-east-1, 23 November 2026, 12:00 UTC.",
    )
    subject, text = said(TEARDOWN_FAILS, after=7.0)
    assert subject.startswith(
        "bivouac train: still billing, and waiting for somebody since 23 November 2026, 12:00 UTC"
    )
    assert "teardown has failed: the VPC has a stranger's interface" in text and "`bivouac down train` ends it" in text


def test_a_subject_is_what_sns_takes() -> None:
    """https://docs.aws.amazon.com/sns/latest/api/API_Publish.html: ASCII, no line break, fewer than 100 characters."""
    error = "Zürich\nis away: " + "x" * 5000
    subject, text = said(("stage.failed", {"stage": "provision", "error": error}))
    assert len(subject) == SUBJECT < 100 and subject.isascii() and subject.isprintable() and subject[0].isalpha()
    assert "Zürich" in text and len(text.encode()) < 4096


def test_people_hear_of_nodes_that_the_closer_gave_back_with_the_reason_and_reminders() -> None:
    why = "the steward has been silent for 21 minutes"
    events = record((AT_ZERO[0], {**AT_ZERO[1], "why": why}))
    assert told(events) == [(Change.FAILED, "w-000000")]
    (due,) = changes(events, NOON)
    text = notice(due, "train", "us-east-1", "bills now: 0.48 USD/h").text
    assert f"the closer gave the GPU nodes back: {why}." in text and "`bivouac down train` ends it" in text
    assert [change for change, _ in told(events, 1.5)] == [Change.FAILED, Change.BILLING]

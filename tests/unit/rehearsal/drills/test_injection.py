"""When the injector says that a training has overcome a fault, by a record whose clock is up to a second behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.record.events import Event
from infra.record.payloads import payload_of
from infra.rehearsal.drills.injection import Injection
from infra.rehearsal.drills.moments import Moment
from infra.spec.drills.scenarios import Expectation, Scenario

NOON = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
STRUCK = Moment(fault=0, kind="struck", at=NOON, step=40)
MOMENTS = {(0, "struck"): STRUCK, (0, "over"): STRUCK.model_copy(update={"kind": "over"})}
LATER = {"at": (NOON + timedelta(seconds=60)).isoformat(), "in_flight": True, "step": 90, "committed_step": 80}
ENDS = Scenario(what="its end", expect=Expectation(outcome="stopped", ends_within_s=60))
RESTARTS = Scenario(what="a restart", expect=Expectation(attempts=1, events=("attempt.ended",), committed_within_s=60))
BEHIND_S = [(-0.9, True), (-1.1, False), (5, True)]


def progress(scenario: Scenario, kind: str, data: dict[str, Any], at_s: float) -> Moment | None:
    event = Event.of(payload_of(kind, data), NOON + timedelta(seconds=at_s), "steward-1", 1)
    injection = Injection("http://127.0.0.1:1", "drilled", lambda: [event])
    return injection.progress(0, scenario, LATER, dict(MOMENTS))  # type: ignore[arg-type]


@pytest.mark.parametrize(("at_s", "counts"), BEHIND_S)
def test_a_training_that_ended_before_the_strike_was_not_ended_by_it(at_s: float, counts: bool) -> None:
    moment = progress(ENDS, "training.finished", {"outcome": "stopped", "why": "the budget"}, at_s)
    assert (moment is not None) == counts and (moment is None or moment.kind == "recovered")


@pytest.mark.parametrize(("at_s", "counts"), BEHIND_S)
def test_a_restart_before_the_strike_does_not_overcome_it(at_s: float, counts: bool) -> None:
    moment = progress(RESTARTS, "attempt.ended", {"attempt": 1, "failure": "node", "step": 40}, at_s)
    assert (moment is not None) == counts and (moment is None or moment.kind == "caught-up")

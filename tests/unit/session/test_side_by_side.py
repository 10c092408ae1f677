"""Two works of a driver run side by side; where one fails, the other ends at its next turn and clears up."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PermanentError
from infra.session.context import Context, side_by_side
from tests.waiting import HUNG_S

NOTHING: Any = None


def context() -> Context:
    return Context(
        spec=NOTHING,
        plan=NOTHING,
        account=NOTHING,
        operator_arn="",
        buckets=NOTHING,
        store=NOTHING,
        lease=NOTHING,
        progress=NOTHING,
        results=Path(),
        deadline=datetime.now(UTC),
    )


def test_each_work_runs_while_the_other_does_and_both_results_come_in_their_order() -> None:
    meeting = threading.Barrier(2)

    def work(name: str) -> str:
        meeting.wait(HUNG_S)
        return name

    assert side_by_side(context(), lambda _: work("first"), lambda _: work("second")) == ("first", "second")


@pytest.mark.parametrize("failing_first", [True, False])
def test_a_work_that_fails_halts_the_other_which_clears_up_before_the_error_is_raised(failing_first: bool) -> None:
    waiting, cleared, own = threading.Event(), threading.Event(), context()

    def fail(_: Context) -> None:
        waiting.wait(HUNG_S)
        raise PermanentError("the builder failed", seen="no", cure="mend it")

    def wait(other: Context) -> None:
        try:
            for _ in other.turns(HUNG_S, 0.01):
                waiting.set()
        finally:
            cleared.set()

    first, second = (fail, wait) if failing_first else (wait, fail)
    with pytest.raises(PermanentError, match="the builder failed"):
        side_by_side(own, first, second)
    assert cleared.is_set() and not own.halt.is_set(), "only the two works end, not what comes after them"
    assert len(list(own.turns(0.0))) == 1


def test_an_interrupted_driver_halts_both_works(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []

    def wait(other: Context) -> None:
        with pytest.raises(KeyboardInterrupt):
            for _ in other.turns(HUNG_S, 0.01):
                pass
        ends.append("ended")

    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("infra.session.context.as_completed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(context(), wait, wait)
    assert ends == ["ended", "ended"]

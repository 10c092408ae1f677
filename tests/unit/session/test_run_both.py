"""Two works of a driver run side by side; where one fails, the other ends at its next turn and clears up."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.errors import PermanentError
from infra.session.context import Context, run_both
from tests.waiting import HUNG_S

NOTHING: Any = None


def context() -> Context:
    progress: Any = SimpleNamespace(step=lambda text: None)
    return Context(NOTHING, NOTHING, NOTHING, "", NOTHING, NOTHING, NOTHING, progress, Path(), datetime.now(UTC))


def test_each_work_runs_while_the_other_does_and_both_results_come_in_their_order() -> None:
    meeting = threading.Barrier(2)

    def work(name: str) -> str:
        meeting.wait(HUNG_S)
        return name

    assert run_both(context(), lambda _: work("first"), lambda _: work("second")) == ("first", "second")


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
        run_both(own, first, second)
    assert cleared.is_set() and not own.halt.is_set(), "only the two works end, not what comes after them"
    assert len(list(own.turns(0.0))) == 1


def test_an_interrupted_driver_ends_after_both_works_however_often_it_is_interrupted() -> None:
    """Signals come as exceptions into the main thread: real ones, while it waits for the works and for their ends."""
    begun, halted = threading.Barrier(3), threading.Barrier(3)
    ends, interrupts = list[str](), list[int]()

    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        raise Interrupted

    def work(other: Context) -> None:
        begun.wait(HUNG_S)
        while not other.halt.is_set():
            time.sleep(0.001)
        halted.wait(HUNG_S)
        while len(interrupts) < 2:  # it is not done before the second
            time.sleep(0.01)
        ends.append("ended")

    def send() -> None:
        for moment in (begun, halted):
            moment.wait(HUNG_S)
            os.kill(os.getpid(), signal.SIGUSR1)

    earlier = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Interrupted):
            run_both(context(), work, work)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, earlier)
    assert ends == ["ended", "ended"] and len(interrupts) == 2

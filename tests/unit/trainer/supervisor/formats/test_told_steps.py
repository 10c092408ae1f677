"""Which step a job had told when something was written, and which numbers in names are far beyond it."""

from __future__ import annotations

import threading
import time

import pytest

from trainer.supervisor.formats.told_steps import ToldSteps, is_far


def told(*rows: tuple[float, int]) -> ToldSteps:
    steps = ToldSteps()
    for at, step in rows:
        steps.note(step, at)
    return steps


@pytest.mark.parametrize(("number", "step", "far"), [(1, 0, False), (2, 0, True), (50, 5, False), (51, 5, True)])
def test_a_number_is_far_beyond_a_step_from_ten_times_on(number: int, step: int, far: bool) -> None:
    assert is_far(number, step) is far


def test_what_is_written_is_of_the_last_line_before_it_which_may_be_read_a_moment_late() -> None:
    steps = told((100.0, 1), (110.0, 2))
    assert [steps.before(at, -1) for at in (99.0, 100.0, 109.9, 109.99, 110.0, 200.0)] == [-1, 1, 1, 2, 2, 2]
    assert told((1.0 + 0.02, 5)).before(1.0, -1) == 5


@pytest.mark.parametrize(("at", "steps"), [(99.0, 0), (99.995, 1), (100.001, 2), (100.011, 1), (100.1, 0)])
def test_lines_that_are_read_just_after_a_file_was_written_are_in_doubt(at: float, steps: int) -> None:
    lines = told((100.0, 10), (100.01, 11), (100.02, 12), (100.125, 13))
    assert lines.doubtful_steps(at) == steps and ToldSteps().doubtful_steps(at) == 0


def test_a_line_follows_only_what_was_written_before_it() -> None:
    steps = told((100.0, 1))
    assert steps.follow(99.9) and not steps.follow(100.0) and not ToldSteps().follow(0.0)


def test_before_two_steps_are_told_only_the_estimate_bounds_a_number() -> None:
    steps = told((time.time(), 5))
    assert not steps.are_several and steps.seconds_apart == 0.0
    assert steps.are_passed_by(1001, 100) and not steps.are_passed_by(1000, 100) and not steps.are_passed_by(10**9, 0)


def test_what_the_job_has_reached_bounds_a_number_by_its_last_line_and_the_time_since() -> None:
    now = time.time()
    steps = told((now - 20.0, 10), (now - 10.0, 20))
    assert steps.are_several and steps.seconds_apart == pytest.approx(1.0)
    # 30 steps by now, 64 times as many, and ten times the longest pause of 10 steps
    assert steps.are_passed_by(64 * 32 + 100, 0) and not steps.are_passed_by(64 * 30 + 99, 0)


def test_a_job_of_very_quick_steps_has_reached_more_than_it_told_last() -> None:
    now = time.time()
    steps = told((now - 1.0, 1), (now - 0.9, 1001))
    # at least 1001 + 0.9 s / 1 ms; ten times the longest pause of 1000 steps
    assert not steps.are_passed_by(64 * 1901 + 10_000, 0) and steps.are_passed_by(64 * 2901 + 10_000, 0)


def test_a_line_may_be_heard_while_the_step_of_a_file_is_looked_up() -> None:
    steps, over = told(*((100.0 + step, step) for step in range(10_000))), threading.Event()

    def hear() -> None:
        while not over.is_set():
            steps.note(1, 1e6)

    reader = threading.Thread(target=hear)
    reader.start()
    try:
        assert {steps.before(0.0, -1) for _ in range(100)} == {-1}
    finally:
        over.set()
        reader.join()

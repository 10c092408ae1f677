"""A loop's garbage is collected at steps with certain numbers, and at no other time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from trainer.builtin.tuning.garbage import EVERY, collection

Call = Callable[[Callable[[], None]], None]


class Circle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(scope="module")
def apart() -> Iterator[Call]:
    """Call in a process of its own: a whole collection of all that the tests have imported takes a second, and what the
    loop sets aside and gives back is also what these tests have set aside."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield lambda work: process.submit(work).result()


def circle_of_a_step() -> None:
    with collection() as garbage:
        garbage.collect_after(EVERY + 1)  # the first step of this attempt
        gone = weakref.ref(Circle())
        for step in range(EVERY + 2, 2 * EVERY):
            garbage.collect_after(step)
            assert gone() is not None
        garbage.collect_after(2 * EVERY)
        assert gone() is None


def loop_that_fails() -> None:
    with pytest.raises(KeyError), collection():
        gone = weakref.ref(Circle())
        _ = [[index] for index in range(200_000)]  # many times the threshold
        assert not gc.isenabled() and gone() is not None
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() == 0


def first_step() -> None:
    with collection() as garbage:
        before = gc.get_freeze_count()
        kept = [Circle() for _ in range(1000)]
        garbage.collect_after(1)
        assert gc.get_freeze_count() >= before + len(kept)


def test_a_circle_of_a_step_lives_until_a_step_whose_number_is_due(apart: Call) -> None:
    apart(circle_of_a_step)


def test_python_collects_nothing_on_its_own_in_a_loop_and_everything_after_it(apart: Call) -> None:
    apart(loop_that_fails)


def test_what_was_there_before_the_loop_and_after_its_first_step_is_not_looked_at_again(apart: Call) -> None:
    apart(first_step)

"""A loop's garbage is collected at steps with certain numbers, and at no other time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trainer.builtin.tuning.garbage import EVERY, collection


class Circle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_a_circle_of_a_step_lives_until_a_step_whose_number_is_due() -> None:
    with collection() as garbage:
        garbage.collect_after(EVERY + 1)  # the first step of this attempt
        gone = weakref.ref(Circle())
        for step in range(EVERY + 2, 2 * EVERY):
            garbage.collect_after(step)
            assert gone() is not None
        garbage.collect_after(2 * EVERY)
        assert gone() is None


def test_python_collects_nothing_on_its_own_in_a_loop_and_everything_after_it() -> None:
    with pytest.raises(KeyError), collection():
        gone = weakref.ref(Circle())
        _ = [[index] for index in range(200_000)]  # many times the threshold
        assert not gc.isenabled() and gone() is not None
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_what_was_there_before_the_loop_and_after_its_first_step_is_not_looked_at_again() -> None:
    with collection() as garbage:
        before = gc.get_freeze_count()
        kept = [Circle() for _ in range(1000)]
        garbage.collect_after(1)
        assert gc.get_freeze_count() >= before + len(kept)

"""Trends of a node's readings: what raises each rule, and that 10,000 readings of noise raise none."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from infra.steward.foresight.trends import EVERY_S, WINDOW, NodeReading, decline_of

Series = Callable[[int, random.Random], dict[str, Any]]
LONG = 10_000


def readings(series: Series, count: int, seed: int = 1) -> list[NodeReading]:
    chance = random.Random(seed)
    return [NodeReading(number * EVERY_S, **series(number, chance)) for number in range(count)]


def first_alarm(series: Series, count: int, seed: int = 1) -> tuple[int, str] | None:
    """The number of the reading after which a decline is told first, and its words."""
    rows = readings(series, count, seed)
    for end in range(WINDOW, count + 1):
        if reason := decline_of(rows[max(0, end - WINDOW) : end]):
            return end, reason
    return None


DECLINES: dict[str, tuple[Series, str]] = {
    "memory errors": (lambda n, chance: {"corrected": n * 30}, "correct ever more memory errors"),
    "memory errors across a new driver": (
        lambda n, chance: {"corrected": (n * 30) % 900}, "correct ever more memory errors"),
    "heat": (lambda n, chance: {"is_throttled": n % 3 > 0}, "heat lowers the clocks of a GPU: in 66 %"),
    "shared memory": (
        lambda n, chance: {"shm_free": max(0.0, 0.9 - n * 0.01 + chance.gauss(0, 0.005))}, "/dev/shm is full in"),
    "a rank": (
        lambda n, chance: {"slowness": 1.0 + n * 0.005 + chance.gauss(0, 0.01)}, "a rank of it becomes slower"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLINES)
def test_a_decline_is_told_within_an_hour_and_named(name: str) -> None:
    series, words = DECLINES[name]
    alarm = first_alarm(series, 130)
    assert alarm is not None and words in alarm[1]


NOISE: dict[str, Series] = {
    "single corrected errors": lambda n, chance: {"corrected": n // 40},
    "a burst of corrected errors": lambda n, chance: {"corrected": 5000 * (n // 1000)},
    "heat for moments": lambda n, chance: {"is_throttled": chance.random() < 0.15},
    "shared memory that fills and is emptied": lambda n, chance: {
        "shm_free": 0.9 - 0.02 * (n % 25) + chance.gauss(0, 0.02)},
    "full shared memory that stays so": lambda n, chance: {"shm_free": max(0.0, 0.03 + chance.gauss(0, 0.005))},
    "shared memory that breathes": lambda n, chance: {"shm_free": min(1.0, max(0.0, chance.uniform(0.02, 0.9)))},
    "a rank that is always slow": lambda n, chance: {"slowness": 1.3 + chance.gauss(0, 0.05)},
    "ranks that are slow in turn": lambda n, chance: {
        "slowness": 1.05 + abs(chance.gauss(0, 0.08)) if chance.random() < 0.5 else None},
    "steps whose times have a long tail": lambda n, chance: {"slowness": 1.0 + chance.expovariate(12)},
    "nothing known": lambda n, chance: {},
}  # fmt: skip


@pytest.mark.parametrize("name", NOISE)
def test_ten_thousand_readings_of_noise_raise_no_alarm(name: str) -> None:
    assert first_alarm(NOISE[name], LONG) is None


@pytest.mark.parametrize("name", DECLINES)
def test_less_than_a_window_says_nothing(name: str) -> None:
    rows = readings(DECLINES[name][0], 200)
    assert decline_of(rows[-(WINDOW - 1) :]) == "" and decline_of(()) == ""


@pytest.mark.parametrize("name", ["memory errors", "heat", "shared memory"])
def test_a_reading_that_was_not_known_is_no_sign(name: str) -> None:
    rows = readings(DECLINES[name][0], 85)[-WINDOW:]
    assert decline_of(rows)
    assert decline_of([*rows[:-1], NodeReading(rows[-1].at_s)]) == ""

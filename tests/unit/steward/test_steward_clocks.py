"""The steward's clocks as values: taken over, stored, bounded; and the moment that several clocks agree on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.clock import Clock
from infra.steward.clocks import Clocks, StoredClocks, taken_over

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
seconds = st.integers(0, 10**6)


def kept(**changes: object) -> StoredClocks:
    base = dict(attempt=3, launched=NOON - timedelta(hours=2), stepped=NOON - timedelta(minutes=8), step=70)
    return StoredClocks.model_validate(base | changes)


def over(
    stored: StoredClocks | None, attempt: int = 3, launched: datetime | None = None, now: datetime = NOON
) -> Clocks:
    return taken_over(stored, attempt, launched or NOON - timedelta(hours=2), NOON - timedelta(days=1), 5000.0, now)


@given(seconds, seconds, seconds, seconds, st.integers(0, 10**6), st.booleans())
def test_stored_and_taken_over_they_have_gone_on_by_the_time_between(
    launched: int, stepped: int, short: int, away: int, step: int, lacks: bool
) -> None:
    before = Clocks(1, 9e6 - launched, 9e6 - min(stepped, launched), step, 9e6 - short if lacks else None)
    stored, now = before.to_stored(9e6, NOON), NOON + timedelta(seconds=away)
    after = taken_over(stored, 1, NOON - timedelta(seconds=launched), NOON - timedelta(days=100), 50.0, now)
    assert after.step == step
    assert 50 - after.launched == pytest.approx(launched + away)
    assert 50 - after.stepped == pytest.approx(min(stepped, launched) + away)
    assert (after.short is None) is (not lacks)
    if after.short is not None:
        assert 50 - after.short == pytest.approx(short + away)


@given(st.integers(-(10**7), 10**7), st.integers(-(10**7), 10**7), st.integers(0, 10**6))
def test_nothing_has_lasted_longer_than_since_its_launch_or_less_than_no_time(
    launched: int, stepped: int, age: int
) -> None:
    stored = kept(launched=NOON + timedelta(seconds=launched), stepped=NOON + timedelta(seconds=stepped))
    clocks = over(stored, launched=NOON - timedelta(seconds=age))
    for mark in (clocks.launched, clocks.stepped):
        assert 5000 - age - 1e-3 <= mark <= 5000


def test_another_attempt_s_clocks_are_not_this_one_s_but_nodes_stay_short_and_sick() -> None:
    stored = kept(
        attempt=2, short=NOON - timedelta(minutes=4), quiet={"p": NOON}, sick={"n": NOON - timedelta(minutes=1)}
    )
    clocks = over(stored, launched=NOON - timedelta(seconds=30))
    assert (clocks.launched, clocks.stepped, clocks.step, clocks.quiet) == (4970, 4970, 0, {})
    assert clocks.short == 5000 - 240 and clocks.sick == {"n": 4940}


def test_without_stored_clocks_the_launch_is_what_the_event_says() -> None:
    clocks = over(None, launched=NOON - timedelta(minutes=3))
    assert (clocks.launched, clocks.stepped, clocks.short) == (4820, 4820, None)
    assert taken_over(None, 0, None, None, 5000.0, NOON).launched == 5000


def test_only_a_step_that_rises_moves_the_clock() -> None:
    clocks = over(kept())
    marked = clocks.stepped
    for step in (70, 70, 3, 3):
        clocks.note_step(step, 5010.0)
        assert clocks.stepped == marked == 5000 - 480 and clocks.step == 70
    clocks.note_step(4, 5020.0)
    assert (clocks.step, clocks.stepped) == (70, 5020), "it counts from 0 again, and goes on"
    clocks.note_step(71, 5030.0)
    assert (clocks.step, clocks.stepped) == (71, 5030)


def test_nodes_are_short_since_the_first_time_until_they_are_enough() -> None:
    clocks = Clocks.begin(1, 10.0)
    for moment, short, wanted in ((20.0, True, 20), (30.0, True, 20), (40.0, False, None), (50.0, True, 50)):
        clocks.lacks(short, moment)
        assert clocks.short == wanted


def test_a_new_attempt_begins_at_zero_with_the_nodes_as_they_are() -> None:
    before = Clocks(1, 0.0, 0.0, 70, short=7.0, quiet={"p": 1.0}, sick={"n": 3.0})
    after = Clocks.begin(2, 100.0, before)
    assert after == Clocks(2, 100.0, 100.0, 0, short=7.0, sick={"n": 3.0})


def test_a_restart_in_place_begins_the_times_anew_once_also_for_who_takes_over() -> None:
    clocks = over(kept())
    clocks.note_restart(1, 5010.0)
    assert (clocks.step, clocks.launched, clocks.stepped) == (0, 5010, 5010)
    clocks.note_step(40, 5060.0)
    clocks.note_restart(1, 5070.0)
    assert (clocks.step, clocks.launched, clocks.stepped) == (40, 5010, 5060)
    successor = over(clocks.to_stored(5060.0, NOON))
    successor.note_restart(1, 5080.0)
    assert (successor.step, successor.launched, successor.stepped) == (40, 4950, 5000)


def test_what_would_tell_a_successor_nothing_new_is_the_same() -> None:
    now = kept(short=NOON, quiet={"p": NOON})
    assert now.same_as(now) and not now.same_as(None)
    assert now.same_as(now.model_copy(update={"stepped": now.stepped + timedelta(seconds=4)}))
    differing: tuple[dict[str, Any], ...] = (
        {"step": 71}, {"attempt": 4}, {"generation": 1}, {"short": None}, {"quiet": {}}, {"sick": {"n": NOON}},
        {"stepped": now.stepped + timedelta(seconds=5)}, {"launched": now.launched - timedelta(seconds=5)},
    )  # fmt: skip
    for news in differing:
        assert not now.same_as(now.model_copy(update=news)), news


def said(ahead: float) -> str:
    return format_datetime(NOON + timedelta(seconds=ahead), usegmt=True)


class Told:
    def __init__(self, own: float) -> None:
        self.mono = 100.0
        self.clock = Clock(lambda: self.mono, lambda: NOON + timedelta(seconds=own + self.mono - 100))

    def off(self, **heard: float) -> float:
        for source, ahead in heard.items():
            self.clock.hear(source, said(ahead))
        return (self.clock.now() - NOON).total_seconds()


YEARS = 10.0**8


def test_alone_a_machine_s_own_clock_is_believed() -> None:
    told = Told(own=50)
    assert told.off() == 50 and told.clock.disagreement() is None


@pytest.mark.parametrize(
    ("own", "heard", "right"),
    [
        (YEARS, {"S3": 1}, 1),
        (-YEARS, {"S3": 1}, 1),
        (YEARS, {"S3": 1, "AWS": 2}, 2),
        (1, {"S3": YEARS, "AWS": 2}, 2),
        (1, {"S3": -YEARS, "AWS": 2}, 1),
        (YEARS, {"S3": 1, "AWS": 2, "Kubernetes": 3}, 2),
        (0, {"S3": YEARS, "AWS": 2, "Kubernetes": 3}, 3),
    ],
)
def test_one_clock_that_is_off_is_outvoted(own: float, heard: dict[str, float], right: float) -> None:
    assert Told(own).off(**heard) == right


def test_a_clock_that_is_off_is_named_and_small_differences_are_not() -> None:
    told = Told(own=-3600)
    told.off(S3=0, AWS=29)
    assert told.clock.disagreement() == "clocks disagree: this machine is 3600 s behind; believed: AWS, S3"
    told.clock.hear("AWS", said(31))
    assert "AWS is 31 s ahead" in str(told.clock.disagreement())


def test_between_answers_only_the_monotonic_clock_goes_on() -> None:
    told = Told(own=0)
    told.off(S3=10)
    told.mono += 60
    assert (told.clock.now() - NOON).total_seconds() == 70
    told.clock.hear("S3", "no date")
    told.clock.hear("S3", None)
    assert (told.clock.now() - NOON).total_seconds() == 70


def test_a_clock_is_off_by_more_than_thirty_seconds_and_each_that_is_is_named() -> None:
    told = Told(own=0)
    told.off(S3=0, AWS=30)
    assert told.clock.disagreement() is None
    told.off(AWS=31)
    assert told.clock.disagreement() == "clocks disagree: AWS is 31 s ahead; believed: S3, this machine"
    several = Told(own=-3600)
    several.off(S3=0, Kubernetes=0, AWS=600)
    words = "AWS is 600 s ahead, this machine is 3600 s behind; believed: Kubernetes, S3"
    assert several.clock.disagreement() == f"clocks disagree: {words}"


def test_a_clock_without_a_source_reads_this_machines_which_goes_on_in_its_sleep() -> None:
    clock = Clock()
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert begun <= clock.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert before <= clock.now() <= datetime.now(UTC) + timedelta(milliseconds=1) and clock.now().tzinfo is UTC

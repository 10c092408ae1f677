"""A clock that is set back or forth turns no event around, breaks no fold, hides no leak and no money."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.inventory.evidence import Knowledge
from infra.kinds import Thing
from infra.record.events import Event, Stage, fold, ordered
from infra.record.meter import read
from infra.spec.names import Names
from tests.unit.record.cost_lines import lines

NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)


def _event(writer: str, sequence: int, minutes: int, kind: str = "decision", **data: object) -> Event:
    return Event(at=NOON + timedelta(minutes=minutes), writer=writer, sequence=sequence, kind=kind, data=data)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-90, 90)), max_size=30), st.randoms())
def test_a_writers_own_sequence_survives_any_clock(steps: list[tuple[str, int]], random: object) -> None:
    count: dict[str, int] = {}
    events = []
    for writer, minutes in steps:
        events.append(_event(writer, count.get(writer, 0), minutes))
        count[writer] = count.get(writer, 0) + 1
    random.shuffle(events)  # type: ignore[attr-defined]
    found = ordered(events)
    assert len(found) == len(events)
    for writer in count:
        assert [e.sequence for e in found if e.writer == writer] == list(range(count[writer]))


def test_a_stage_that_ended_an_hour_before_it_began_has_ended() -> None:
    started = _event("driver", 0, 0, "stage.started", stage="provision")
    finished = _event("driver", 1, -60, "stage.finished", stage="provision", seconds=30.0)
    state = fold([finished, started])
    assert state.running_stage is None and Stage.PROVISION in state.finished_stages


def test_without_a_jump_time_alone_orders_writers() -> None:
    first, second, third = _event("b", 0, 0), _event("a", 0, 1), _event("b", 1, 2)
    assert ordered([third, second, first]) == (first, second, third)


@pytest.mark.parametrize("ahead", [timedelta(hours=-9), timedelta(), timedelta(hours=9)])
def test_what_was_not_there_before_is_a_suspect_whatever_the_drivers_clock_says(ahead: timedelta) -> None:
    """AWS stamps what it makes, the driver stamps its events: their clocks need not agree."""
    knowledge = Knowledge(Names("k2"), began=NOON + ahead, before={"volume": frozenset({"vol-old"})})
    there, fresh = (Thing(id, created=NOON + timedelta(hours=1)) for id in ("vol-old", "vol-new"))
    assert [suspect.thing.id for suspect in knowledge.suspects({"volume": [there, fresh]})] == ["vol-new"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-90, 90), st.sampled_from(list(Stage))), max_size=12))
def test_no_clock_turns_the_meter_back(steps: list[tuple[str, int, Stage]]) -> None:
    events = [
        _event(writer, number, minutes, "stage.started", stage=stage)
        for number, (writer, minutes, stage) in enumerate(steps)
    ]
    spent = Decimal(0)
    for now in (NOON - timedelta(hours=3), NOON, NOON + timedelta(hours=3)):
        found = read(lines(1, 20), events, now)
        assert found.spent_usd >= spent
        assert all(up.ended > up.begun for window in found.windows.values() for up in window)
        spent = found.spent_usd


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-90, 90)), max_size=30))
def test_times_never_go_back_in_the_order(steps: list[tuple[str, int]]) -> None:
    found = ordered(_event(writer, number, minutes) for number, (writer, minutes) in enumerate(steps))
    assert [e.at for e in found] == sorted(e.at for e in found) and ordered(found) == found

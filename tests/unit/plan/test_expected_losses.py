"""How likely chance alone passes a limit, against campaigns that were drawn; when an attempt ended, by the record."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from infra.plan.estimates.losses import chance_of_more, limit_for
from infra.record.events import Event, fold
from infra.steward import resume_state

DAY = 24.0


def simulated(limit: int, per_hour: float, hours: float, campaigns: int = 2000) -> float:
    """Part of the campaigns that have more than `limit` losses within some day."""
    chance, ended = random.Random(7), 0
    for _ in range(campaigns):
        now, within = chance.expovariate(per_hour), list[float]()
        while now <= hours:
            within = [*(at for at in within if at > now - DAY), now]
            if len(within) > limit:
                ended += 1
                break
            now += chance.expovariate(per_hour)
    return ended / campaigns


@pytest.mark.parametrize(
    ("limit", "nodes", "hours"), [(3, 64, 504.0), (14, 512, 504.0), (16, 512, 504.0), (5, 512, 16.0), (8, 512, 16.0)]
)
def test_the_chance_bounds_what_a_simulation_gives_and_is_not_far_from_it(limit: int, nodes: int, hours: float) -> None:
    bound, seen = chance_of_more(limit, nodes / 2000, DAY, hours), simulated(limit, nodes / 2000, hours)
    assert seen * 0.8 <= bound <= max(4 * seen, seen + 0.01)


def test_the_limit_named_is_the_smallest_that_will_do() -> None:
    needed = limit_for(0.01, 512 / 2000, DAY, 504)
    assert chance_of_more(needed, 512 / 2000, DAY, 504) <= 0.01 < chance_of_more(needed - 1, 512 / 2000, DAY, 504)


@pytest.mark.parametrize("per_hour", [0.0, 1e-300, 1e3, 1e12])
def test_no_rate_is_too_small_or_too_large(per_hour: float) -> None:
    mean = per_hour * DAY
    assert int(mean) <= limit_for(0.01, per_hour, DAY, 504) <= mean + 9 * mean**0.5 + 1


def test_an_old_record_says_by_its_events_own_time_when_an_attempt_ended() -> None:
    begin = datetime(2026, 11, 1, tzinfo=UTC)
    events = [
        Event(at=begin + timedelta(days=at), writer="steward", sequence=at, kind=kind, data=data)
        for at, (kind, data) in enumerate(
            [
                ("attempt.launched", {"attempt": 1, "jobset": "a1", "committed_step": -1}),
                ("attempt.ended", {"attempt": 1, "failure": "node", "detail": "", "committed_at_end": 10}),
            ]
        )
    ]
    (attempt,) = resume_state.history(fold(events)).attempts
    assert attempt.ended_at == begin + timedelta(days=1)

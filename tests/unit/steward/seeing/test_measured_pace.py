"""Measured steps replace the spec's estimate in the steward: for what is left of time and money."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from infra.cluster.steward_config import StewardConfig
from infra.steward.decide import History, Observation
from infra.steward.seeing import lookout
from infra.steward.seeing.lookout import MEASURED_STEPS, Pace, interval_and_archive
from infra.steward.seeing.views import PodView
from tests.unit.steward.seeing.test_lookout import POLICY, Turn
from tests.unit.steward.steward_story import config
from tests.worlds.s3 import NOON


def seen(second: float, step: int, attempt: int = 1, deadline: timedelta = timedelta(hours=4)) -> Observation:
    pod = PodView(index=0, name="p", node="n", phase="Running", step=step)
    return Observation(
        now=NOON + timedelta(seconds=second), deadline=NOON + deadline, spent_usd=Decimal(1),
        usd_per_hour=Decimal(14), attempt=attempt, in_flight=True, pods=(pod,),
    )  # fmt: skip


def test_a_pace_counts_as_measured_after_some_steps_and_outlives_its_attempt() -> None:
    pace = Pace()
    measured = list[float | None]()
    looks = ((100, 1, 1), (200, 6, 1), (300, 11, 1), (700, 11, 1), (800, 12, 1), (900, 1, 2), (905, 6, 2), (910, 11, 2))
    for second, step, attempt in looks:
        pace.note(seen(second, step, attempt), step)
        measured.append(pace.measured_s)
    # 10 steps in 200 s; nothing new while the gang hangs; 11 in 700 s; attempt 2: 10 steps in 10 s
    assert MEASURED_STEPS == 10
    slow = pytest.approx(700 / 11)
    assert measured == [None, None, 20.0, 20.0, slow, slow, slow, 1.0]


def of_job(made: StewardConfig, save_every: int) -> StewardConfig:
    job: Any = SimpleNamespace(save_every=save_every)
    return made.model_copy(update={"train": None, "workload": job})


def test_an_interval_of_the_built_in_training_and_of_a_job_follow_from_the_measured_step() -> None:
    made = config()
    assert made.train is not None
    every_steps = made.train.checkpoint.every_steps
    assert interval_and_archive(made, 7.0) == timedelta(seconds=7 * every_steps, minutes=5)
    assert interval_and_archive(of_job(made, 30), 7.0) == timedelta(seconds=210, minutes=5)


def test_a_slow_step_ends_the_training_while_an_interval_and_the_archive_still_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    views = [seen(0, 1), seen(600, 11), seen(601, 11, deadline=timedelta(minutes=30))]

    class Observer:
        def __init__(self, *given: Any) -> None:
            self.clocks, self.statuses = lookout.Clocks.begin(0, 0.0), dict[str, Any]()

        def observe(self, *state: Any) -> Observation:
            return views.pop(0)

    monkeypatch.setattr(lookout, "Observer", Observer)
    turn = Turn()
    made = config()
    assert made.train is not None
    # A minute a step: an interval takes longer than the 10 minutes of the estimate, and than the 20 that are left.
    assert made.train.checkpoint.every_steps >= 15
    actions = [turn.lookout.look(POLICY, History(), (1, True, -1), None, (), None)[1] for _ in range(3)]
    assert [action.kind for action in actions] == ["wait", "wait", "end-attempt"], actions
    assert "no time for another interval" in actions[-1].why

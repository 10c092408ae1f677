"""`bivouac status` tells what the newest attempt does, at which step, how fast, and for how long still."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.cli.look import status
from infra.cli.look.status import training_of
from infra.record.events import fold
from infra.record.store import LIVE
from infra.steward.decide import Observation, Wait
from infra.steward.seeing.lookout import Live
from infra.steward.seeing.views import NodeView, PodView
from tests.unit.cli.test_unreadable_objects import SPEC, Recorded
from tests.worlds.s3 import NOON

FIGURES: dict[str, Any] = {
    "at": NOON.isoformat(), "attempt": 2, "in_flight": True, "step": 50, "steps": 110, "loss": 3.2123456,
    "committed_step": 40, "spent_usd": 1.0, "usd_per_hour": 14.0, "why": "all is well", "step_seconds": 0.5,
    "nodes": [{"ready": True}, {"ready": None}],
}  # fmt: skip


@pytest.fixture
def recorded() -> Recorded:
    made = Recorded()
    made.event("attempt.launched", attempt=2, jobset="x-a2", committed_step=40)
    return made


def lines(recorded: Recorded, **live: Any) -> dict[str, str]:
    recorded.store.put_json(LIVE, FIGURES | live)
    return dict(status._lines(*status.facts_of(recorded.again())))


def test_an_attempt_that_trains_has_step_pace_and_time_to_the_end(recorded: Recorded) -> None:
    shown = lines(recorded)
    assert shown["training"] == "attempt 2 trains: step 50 of 110, loss 3.212, committed 40; all is well"
    assert SPEC.training is not None
    tokens = round(SPEC.training.global_batch * SPEC.training.model.context / 0.5)
    assert shown["pace"] == f"0.5 s a step, {tokens:,} tokens/s; 30.0 s to the last step"
    assert shown["nodes"] == "1 of 2 ready" and shown["money"].endswith("USD/h")


@pytest.mark.parametrize("step", [0, 40])
def test_an_attempt_that_restores_is_at_the_step_that_it_restores(recorded: Recorded, step: int) -> None:
    shown = lines(recorded, step=step)
    assert shown["training"].startswith("attempt 2 restores: step 40 of 110") and "pace" not in shown


def test_a_first_attempt_starts_and_an_ended_one_has_the_step_of_its_end(recorded: Recorded) -> None:
    state = fold(recorded.store.events())
    for live, activity, step in (
        ({"attempt": 1, "step": 0}, "starts", 0),
        ({"attempt": 1, "step": 0, "in_flight": False}, "ended", 80),
        ({"attempt": 2, "step": 41}, "trains", 41),
    ):
        training = training_of(SPEC, state, FIGURES | live)
        assert training is not None and (training["activity"], training["step"]) == (activity, step)
    assert training_of(SPEC, state, {}) is None


def test_the_steward_publishes_the_pace_of_the_attempt(recorded: Recorded) -> None:
    live = Live(recorded.store, 110)

    def pace(second: int, attempt: int, step: int) -> Any:
        pod = PodView(index=0, name="p", node="n", phase="Running", step=step)
        observation = Observation(
            now=NOON + timedelta(seconds=second), deadline=NOON + timedelta(hours=4), spent_usd=1, usd_per_hour=14,
            attempt=attempt, in_flight=True, pods=(pod,), nodes=(NodeView(name="n", instance=None, ready=True),),
        )  # fmt: skip
        live.tell(observation, Wait(why=str(second)), None)
        figures = recorded.store.get_json(LIVE)
        return None if figures is None else figures["step_seconds"]

    assert [pace(*look) for look in ((0, 1, 0), (60, 1, 5), (70, 1, 25), (90, 2, 0), (95, 2, 21), (96, 2, 23))] == [
        None, None, 0.5, None, None, 0.5,
    ]  # fmt: skip

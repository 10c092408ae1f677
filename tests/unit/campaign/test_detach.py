"""A driver that leaves once training runs, and one that comes back."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import stages
from infra.campaign.stages import StageStep, run_campaign
from infra.record.events import Stage
from infra.record.payloads.attempts import NodesAtZero
from infra.record.payloads.stages import StageStarted
from infra.record.payloads.training import TrainingFinished
from infra.record.store import CampaignStore
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time

ALL = [step.stage for step in stages.STEPS]


class StagedCampaign:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        s3: Any = FakeS3(Time())
        self.store, self.ran = CampaignStore(s3, "state", "train", "w"), list[Stage]()
        patch.setattr(stages, "STEPS", tuple(StageStep(stage, "", self._run(stage)) for stage in ALL))
        patch.setattr(stages.block_clock, "await_lead", lambda context: None)
        patch.setattr(stages, "tell", lambda context, cost: None)
        self.noted = list[Stage | None]()
        """The stage that ran when a driver looked whether AWS had ended the nodes."""
        patch.setattr(
            stages.launch_budget, "note_fired", lambda context: self.noted.append(self.ran[-1] if self.ran else None)
        )
        self.insisted = list[list[Stage]]()
        patch.setattr(stages.trial_build, "insist", lambda context: self.insisted.append(list(self.ran)))

    def _run(self, stage: Stage) -> Any:
        def run(context: Any) -> dict[str, Any]:
            self.ran.append(stage)
            return {}

        return run

    def drive(self, detach: bool) -> bool:
        """By a new driver."""
        self.ran.clear()
        context: Any = SimpleNamespace(
            store=self.store,
            account=SimpleNamespace(ends_by_itself=lambda: False),
            spec=SimpleNamespace(target="aws"),
            state=self.store.state,
            outputs={},
            operator_arn="arn:aws:iam::123456789012:user/me",
            guard=lambda: None,
            lease=SimpleNamespace(holder="me@laptop"),
            deadline=datetime(2026, 12, 1, 12, tzinfo=UTC),
            progress=SilentProgress(),
        )
        return run_campaign(context, detach)


def test_a_detached_driver_leaves_after_the_launch_and_the_next_one_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = StagedCampaign(monkeypatch)
    assert world.drive(detach=True) is False
    assert world.ran == ALL[: ALL.index(Stage.SUPERVISE)]
    assert world.insisted == [[], [Stage.BAKE]], "on a closer: before images are paid for, and on a new foundation"
    state = world.store.state()
    assert state.detached is not None and not state.ended
    (left,) = [event.data for event in world.store.events() if event.kind == "detached"]
    assert left == {"holder": "me@laptop", "deadline": "2026-12-01T12:00:00+00:00"}
    assert world.noted == [None], "before it decides which stages are finished"
    assert world.drive(detach=True) is False and world.ran == []
    world.insisted.clear()
    assert world.drive(detach=False) is True and not world.insisted
    assert world.ran == ALL[ALL.index(Stage.SUPERVISE) :]
    assert world.store.state().ended and world.store.state().detached is None


def test_what_is_over_already_is_driven_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StagedCampaign(monkeypatch)
    world.store.append(StageStarted(stage="check"))
    world.store.append(TrainingFinished(outcome="done", why="", committed_step=60))
    world.store.append(NodesAtZero(group="gpu"))
    assert world.drive(detach=True) is True
    assert not world.insisted and world.ran == ALL and world.store.state().detached is None

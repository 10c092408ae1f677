"""What the steward says of a job's folder when training is over: empty only if it was seen empty, or is told so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.record.payloads import Payload
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched
from infra.record.payloads.checkpoints import TrainingStartedOver
from infra.record.payloads.training import TrainingFinished
from infra.steward.attempt import NewestAttempt
from infra.steward.seeing import committed
from infra.steward.seeing.committed import Committed
from infra.steward.steward import Steward
from tests.unit.steward.steward_story import StewardRun, story
from trainer.contract import Unrecognised

__all__ = ["story"]

EMPTY = Unrecognised(files=0, bytes=0).model_dump()
TOLD = {"files": 3, "bytes": 12, "newest": "a.ckpt", "why": "looked for *.pt", "fits": "lightning"}


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    (tmp_path / "story/own").mkdir(parents=True)
    return tmp_path / "story"


def look(tier: Path, attempt: int = 2, local: bool = False) -> dict[str, Any] | None:
    state: Any = SimpleNamespace(newest_committed=-1)
    return Committed("story", state, str(tier.parent)).left_behind(attempt, local)


def account(tier: Path, **changes: Any) -> None:
    told = {"format": 1, "attempt": 2, "at": 1.0, "ended": True, "newest_at": 1.0, "entries": ["a.ckpt"], **TOLD}
    (tier / "unrecognised.json").write_text(json.dumps(told | changes))


def test_the_supervisors_account_of_the_end_is_what_is_told(tier: Path) -> None:
    account(tier)
    assert look(tier) == look(tier, local=True) == TOLD
    account(tier, files=0, bytes=0, newest="", entries=[], why="", fits="")
    assert look(tier) == EMPTY


@pytest.mark.parametrize(
    "bad", [{"ended": False}, {"attempt": 1}, {"files": -1}, {"entries": "a"}, {"format": 2}, None]
)
def test_an_account_of_no_end_or_of_an_earlier_attempt_proves_nothing(tier: Path, bad: dict[str, Any] | None) -> None:
    account(tier, **(bad or {}))
    if bad is None:
        (tier / "unrecognised.json").write_text("{")
    assert look(tier, local=True) is None, "the nodes' disks are seen by their supervisors alone"
    (tier / "own/deep").mkdir()
    assert look(tier) == EMPTY, "the folder itself was seen empty"
    (tier / "own/deep/a.ckpt").write_bytes(b"")
    assert look(tier) is None


def test_what_another_node_brought_from_its_disk_is_not_nothing(tier: Path) -> None:
    account(tier, files=0, bytes=0, newest="", entries=[], why="", fits="")
    assert look(tier, local=True) == EMPTY
    (tier / "own/node-0001").mkdir()
    (tier / "own/node-0001/best.pt").write_bytes(b"x")
    assert look(tier, local=True) is None and look(tier) == EMPTY, "node 0 has looked at a shared folder for all"


def test_a_link_alone_is_not_nothing_and_a_folder_that_was_never_made_is(tier: Path) -> None:
    (tier / "own/latest").symlink_to(tier)
    assert look(tier) is None
    (tier / "own/latest").unlink()
    (tier / "own").rmdir()
    assert look(tier) == EMPTY


def test_a_folder_that_may_not_be_listed_is_unknown(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert look(tier) is None


def test_a_file_system_that_hangs_is_unknown(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any) -> Any:
        raise TimeoutError("no answer for 30 s")

    monkeypatch.setattr(committed.BoundedLook, "within", late)
    assert look(tier) is None


def steward_of(story: StewardRun, *attempts: dict[str, Any], workload: bool = True, tier: str = "shared") -> Any:
    story.run(0.01)
    assert story.steward is not None
    for attempt in attempts:
        story.store().append(AttemptLaunched(attempt=attempt["attempt"], committed_step=-1, jobset="j"))
        story.store().append(AttemptEnded(failure="user", detail="", committed_at_end=-1, **attempt))
    runtime = SimpleNamespace(is_built_in=not workload, on_disks=tier == "local")
    story.steward.config = story.steward.config.model_copy(update={"spec": SimpleNamespace(runtime=runtime)})
    return story.steward


def test_of_the_built_in_trainer_nothing_is_left_if_the_tier_was_seen(story: StewardRun, tmp_path: Path) -> None:
    steward = steward_of(story, workload=False)
    assert Steward._left_behind(steward) == EMPTY
    steward.committed.to_record = lambda: None
    assert Steward._left_behind(steward) is None


def test_what_a_node_told_of_its_disk_and_nobody_brought_is_not_nothing(story: StewardRun, tmp_path: Path) -> None:
    steward = steward_of(story, tier="local")
    steward.committed.left_behind = lambda attempt, local: EMPTY
    assert Steward._left_behind(steward) == EMPTY
    namespace = SimpleNamespace(unrecognised=Unrecognised(files=1, bytes=1))
    steward.observer.statuses = {"pod-1": namespace}
    assert Steward._left_behind(steward) is None


@pytest.mark.parametrize(("began", "archives"), [(True, True), (False, False)])
def test_content_that_nobody_accounts_for_goes_to_the_archive_unless_no_attempt_began(
    story: StewardRun, tmp_path: Path, began: bool, archives: bool
) -> None:
    steward = steward_of(story, {"attempt": 7, "began": began, "step": 0}, tier="local")
    first = story.store().state().attempts[0].number
    if first != 7:  # the story's own attempt
        story.store().append(AttemptEnded(attempt=first, failure="user", detail="", committed_at_end=-1, began=began))
    left = Steward._left_behind(steward)
    assert left is None
    finished = {"outcome": "done", "why": "", "committed_step": -1, "unrecognised": left}
    story.store().append(TrainingFinished(**finished))
    assert Steward._may_archive(steward) is archives


def test_an_attempt_that_begins_at_step_0_after_steps_were_trained_is_an_event() -> None:
    told: list[Payload] = []

    def at(step: int, committed_step: int) -> list[Payload]:
        told.clear()
        attempts = (SimpleNamespace(ended=AttemptEnded(attempt=1, step=step)), SimpleNamespace(ended=None))
        store = SimpleNamespace(state=lambda: SimpleNamespace(attempts=attempts), append=told.append)
        NewestAttempt._note_start_over(SimpleNamespace(_store=store, number=2), committed_step)  # type: ignore[arg-type]
        return told

    (event,) = at(35, -1)
    assert isinstance(event, TrainingStartedOver) and (event.attempt, event.before) == (2, 35)
    assert not at(0, -1) and not at(35, 30)

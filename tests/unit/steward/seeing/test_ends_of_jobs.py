"""What a job's supervisor says of its end reaches the record, the notices and the report, and decides once."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from infra.notices.changes import changes
from infra.notices.notice import notice
from infra.steward.steward import Steward
from tests.fake_cluster import ended
from tests.unit.steward import steward_story
from tests.unit.steward.steward_story import StewardRun

story = steward_story.story
ESTIMATE = "the job exited 0 at step 40 of 80, which was an estimate"
DONE = {"exit_code": 0, "reason": "done", "step": 40, "detail": ESTIMATE}
PEER = {"exit_code": 70, "reason": "internal", "step": 12, "detail": "the job exited with 1: Connection reset"}
USER = {"exit_code": 64, "reason": "user", "step": 12, "rank": 3, "detail": "KeyError: 'lr' in train.py, line 7"}


def end(story: StewardRun, index: int, message: dict[str, object]) -> None:
    pod = story.cluster.pods[f"story-a1-{index}"]
    assert pod.status is not None
    code = int(str(message["exit_code"]))
    pod.status.phase = "Failed" if code else "Succeeded"
    pod.status.containerStatuses = [ended(code, json.dumps(message))]


def after(story: StewardRun, minutes: float, *acts: Callable[[], None]) -> Callable[[], None]:
    """Return what does one act a turn, from a time on."""
    begun, left = story.time(), list(acts)

    def turn() -> None:
        if left and story.time() > begun + 60 * minutes:
            left.pop(0)()

    return turn


def told(story: StewardRun) -> list[str]:
    events = story.store().events()
    return [notice(change, "story", "r", "nothing").text for change in changes(events, story.time.wall())]


def test_a_job_that_ends_well_far_from_its_estimate_is_done_and_said(story: StewardRun) -> None:
    acts = (lambda: end(story, 1, DONE | {"detail": ""}), lambda: end(story, 0, DONE))
    assert story.run(10, after(story, 2, *acts))
    (finished,), (attempt,) = story.events("training.finished"), story.events("attempt.ended")
    assert finished.data["outcome"] == "done" and ESTIMATE in finished.data["why"]
    assert (attempt.data["step"], attempt.data["failure"], attempt.data["words"]) == (40, None, ESTIMATE)
    assert any("training is over (done)" in text and ESTIMATE in text for text in told(story))


def test_a_steward_that_takes_over_after_such_an_end_says_it_too(
    story: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Steward._train

    def killed(self: Steward) -> None:
        finish(self)
        raise steward_story.Over

    with monkeypatch.context() as patch:
        patch.setattr(Steward, "_train", killed)
        assert not story.run(10, after(story, 2, lambda: end(story, 0, DONE), lambda: end(story, 1, DONE)))
    assert not story.events("training.finished") and story.events("attempt.ended")
    assert story.run(10)
    assert ESTIMATE in story.events("training.finished")[0].data["why"]


def test_a_users_error_holds_at_once_although_its_peer_ended_first(story: StewardRun) -> None:
    acts = (lambda: end(story, 1, PEER), lambda: end(story, 0, USER))
    assert story.run(30, after(story, 2, *acts))
    (attempt,) = story.events("attempt.ended")
    assert len(story.events("attempt.launched")) == 1 and attempt.data["failure"] == "user"
    assert "rank 3 on node-0" in attempt.data["detail"] and "KeyError: 'lr'" in attempt.data["detail"]
    assert story.state().outcome == "held"

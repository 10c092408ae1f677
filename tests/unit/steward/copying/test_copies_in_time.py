"""Copies to S3 while a gang trains, by a virtual clock, and the way back when the shared tier has lost everything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from infra.record.events import CampaignState, fold
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched, AttemptRecord
from infra.record.payloads.checkpoints import CheckpointFetched
from infra.steward.copying.copier import is_due, lacks
from tests.fake_cluster import ended
from tests.unit.steward.steward_story import StewardRun, story
from tests.worlds.s3 import NOON, refusal
from trainer.contract import COMMITTED_NAME, NOTHING_SOUND, step_folder

__all__ = ["story"]
HOUR = timedelta(hours=1)


@pytest.fixture
def tier(story: StewardRun, tmp_path: Path) -> Path:
    return tmp_path / "story"


def commit(tier: Path, step: int) -> None:
    folder = tier / step_folder(step)
    folder.mkdir(parents=True)
    (folder / COMMITTED_NAME).write_text("{}")


def copied(step: int) -> dict[str, Any]:
    return {"step": step, "place": f"s3://a/copies/{step}", "objects": 2, "bytes": 9, "seconds": 1.0, "removed": []}


class Cluster:
    """Ends the copies' Jobs a turn after they began; `told` says how, one after the other, the last for all later."""

    def __init__(self, story: StewardRun, told: Callable[[str], dict[str, Any] | str]) -> None:
        self.story, self.told, self.begun = story, told, list[tuple[str, float]]()
        self._seen: Any = None

    def turn(self) -> None:
        for name, job in self.story.cluster.copies.items():
            if job is not self._seen:
                self._seen = job
                self.begun.append((name, self.story.time()))
            elif job.status is None:
                self.story.cluster.end(name, self.told(name))


def gang_ends(story: StewardRun, code: int = 70, reason: str = "") -> None:
    for pod in story.cluster.pods.values():
        assert pod.status is not None
        pod.status.phase = "Failed"
        told = f'{{"reason": "{reason}", "detail": "it ended"}}'
        pod.status.containerStatuses = [ended(code, told if reason else "")]


def test_the_newest_committed_step_is_copied_each_hour_beside_the_training(story: StewardRun, tier: Path) -> None:
    begun = story.time()
    cluster = Cluster(story, lambda _: copied(max(int(path.name[5:]) for path in tier.iterdir())))

    def turn() -> None:
        cluster.turn()
        minutes = int((story.time() - begun) / 60)
        if minutes % 20 == 10 and not (tier / step_folder(minutes)).exists():
            commit(tier, minutes)

    assert not story.run(200, turn)
    assert [event.data["step"] for event in story.events("checkpoint.copied")] == [50, 110, 170]
    (launched,) = story.events("attempt.launched")
    first = story.events("checkpoint.copied")[0]
    assert HOUR <= first.at - launched.at <= HOUR + timedelta(minutes=1)
    assert story.state().attempts[0].ended is None and story.live()["step"] > 1000
    assert not story.cluster.copies, "each Job is removed once it is told"


def test_a_step_is_copied_once(story: StewardRun, tier: Path) -> None:
    commit(tier, 40)
    cluster = Cluster(story, lambda _: copied(40))
    story.run(300, cluster.turn)
    assert [name for name, _ in cluster.begun] == ["copy"]


def test_a_failed_copy_is_told_once_and_tried_again_with_the_next_interval(story: StewardRun, tier: Path) -> None:
    commit(tier, 40)
    cluster = Cluster(story, lambda _: "AccessDenied" if len(cluster.begun) < 2 else copied(40))
    story.run(150, cluster.turn)
    (failed,) = story.events("checkpoint.copy-failed")
    assert failed.data["error"] == "AccessDenied"
    (_, first), (_, second) = cluster.begun
    assert 3600 <= second - first <= 3660 and len(story.events("checkpoint.copied")) == 1
    assert len(story.state().attempts) == 1 and story.state().attempts[0].ended is None


def test_a_cluster_that_refuses_the_copy_costs_the_training_nothing(
    story: StewardRun, tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tier, 40)
    real, refused = story.cluster.create, list[str]()

    def create(document: Any) -> None:
        if document.metadata.name == "copy":
            refused.append("copy")
            raise httpx2.ConnectError("connection refused")
        real(document)

    monkeypatch.setattr(story.cluster, "create", create)
    story.run(90)
    assert refused and not story.cluster.copies
    assert story.state().attempts[0].ended is None and story.live()["step"] > 500


def test_a_steward_that_follows_a_killed_one_tells_of_its_copy_once(story: StewardRun, tier: Path) -> None:
    commit(tier, 40)
    story.run(61)
    assert list(story.cluster.copies) == ["copy"]
    story.run(5)
    story.cluster.end("copy", copied(40))
    story.run(5)
    assert [event.data["step"] for event in story.events("checkpoint.copied")] == [40]
    assert story.cluster.writes.count("create copy") == 1 and not story.cluster.copies


def test_while_s3_is_away_no_copy_begins(story: StewardRun, tier: Path) -> None:
    commit(tier, 40)
    begun = story.time()

    def turn() -> None:
        story.s3.away = refusal("InternalError", 500) if 55 <= (story.time() - begun) / 60 < 65 else None
        assert story.s3.away is None or not story.cluster.copies

    story.run(70, turn)
    assert list(story.cluster.copies) == ["copy"]


def after_a_copy(story: StewardRun, tier: Path) -> None:
    commit(tier, 40)
    story.run(70, Cluster(story, lambda _: copied(40)).turn)
    commit(tier, 60)
    assert story.state().copied == 40


def test_an_attempt_that_would_find_nothing_waits_for_the_newest_copy(story: StewardRun, tier: Path) -> None:
    after_a_copy(story, tier)
    shutil.rmtree(tier)
    gang_ends(story)

    def back(name: str) -> dict[str, Any]:
        assert name == "fetch" and len(story.state().attempts) == 1, "nothing is launched before"
        assert "the newest copy comes back from S3" in story.live()["why"]
        commit(tier, 40)
        return {"step": 40, "bytes": 9, "seconds": 1.0, "refused": []}

    story.run(5, Cluster(story, back).turn)
    (fetched,) = story.events("checkpoint.fetched")
    assert (fetched.data["attempt"], fetched.data["step"]) == (2, 40)
    assert story.state().attempts[1].launched.committed_step == 40
    assert story.state().newest_committed == 40, "what lay there before is lost, and the archive must not wait for it"
    assert not story.cluster.copies


def test_a_steward_that_follows_one_killed_while_a_copy_came_back_records_it(story: StewardRun, tier: Path) -> None:
    after_a_copy(story, tier)
    shutil.rmtree(tier)
    gang_ends(story)
    story.run(3)
    assert list(story.cluster.copies) == ["fetch"]
    commit(tier, 40)
    story.run(3)
    assert len(story.state().attempts) == 1, "its manifest is there, its Job has not ended"
    story.cluster.end("fetch", {"step": 40, "bytes": 9, "seconds": 1.0, "refused": []})
    story.run(3)
    assert [event.data["step"] for event in story.events("checkpoint.fetched")] == [40]
    assert len(story.state().attempts) == 2


def test_without_a_sound_copy_the_campaign_stops_instead_of_beginning_anew(story: StewardRun, tier: Path) -> None:
    after_a_copy(story, tier)
    shutil.rmtree(tier)
    gang_ends(story)
    assert story.run(30, Cluster(story, lambda _: "no copy in S3 is sound").turn)
    state = story.state()
    assert state.outcome == "stopped" and len(state.attempts) == 1
    assert story.events("checkpoint.fetch-failed")[0].data["error"] == "no copy in S3 is sound"
    assert "the shared tier holds no checkpoint" in story.events("training.finished")[0].data["why"]


def test_a_tier_whose_every_checkpoint_is_refused_gets_a_copy_back_once(story: StewardRun, tier: Path) -> None:
    after_a_copy(story, tier)
    gang_ends(story, 74, NOTHING_SOUND)
    cluster = Cluster(story, lambda _: {"step": 40, "bytes": 9, "seconds": 1.0, "refused": []})
    story.run(5, cluster.turn)
    assert [name for name, _ in cluster.begun] == ["fetch"] and len(story.state().attempts) == 2


def test_a_tier_that_still_has_a_checkpoint_needs_no_copy(story: StewardRun, tier: Path) -> None:
    after_a_copy(story, tier)
    gang_ends(story)
    story.run(5)
    assert not story.cluster.copies and len(story.state().attempts) == 2
    assert story.state().attempts[1].launched.committed_step == 60


STATE = CampaignState(attempts=(AttemptRecord(launched=AttemptLaunched(attempt=1), launched_at=NOON),))


@pytest.mark.parametrize(
    ("state", "committed", "at", "due"),
    [
        (CampaignState(), 40, NOON + 9 * HOUR, False),
        (STATE, 40, NOON + HOUR, True),
        (STATE, 40, NOON + HOUR - timedelta(seconds=1), False),
        (STATE, -1, NOON + 9 * HOUR, False),
        (STATE.model_copy(update={"copied": 40}), 40, NOON + 9 * HOUR, False),
        (STATE.model_copy(update={"copied": 40, "copy_tried_at": NOON + HOUR}), 60, NOON + HOUR, False),
        (STATE.model_copy(update={"copied": 40, "copy_tried_at": NOON + HOUR}), 60, NOON + 2 * HOUR, True),
        (STATE.model_copy(update={"copy_tried_at": NOON + HOUR}), 40, NOON + 1.9 * HOUR, False),
    ],
)
def test_a_copy_is_due_an_interval_after_the_last_try(
    state: CampaignState, committed: int, at: datetime, due: bool
) -> None:
    assert is_due(state, committed, HOUR, at) is due


def test_only_a_campaign_with_copies_lacks_one() -> None:
    with_copies = STATE.model_copy(update={"copied": 40})
    assert not lacks(STATE, -1) and not lacks(with_copies, 20)
    assert lacks(with_copies, -1) == "the shared tier holds no checkpoint"
    ended = AttemptEnded(attempt=3, nothing_sound=True)
    attempt = AttemptRecord(launched=AttemptLaunched(attempt=3), launched_at=NOON, ended=ended, ended_at=NOON)
    refused = with_copies.model_copy(update={"attempts": (attempt,)})
    assert lacks(refused, 20) == "no checkpoint on the shared tier is sound"
    third, fourth = (CheckpointFetched(attempt=attempt, step=20) for attempt in (3, 4))
    assert lacks(refused.model_copy(update={"fetched": third}), 20), "that one was for the attempt that refused it"
    assert not lacks(refused.model_copy(update={"fetched": fourth}), 20)


def test_what_was_committed_before_a_fetch_counts_no_more(story: StewardRun) -> None:
    store = story.store()
    store.append(AttemptLaunched(attempt=1, jobset="a1", committed_step=-1))
    store.append(AttemptEnded(attempt=1, failure="storage", detail="", step=70, committed_at_end=60))
    assert fold(store.events()).newest_committed == 60
    store.append(CheckpointFetched(attempt=2, step=40, bytes=1, seconds=1, refused=[]))
    assert (fold(store.events()).newest_committed, fold(store.events()).copied) == (40, 40)
    store.append(AttemptLaunched(attempt=2, jobset="a2", committed_step=40))
    store.append(AttemptEnded(attempt=2, failure="process", detail="", step=55, committed_at_end=50))
    assert fold(store.events()).newest_committed == 50

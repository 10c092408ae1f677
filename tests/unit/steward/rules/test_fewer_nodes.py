"""A steward whose gang may be smaller, from the loss of a node without a successor to its return."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.cluster.kubernetes import JobSet
from infra.notices.changes import changes
from infra.record import meter
from infra.record.payloads.attempts import AttemptLaunched, GangResized
from infra.record.store import CampaignStore
from infra.steward import reconcile
from infra.steward.attempt import NewestAttempt
from tests.fake_cluster import gpu_node
from tests.unit.steward import steward_story
from tests.unit.steward.steward_story import MINUTE_S, StewardRun, config, story

__all__ = ["story"]
SPARE = timedelta(minutes=3)


@pytest.fixture
def elastic(story: StewardRun, monkeypatch: pytest.MonkeyPatch) -> StewardRun:
    """The story of two nodes, of which one is enough."""
    spec = config().spec
    recovery = spec.recovery.model_copy(update={"min_nodes": 1, "spare_timeout": SPARE})
    made = config().model_copy(update={"spec": spec.model_copy(update={"recovery": recovery})})
    monkeypatch.setattr(steward_story, "config", lambda: made)
    return story


def lose_node(story: StewardRun) -> None:
    story.aws.states["i-1"] = "terminated"
    story.cluster.nodes.pop("node-1", None)
    story.steps.pop(1, None)


def sizes(story: StewardRun) -> list[tuple[int, int, int]]:
    return [
        (row.data["attempt"], row.data["previous_nodes"], row.data["nodes"]) for row in story.events("gang.resized")
    ]


def test_a_gang_loses_a_node_goes_on_alone_and_grows_after_a_commit(
    elastic: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, committed = elastic.time(), [-1]

    def each_turn() -> None:
        assert elastic.steward is not None
        monkeypatch.setattr(elastic.steward.committed, "step", lambda: committed[0])
        passed_s = elastic.time() - start
        if 2 * MINUTE_S < passed_s < 10 * MINUTE_S:
            committed[0] = 100
            lose_node(elastic)
        elif passed_s >= 10 * MINUTE_S and "node-1" not in elastic.cluster.nodes:
            elastic.cluster.nodes["node-1"] = gpu_node(1)
            elastic.aws.states.clear()
            elastic.steps[1] = elastic.steps[0]
        elif passed_s > 15 * MINUTE_S:
            committed[0] = 200

    elastic.run(9, each_turn)
    assert sizes(elastic) == [(2, 2, 1)]
    (lost,) = elastic.events("attempt.ended")
    (_, launched) = elastic.events("attempt.launched")
    waited = launched.at - lost.at
    assert lost.data["failure"] == "node" and SPARE - timedelta(minutes=1) < waited < SPARE + timedelta(minutes=1)
    live = elastic.live()
    assert (live["gang_nodes"], live["why"], len(live["pods"])) == (1, "training with 1 of 2 nodes", 1)
    per_node = float(config().node_usd_per_hour)
    assert live["usd_per_hour"] == pytest.approx(float(config().base_usd_per_hour) + per_node)
    assert elastic.events("nodes.counted")[-1].data == {"nodes": 1, "of": 2}

    elastic.run(5, each_turn)
    assert sizes(elastic) == [(2, 2, 1)], "there is room, and nothing is committed since"
    assert "it grows after its next commit" in elastic.live()["why"]
    elastic.run(9, each_turn)
    assert sizes(elastic) == [(2, 2, 1), (3, 1, 2)]
    grown = elastic.events("attempt.ended")[-1]
    assert (grown.data["failure"], grown.data["grows_to"]) == ("interrupted", 2)
    assert [row.data.get("nodes") for row in elastic.events("attempt.launched")] == [None, 1, None]
    assert elastic.live()["gang_nodes"] == 2 and len(elastic.live()["pods"]) == 2
    assert elastic.history().attempts[-1].grows_to == 2 and elastic.history().attempts[0].nodes == 0
    told = [
        change.event.sentence()
        for change in changes(elastic.store().events(), elastic.time.wall())
        if change.change == "node"
    ]
    assert sum("goes on with fewer nodes" in words for words in told) == 1
    assert sum("grows again: attempt 3 has 2 of 2, after 1" in words for words in told) == 1


def test_a_smaller_gang_is_known_to_a_successor_and_bills_as_such(elastic: StewardRun) -> None:
    start = elastic.time()

    def each_turn() -> None:
        if elastic.time() - start > 2 * MINUTE_S:
            lose_node(elastic)

    elastic.run(9, each_turn)
    elastic.run(3, each_turn)
    assert elastic.live()["why"] == "training with 1 of 2 nodes" and len(elastic.events("attempt.launched")) == 2
    assert elastic.steward is not None and elastic.steward.attempt.nodes == 1
    reading = meter.read(elastic.steward.config.lines, elastic.store().events(), elastic.time.wall())
    assert reading.gpu_share * 2 == 1


@pytest.mark.parametrize("grows", [True, False])
def test_a_steward_killed_while_its_gang_drains_to_grow_leaves_the_reason(
    grows: bool, elastic: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the drain would count as a failure, and the next growth would not wait its pause."""
    start, committed = elastic.time(), [-1]

    def each_turn() -> None:
        assert elastic.steward is not None
        monkeypatch.setattr(elastic.steward.committed, "step", lambda: committed[0])
        passed_s = elastic.time() - start
        if 2 * MINUTE_S < passed_s < 10 * MINUTE_S:
            committed[0] = 100
            lose_node(elastic)
        elif passed_s >= 10 * MINUTE_S and grows:
            elastic.cluster.nodes.setdefault("node-1", gpu_node(1))
            elastic.aws.states.clear()
            committed[0] = int(passed_s)
        elif passed_s >= 12 * MINUTE_S:
            kill()

    def kill(*_: Any) -> None:
        elastic.cluster.jobs.clear()
        elastic.cluster.pods.clear()
        raise steward_story.Over

    elastic.run(9, each_turn)
    with monkeypatch.context() as patch:
        patch.setattr(NewestAttempt, "_let_commit", kill)  # of its first call, to remove the job
        elastic.run(9, each_turn)
    assert len(elastic.events("attempt.ended")) == 1, "it is killed before the end is recorded"
    elastic.run(1)
    (_, end) = elastic.events("attempt.ended")
    assert (end.data["failure"], end.data.get("grows_to", 0)) == ("interrupted", 2 if grows else 0)
    assert ("2 nodes are fit, and the gang has 1" in end.data["detail"]) is grows
    assert ("its job is gone" in end.data["detail"]) is not grows


class OneJob:
    """A cluster that has the job of an attempt which nobody recorded."""

    namespace = "training"

    def list(self, kind: Any, **_: Any) -> list[Any]:
        labels = {"bivouac.dev/campaign": "story", "bivouac.dev/attempt": "4"}
        return [JobSet.from_dict({"metadata": {"name": "story-a4", "labels": labels}})]


@pytest.mark.parametrize(("nodes", "recorded"), [(1, 1), (2, 0)])
def test_an_attempt_that_only_the_cluster_knows_is_recorded_with_its_size(
    nodes: int, recorded: int, story: StewardRun
) -> None:
    store = CampaignStore(story.s3, "state", "story", "steward", now=story.time.wall)
    store.append(GangResized(attempt=3, nodes=nodes, previous_nodes=3 - nodes, of=2, why="so"))
    reconcile._record_launched(OneJob(), store, JobSet, "story", 20)  # type: ignore[arg-type]
    (launched,) = [event.payload for event in store.events() if isinstance(event.payload, AttemptLaunched)]
    assert (launched.attempt, launched.nodes, launched.committed_step) == (4, recorded, 20)

"""Nodes that decline: recorded once, drained after the next commit, replaced within the repairs that are left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.cluster.cloud_notice import CloudNotice
from infra.record.payloads.attempts import NodeAnnounced
from infra.steward.decide import EndAttempt, FailureClass, History, Launch, Observation, Replace, Wait, decide
from infra.steward.foresight import leaving
from infra.steward.foresight.announcements import Announcements
from infra.steward.foresight.declines import Declines
from infra.steward.foresight.trends import EVERY_S, WINDOW
from infra.steward.seeing import observe
from tests.part import part
from tests.unit.steward.steward_story import StewardRun, story
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen
from tests.unit.trainer.health.test_health_parsers import sample
from trainer.contract import Phase, Status
from trainer.contract.job import NodeReadings, StepFigures
from trainer.supervisor.readings import Readings

__all__ = ["story"]
ERRORS = sample("nvidia_smi/a100-sxm4-80gb.xml").replace("<dram_correctable>0<", "<dram_correctable>COUNT<", 1)
WORDS = "heat lowers the clocks of a GPU: in 66 % of the last 21 minutes"
ROOM = "/dev/shm is full in about 9 minutes: 12 % are free"


def sight(**changes: Any) -> Observation:
    nodes = (node(0), node(1, decline=WORDS), node(2))
    fields = {"nodes": nodes, "nodes_wanted": 2, "notice_steps": {"i-1": 20}, "committed_step": 20}
    return seen(**{**fields, **changes})


def test_a_gang_trains_on_until_its_next_commit_and_then_drains() -> None:
    assert isinstance(decide(sight(), POLICY, History()), Wait)
    action = decide(sight(committed_step=30), POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.INTERRUPTED and not action.dead_nodes
    assert action.why == f"node-1: {WORDS}; step 30 is committed since that was seen"


def test_after_the_drain_the_node_is_replaced_with_the_words() -> None:
    action = decide(sight(in_flight=False, pods=()), POLICY, History())
    assert isinstance(action, Replace) and action.nodes == ("node-1",) and action.reasons == (WORDS,)


def test_a_node_that_could_not_be_replaced_is_trained_on() -> None:
    spent = History(repairs=(NOW,) * POLICY.repairs_per_hour)
    assert isinstance(decide(sight(committed_step=30), POLICY, spent), Wait)
    assert isinstance(decide(sight(in_flight=False, pods=()), POLICY, spent), Launch)


def test_nodes_that_decline_together_share_a_cause_and_none_is_replaced() -> None:
    nodes = (node(0, decline=WORDS), node(1, decline=WORDS), node(2))
    assert leaving.declining_nodes(sight(nodes=nodes)) == []
    assert isinstance(decide(sight(nodes=nodes, committed_step=30), POLICY, History()), Wait)
    one = leaving.declining_nodes(sight(nodes=(*nodes, node(3))))
    assert [row.name for row in one] == ["node-0", "node-1"], "half of four is not more than half"


def test_what_the_cloud_takes_comes_first_and_no_node_twice() -> None:
    due = NOW + timedelta(hours=1)
    notice = CloudNotice(code="instance-stop", due=due)
    nodes = (node(0, decline=WORDS), node(1), node(2, cloud_notice=notice, decline=WORDS), node(3))
    assert [row.name for row in leaving.leaving_nodes(sight(nodes=nodes))] == ["node-2", "node-0"]


def test_readings_are_kept_at_most_each_half_minute_and_by_instance() -> None:
    declines = Declines(ranks_per_node=1)
    statuses = {"gang-1": part(Status, step=1, readings=NodeReadings(is_throttled=True), figures=None)}
    view = seen(pods=(pod(0), pod(1)), nodes=(node(0), node(1)))
    for number in range(WINDOW - 1):
        assert declines.note(view, statuses, number * EVERY_S) == {}
        assert declines.note(view, statuses, number * EVERY_S + EVERY_S / 2) == {}
    (instance,) = declines.note(view, statuses, WINDOW * EVERY_S)
    assert instance == "i-1"
    other = seen(pods=(pod(0), pod(1)), nodes=(node(0), node(1).model_copy(update={"instance": "i-9"})))
    assert declines.note(other, statuses, (WINDOW + 1) * EVERY_S) == {}, "another instance of that name begins anew"


@pytest.mark.parametrize(("slowest", "told"), [(5, True), (1, False), (None, False)])
def test_only_the_node_of_the_slowest_rank_becomes_slow(slowest: int | None, told: bool) -> None:
    declines = Declines(ranks_per_node=4)
    view = seen(pods=(pod(1, node_rank=1),), nodes=(node(1),))
    found = dict[str, str]()
    for number in range(WINDOW + 20):
        figures = StepFigures(slowest_rank=slowest, slowest_ratio=1.0 + 0.01 * number)
        statuses = {"gang-1": part(Status, step=number, readings=None, figures=figures)}
        found |= declines.note(view, statuses, number * EVERY_S)
    assert bool(found) is told


@pytest.mark.parametrize("looks_per_step", [1, 4])
def test_slowness_is_judged_over_steps_and_each_counts_once(looks_per_step: int) -> None:
    """Few steps that rise by chance are looked at often; as many as a window holds are a trend, however long it is."""
    declines, alarms = Declines(ranks_per_node=1), list[int]()
    view = seen(pods=(pod(1, node_rank=1),), nodes=(node(1),))
    for look in range((WINDOW + 8) * looks_per_step):
        step = look // looks_per_step
        figures = StepFigures(slowest_rank=1, slowest_ratio=1.05 + 0.01 * step)
        statuses = {"gang-1": part(Status, step=step, readings=None, figures=figures)}
        alarms += [step] if declines.note(view, statuses, look * EVERY_S) else []
    assert alarms and alarms[0] >= WINDOW - 1


def test_a_disk_that_a_data_set_and_checkpoints_fill_by_plan_is_no_decline() -> None:
    declines, view = Declines(ranks_per_node=1), seen(pods=(pod(0),), nodes=(node(0),))
    for number in range(3 * WINDOW):
        readings = NodeReadings(local_free=max(0.02, 0.95 - 0.01 * number))
        statuses = {"gang-0": part(Status, step=0, readings=readings, figures=None)}
        assert declines.note(view, statuses, number * EVERY_S) == {}


@pytest.mark.parametrize(("query_s", "per_s", "is_told"), [(1.0, 1.0, True), (20.0, 1.0, True), (1.0, 0.0, False)])
def test_errors_are_seen_at_the_pace_of_agent_and_steward(query_s: float, per_s: float, is_told: bool) -> None:
    """The agent's own loop at its own pauses, its query as slow as may be, and a steward that looks every five
    seconds, on one clock."""
    agent = Readings("/", "/", lambda: ERRORS.replace("COUNT", str(int(300 + per_s * next_look_s))))
    declines, view = Declines(ranks_per_node=1), seen(pods=(pod(0),), nodes=(node(0),))
    next_look_s, alarms = 0.0, dict[str, str]()
    for now_s in range(0, 3600, 5):
        if now_s >= next_look_s:
            asks = agent._looks % 2 == 0
            agent.look()
            next_look_s += 30.0 + (query_s if asks else 0.0)
        read = NodeReadings.model_validate(agent.newest)
        statuses = {"gang-0": part(Status, step=0, readings=read, figures=None)}
        alarms |= declines.note(view, statuses, float(now_s))
    assert ("correct ever more memory errors" in alarms.get("i-0", "")) is is_told


def announced(story: StewardRun) -> Announcements:
    announcements = Announcements(story.store())
    announcements.take_over()
    return announcements


def test_room_drains_one_attempt_of_an_instance_and_no_node_is_replaced_for_it(story: StewardRun) -> None:
    announcements = Announcements(story.store())

    def decline(attempt: int, words: str = ROOM, in_flight: bool = True) -> str:
        view = sight(nodes=(node(0),), nodes_wanted=1, pods=(pod(0),), attempt=attempt, in_flight=in_flight)
        view = announcements.with_news(view, {}, {"i-0": words} if words else {})
        announcements.note(view)
        return view.nodes[0].decline

    assert decline(1) == ROOM and decline(1, ROOM.replace("9", "8")), "it counts while it is seen"
    assert announcements.steps == {"i-0": 20} and len(story.events("node.announced")) == 1
    assert decline(1, "", in_flight=False) == "", "a new gang has a new /dev/shm"
    assert decline(2) == "", "the same trend in the next attempt is how this job uses it"
    announcements = announced(story)
    assert decline(2, "") == "" and decline(3) == "", "nor does a successor revive it"
    assert decline(3, WORDS) == WORDS and decline(4, "") == WORDS, "heat stands until the instance is gone"


def test_a_disk_s_decline_in_an_older_record_does_not_stand(story: StewardRun) -> None:
    words = "the local disk is full in about 3 minutes: 4 % are free"
    story.store().append(NodeAnnounced(node="node-0", instance="i-0", why=words))
    view = announced(story).with_news(sight(nodes=(node(0),)), {}, {})
    assert view.nodes[0].decline == ""


def test_a_declining_node_is_recorded_once_drained_after_a_commit_and_given_back(
    story: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(one: Any) -> Status | None:
        index = int(one.metadata.name.rpartition("-")[2])
        readings = NodeReadings(is_throttled=index == 1)
        step = story.steps.get(index, 0)
        return part(Status, phase=Phase.TRAINING, step=step, committed_step=-1, ranks=(), readings=readings,
                    step_seconds=None, figures=None)  # fmt: skip

    def commit() -> None:
        assert story.steward is not None
        if story.events("node.announced") and story.time() - start > 1500:
            monkeypatch.setattr(story.steward.committed, "step", lambda: 500)

    monkeypatch.setattr(observe, "_probe", probe)
    start = story.time()
    story.run(24, commit)
    story.run(8, commit)
    (event,), (end,) = story.events("node.announced"), story.events("attempt.ended")
    assert event.data["instance"] == "i-1" and "heat" in event.data["why"]
    assert end.data["failure"] == "interrupted" and "committed since that was seen" in end.data["detail"]
    assert story.aws.ended[:1] == ["i-1"]

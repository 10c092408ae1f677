"""Two or more nodes that die at once are one end, one replacement, one message."""

from __future__ import annotations

from datetime import timedelta

from infra.notices.changes import changes
from infra.steward.decide import EndAttempt, History, Observation, Wait, decide
from tests.fake_cluster import gpu_node
from tests.unit.steward.steward_story import StewardRun, story
from tests.unit.steward.test_decide import POLICY, node, pod, seen

__all__ = ["story"]
LIMIT = POLICY.heartbeat_timeout
TICK = timedelta(microseconds=1)


def silence(*durations: timedelta) -> Observation:
    """As many pods, silent for so long, beside one that answers; the nodes of the silent ones are not Ready."""
    pods = (pod(0), *(pod(index, silent_for=lasts) for index, lasts in enumerate(durations, 1)))
    nodes = (node(0), *(node(index, ready=None) for index in range(1, len(pods))))
    return seen(pods=pods, nodes=nodes, nodes_wanted=len(pods))


def test_a_node_that_dies_a_moment_later_is_waited_for_and_named_in_the_same_end() -> None:
    first = decide(silence(LIMIT + TICK, LIMIT - timedelta(seconds=1)), POLICY, History())
    assert isinstance(first, Wait) and first.why.startswith("gang-2 is silent too")
    second = decide(silence(LIMIT + timedelta(seconds=1), LIMIT + TICK), POLICY, History())
    assert isinstance(second, EndAttempt) and second.dead_nodes == ("node-1", "node-2")


def test_nothing_is_waited_for_beyond_the_heartbeat_s_limit_nor_for_a_pod_that_answers() -> None:
    assert isinstance(decide(silence(LIMIT + TICK, timedelta(seconds=2)), POLICY, History()), EndAttempt)
    sight = silence(LIMIT + TICK, LIMIT + TICK)
    lone = sight.model_copy(update={"nodes": (node(0), node(1, ready=None), node(2))})
    action = decide(lone, POLICY, History())
    assert isinstance(action, EndAttempt) and action.dead_nodes == ("node-1",), "the other has no second witness"


def test_of_many_pods_one_is_always_late_and_holds_up_no_restart() -> None:
    """The late one is another at each look."""
    action = decide(silence(2 * LIMIT + TICK, LIMIT - timedelta(seconds=1)), POLICY, History())
    assert isinstance(action, EndAttempt) and action.dead_nodes == ("node-1",)
    assert isinstance(decide(silence(2 * LIMIT, LIMIT - timedelta(seconds=1)), POLICY, History()), Wait)


def test_a_dead_node_whose_pod_is_gone_is_waited_for_no_longer() -> None:
    sight = silence(LIMIT + TICK, LIMIT - timedelta(seconds=1))
    gone = sight.pods[1].model_copy(update={"phase": "Missing"})
    action = decide(sight.model_copy(update={"pods": (sight.pods[0], gone, sight.pods[2])}), POLICY, History())
    assert isinstance(action, EndAttempt)


def test_two_nodes_that_die_at_once_are_one_end_one_replacement_and_one_message(story: StewardRun) -> None:
    def kill() -> None:
        if story.time() - start > 120 and not story.events("attempt.ended"):
            story.steps = {}
            story.cluster.nodes = {f"node-{index}": gpu_node(index, "Unknown") for index in range(2)}

    start = story.time()
    story.run(5, kill)
    (end,) = story.events("attempt.ended")
    assert end.data["dead_nodes"] == ["node-0", "node-1"] and end.data["failure"] == "node"
    assert [event.data["action"] for event in story.events("decision")].count("replace") == 1
    assert [event.data["node"] for event in story.events("node.quarantined")] == ["node-0", "node-1"]
    assert [event.data["died"] for event in story.events("node.quarantined")] == [True, True]
    messages = [
        change.event for change in changes(story.store().events(), story.time.wall()) if change.change == "node"
    ]
    assert len(messages) == 1 and "node-0" in messages[0].sentence() and "node-1" in messages[0].sentence()

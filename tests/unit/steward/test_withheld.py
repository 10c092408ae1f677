"""`recovery.act: log`: the steward decides and only says. Budget, deadline and a stop hold all the same."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.record.store import STOP
from infra.steward.decide import EndAttempt, FailureClass, Finish, History, Launch, Replace, Wait, decide
from infra.steward.policy import is_withheld
from infra.steward.seeing.lookout import Lookout
from tests.fake_cluster import gpu_node
from tests.unit.steward import steward_story
from tests.unit.steward.steward_story import StewardRun, config, story
from tests.unit.steward.test_decide import NOW, POLICY, ended, node, seen

__all__ = ["story"]


@pytest.fixture
def log_only(story: StewardRun, monkeypatch: pytest.MonkeyPatch) -> StewardRun:
    spec = config().spec
    recovery = spec.recovery.model_copy(update={"act": "log"})
    quiet = config().model_copy(update={"spec": spec.model_copy(update={"recovery": recovery})})
    monkeypatch.setattr(steward_story, "config", lambda: quiet)
    return story


def test_what_is_withheld_and_what_is_done_all_the_same() -> None:
    end = EndAttempt(failure=FailureClass.NODE, why="dead")
    past = History(attempts=(ended(1, FailureClass.NODE),))
    for action, view, history, withheld in (
        (end, seen(), History(), True),
        (end, seen(stop_requested=True), History(), False),
        (end, seen(deadline=NOW + timedelta(minutes=1)), History(), False),
        (end, seen(given_back="no record"), History(), False),
        (Replace(nodes=("n",), reasons=("r",), why="w"), seen(in_flight=False), History(), True),
        (Launch(attempt=2, why="w"), seen(in_flight=False), past, True),
        (Launch(attempt=1, why="w"), seen(in_flight=False), History(), False),
        (Finish(outcome="stopped", why="w"), seen(), past, False),
        (Wait(why="w"), seen(), past, False),
    ):
        assert is_withheld(action, view, POLICY, history) is withheld, action


def test_a_replacement_that_nobody_makes_keeps_no_first_launch_from_its_turn() -> None:
    spare = seen(in_flight=False, pods=(), nodes=(node(0), node(1), node(2, instance_state="impaired")))
    replacement = decide(spare, POLICY, History())
    assert isinstance(replacement, Replace) and is_withheld(replacement, spare, POLICY, History())
    lookout = object.__new__(Lookout)
    done = lookout._without_what_is_withheld(replacement, spare, POLICY, History())
    assert isinstance(done, Launch) and lookout.withheld == replacement, "it is said all the same"
    past = History(attempts=(ended(1, FailureClass.NODE),))
    assert isinstance(lookout._without_what_is_withheld(replacement, spare, POLICY, past), Wait)
    short = spare.model_copy(update={"nodes": spare.nodes[1:], "since_short": timedelta(days=1)})
    assert isinstance(lookout._without_what_is_withheld(replacement, short, POLICY, past), Finish), "no capacity"


def test_a_dead_node_is_said_once_and_nothing_is_touched(log_only: StewardRun) -> None:
    def kill() -> None:
        if log_only.time() - start > 120:
            log_only.steps.pop(1, None)
            log_only.cluster.nodes["node-1"] = gpu_node(1, "Unknown")

    start = log_only.time()
    log_only.run(6, kill)
    log_only.run(2, kill)
    (said,) = log_only.events("decision.withheld")
    assert (said.data["action"], said.data["failure"], said.data["nodes"]) == ("end-attempt", "node", ["node-1"])
    assert "node node-1 is dead" in said.data["why"]
    assert not log_only.events("attempt.ended") and log_only.cluster.writes == ["create story-a1"]
    assert log_only.live()["why"].startswith("`recovery.act: log`, so nobody does what is due, end-attempt")


def test_a_stop_is_obeyed(log_only: StewardRun) -> None:
    log_only.run(2)
    log_only.store().put_json(STOP, {})
    assert log_only.run(5)
    (end,) = log_only.events("attempt.ended")
    assert end.data["failure"] == "interrupted" and not log_only.events("decision.withheld")

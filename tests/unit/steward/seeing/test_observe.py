"""What the steward sees of pods and their agents, look by look; what is away keeps its last word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lightkube.codecs import from_dict

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, COMPLETION_INDEX
from infra.steward.seeing import observe
from infra.steward.seeing.agents import HttpAnswer
from tests.unit.steward.seeing.observe_world import ENDED, ObservedGang, pod, seconds, world
from tests.unit.steward.steward_story import config
from trainer.contract import AGENT_PORT, Phase

__all__ = ["world"]


def test_a_pod_is_told_as_kubernetes_and_its_agent_have_it(world: ObservedGang) -> None:
    world.steps = {0: 70, 1: 60}
    sight = world.look()
    first, second = sight.pods
    assert world.labels == {CAMPAIGN_LABEL: "story", ATTEMPT_LABEL: "1"}
    assert (first.index, first.name, first.node, first.phase) == (0, "gang-0", "node-0", "Running")
    assert (first.trainer_phase, first.step, first.committed_step, first.waits) == (Phase.SAVING, 70, 65, "")
    assert (first.exit_code, first.reason, first.detail, first.ended_at) == (None, "", "", None)
    assert second.step == 60 and sight.step == 60, "the slowest counts"
    assert world.observer.agents == {"gang-0": "10.0.0.1", "gang-1": "10.0.0.1"}
    assert (sight.attempt, sight.in_flight, sight.committed_step, sight.nodes_wanted) == (1, True, 7, 2)


def test_what_was_asked_of_the_steward_is_told_as_it_was_given(world: ObservedGang) -> None:
    assert not world.look().stop_requested and world.look().held_since is None
    assert world.look(stop=True).stop_requested and world.look(held=ENDED).held_since == ENDED
    assert world.look().deadline == config().deadline


def test_between_attempts_no_pod_is_asked_for(world: ObservedGang) -> None:
    world.look()
    assert world.look(in_flight=False).pods == () and world.look().pods != ()


def test_a_pod_is_silent_since_its_last_answer_and_none_before_its_first(world: ObservedGang) -> None:
    del world.steps[1]
    assert [seconds(one) for one in (world.view(1).silent_for, world.view(0).silent_for)] == [None, 0]
    assert seconds(world.view(1).running_for) == 20, "since it was first seen to run"
    world.steps[1] = 3
    world.look()
    del world.steps[1]
    for age in (10, 20, 30):
        told = world.view(1)
        assert seconds(told.silent_for) == age and told.step == 3, "its last word stands"


def test_a_pod_that_does_not_run_is_not_asked(world: ObservedGang) -> None:
    world.pods = [pod(0), pod(1, phase="Pending", ip=None), pod(2, phase="Running", ip=None)]
    pods = world.look().pods
    assert [one.silent_for is None for one in pods] == [False, True, True]
    assert set(world.observer.agents) == {"gang-0"}
    assert pods[1].running_for is None


@pytest.mark.parametrize(
    ("phase", "told"),
    [("Pending", "Pending"), ("Succeeded", "Succeeded"), ("Failed", "Failed"), (None, "Pending"), ("Odd", "Missing")],
)
def test_of_a_pod_without_a_phase_nothing_is_believed_but_that_it_waits(
    world: ObservedGang, phase: str | None, told: str
) -> None:
    world.pods = [pod(0, phase=phase)]
    assert world.view(0).phase == told
    world.pods[0].status = None
    assert world.view(0).phase == "Pending"


def test_a_pod_that_was_there_and_is_no_more_has_not_ended_well(world: ObservedGang) -> None:
    world.steps = {0: 9, 1: 8}
    world.look()
    world.pods = [pod(0)]
    gone = world.view(1)
    assert (gone.phase, gone.detail, gone.step, gone.node) == ("Missing", "the pod is gone", 8, "node-1")
    assert world.view(1).phase == "Missing" and world.view(0).phase == "Running"
    world.pods = [pod(0), pod(1)]
    assert world.view(1).phase == "Running"
    # The MPI operator makes a lost worker again, under its name.
    assert world.pods[1].metadata is not None
    world.pods[1].metadata.uid = "another"
    assert world.view(1).phase == "Missing" and world.view(1).node == "node-1"
    world.observer.begin_attempt(2)
    world.pods = [pod(0)]
    assert [one.index for one in world.look().pods] == [0], "another attempt misses none of its pods"


def test_an_init_container_that_failed_speaks_for_its_pod(world: ObservedGang) -> None:
    words = json.dumps({"exit_code": 64, "reason": "user", "detail": "a secret of the job cannot be read: TOKEN"})
    states = [
        {"terminated": {"exitCode": 0, "finishedAt": "2026-11-22T11:00:00+00:00", "reason": "Completed"}},
        {"terminated": {"exitCode": 64, "finishedAt": ENDED.isoformat(), "reason": "Error", "message": words}},
    ]
    rows = [
        {"name": str(number), "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        for number, state in enumerate([*states, {"waiting": {"reason": "PodInitializing"}}])
    ]
    document: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gang-1", "annotations": {COMPLETION_INDEX: "1"}},
        "spec": {"containers": [], "nodeName": "node-1"},
        "status": {"phase": "Failed", "initContainerStatuses": rows[:2], "containerStatuses": rows[2:]},
    }  # fmt: skip
    world.pods = [pod(0), from_dict(document)]  # type: ignore[list-item]
    failed = world.view(1)
    assert (failed.phase, failed.exit_code, failed.reason, failed.ended_at) == ("Failed", 64, "user", ENDED)
    assert failed.detail == "user: a secret of the job cannot be read: TOKEN" and failed.waits == ""
    document["status"] |= {"phase": "Pending", "initContainerStatuses": rows[:1]}
    world.pods = [pod(0), from_dict(document)]  # type: ignore[list-item]
    assert world.view(1).exit_code is None, "one that is done is no end"


def test_a_pod_that_waits_says_why_and_one_that_ran_does_not(world: ObservedGang) -> None:
    words = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    waiting = pod(1, phase="Pending", ip=None, state=words)
    world.pods = [pod(0, phase="Failed", exitCode=1), waiting]
    assert "no such image" in world.view(1).waits and world.view(0).waits == ""


@pytest.mark.parametrize(
    ("message", "reason", "told"),
    [
        (json.dumps({"reason": "peer-lost", "detail": "rank 3"}), "peer-lost", "peer-lost: rank 3"),
        (json.dumps({"detail": "rank 3"}), "", ": rank 3"),
        (json.dumps({"reason": "user"}), "user", "user: "),
        (json.dumps({"reason": "user", "detail": "x" * 400}), "user", "user: " + "x" * 294),
        ("no JSON", "", "no JSON"),
        ("y" * 400, "", "y" * 300),
        ("[1, 2]", "", "[1, 2]"),
        ("7", "", "7"),
        (None, "", "OOMKilled"),
    ],
)
def test_the_last_word_of_a_container_is_its_message_or_kubernetes_own(
    world: ObservedGang, message: str | None, reason: str, told: str
) -> None:
    world.pods = [pod(0, phase="Failed", exitCode=137, message=message, reason="OOMKilled")]
    seen = world.view(0)
    assert (seen.exit_code, seen.ended_at, seen.reason, seen.detail) == (137, ENDED, reason, told)


def test_any_container_that_ended_tells_the_end_and_silence_tells_nothing(world: ObservedGang) -> None:
    beside = pod(0, phase="Failed", exitCode=64, message=None, reason=None)
    assert beside.status and beside.status.containerStatuses
    running = pod(0).status
    assert running and running.containerStatuses
    beside.status.containerStatuses.insert(0, running.containerStatuses[0])
    world.pods = [beside]
    seen = world.view(0)
    assert (seen.exit_code, seen.reason, seen.detail) == (64, "", "")
    beside.status.containerStatuses = None
    assert world.view(0).exit_code is None


GOOD = {
    "campaign": "c", "attempt": 1, "node": "n", "phase": "training", "step": 3, "steps": 9, "committed_step": 1,
    "tokens": 1, "loss": None, "step_seconds": None, "ranks": [],
}  # fmt: skip


def test_an_agent_is_asked_at_its_address_for_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(address: str, path: str, within_s: float, port: int) -> HttpAnswer:
        assert (address, path, within_s, port) == ("10.0.0.1", "/status", 1.0, AGENT_PORT)
        return HttpAnswer(200, json.dumps(GOOD).encode())

    monkeypatch.setattr(observe.agents, "get", answered)
    told = observe._probe(pod(0))
    assert told is not None and told.step == 3

    def mistaken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(observe.agents, "get", mistaken)
    with pytest.raises(KeyError):
        observe._probe(pod(0))

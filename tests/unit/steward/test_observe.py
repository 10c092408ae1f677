"""What the steward sees of pods, nodes, money and time, look by look; what is away keeps its last word."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.clock import Clock
from infra.cluster.fitness import Ailment, NodeFacts, Sickness
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, COMPLETION_INDEX
from infra.steward.clocks import Clocks
from infra.steward.decide import Observation, PodView
from infra.steward.seeing import observe
from infra.steward.seeing.observe import Observer
from infra.steward.seeing.sources import Sources
from tests.part import part
from tests.unit.fake_s3 import Time
from tests.unit.steward.steward_story import config
from trainer.contract import AGENT_PORT, Phase, Status

ENDED = datetime(2026, 11, 22, 11, 59, tzinfo=UTC)
HEARTBEAT_S = config().spec.recovery.heartbeat_timeout.total_seconds()
BASE, NODE = config().base_usd_per_hour, config().node_usd_per_hour


def pod(index: int = 0, phase: str | None = "Running", ip: str | None = "10.0.0.1", **ended: Any) -> Pod:
    state = {"terminated": {"exitCode": 0, "finishedAt": ENDED.isoformat(), **ended}} if ended else {"running": {}}
    container = {"name": "t", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": state}
    return from_dict(  # type: ignore[return-value]
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"gang-{index}", "annotations": {COMPLETION_INDEX: str(index)}},
            "spec": {"containers": [], "nodeName": f"node-{index}"},
            "status": {"phase": phase, "podIP": ip, "containerStatuses": [container]},
        }
    )  # fmt: skip


def node(index: int, **changes: Any) -> NodeFacts:
    base = {"name": f"node-{index}", "instance": f"i-{index}", "ready": True, "quarantined": False}
    return NodeFacts.model_validate(base | {"instance_state": "running", "accelerators": 8} | changes)


class World:
    """Two nodes and a gang, by a virtual clock; `steps`: pod -> its step, one that is not here does not answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time, self.pods, self.nodes = Time(), [pod(0), pod(1)], [node(0), node(1)]
        self.steps: dict[int, int] = {0: 0, 1: 0}
        self.away, self.asked_ec2, self.labels = False, list[bool](), dict[str, str]()
        self.not_told: Exception | None = None
        patch.setattr(observe, "_probe", self._probe)
        patch.setattr(observe, "ThreadPoolExecutor", lambda *_, **__: SimpleNamespace(map=map))
        patch.setattr(observe.attempts, "pods", self._pods)
        self.sources = Sources(self.time)
        clock = Clock(self.time, self.time.wall)
        self.observer = Observer(config(), self, self, Decimal(5), clock, self.sources)  # type: ignore[arg-type]
        self.observer.launched(1)

    def facts(self, ask_ec2: bool) -> tuple[NodeFacts, ...]:
        self._weather()
        self.asked_ec2.append(ask_ec2)
        return tuple(self.nodes)

    def _pods(self, client: Any, labels: dict[str, str]) -> list[Pod]:
        self._weather()
        self.labels = labels
        return list(self.pods)

    def _weather(self) -> None:
        if self.away:
            raise httpx2.ConnectError("connection refused")

    def _probe(self, one: Pod) -> Status | None:
        assert one.metadata and one.metadata.annotations
        step = self.steps.get(int(one.metadata.annotations[COMPLETION_INDEX]))
        if step is None:
            return None
        return part(Status, phase=Phase.SAVING, step=step, committed_step=step - 5)

    def look(self, after_s: float = 10.0, in_flight: bool = True, **more: Any) -> Observation:
        self.time.go(after_s)
        return self.observer.observe(1, in_flight, 7, more.get("stop", False), more.get("held"))

    def view(self, index: int, after_s: float = 10.0) -> PodView:
        return next(one for one in self.look(after_s).pods if one.index == index)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def seconds(lasts: timedelta | None) -> float | None:
    return None if lasts is None else lasts.total_seconds()


# --- pods ---


def test_a_pod_is_told_as_kubernetes_and_its_agent_have_it(world: World) -> None:
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


def test_what_was_asked_of_the_steward_is_told_as_it_was_given(world: World) -> None:
    assert not world.look().stop_requested and world.look().held_since is None
    assert world.look(stop=True).stop_requested and world.look(held=ENDED).held_since == ENDED
    assert world.look().deadline == config().deadline


def test_between_attempts_no_pod_is_asked_for(world: World) -> None:
    world.look()
    assert world.look(in_flight=False).pods == () and world.look().pods != ()


def test_a_pod_is_silent_since_its_last_answer_and_none_before_its_first(world: World) -> None:
    del world.steps[1]
    assert [seconds(one) for one in (world.view(1).silent_for, world.view(0).silent_for)] == [None, 0]
    assert seconds(world.view(1).running_for) == 20, "since it was first seen to run"
    world.steps[1] = 3
    world.look()
    del world.steps[1]
    for age in (10, 20, 30):
        told = world.view(1)
        assert seconds(told.silent_for) == age and told.step == 3, "its last word stands"


def test_a_pod_that_does_not_run_is_not_asked(world: World) -> None:
    world.pods = [pod(0), pod(1, phase="Pending", ip=None), pod(2, phase="Running", ip=None)]
    told = world.look().pods
    assert [one.silent_for is None for one in told] == [False, True, True]
    assert set(world.observer.agents) == {"gang-0"}
    assert told[1].running_for is None


@pytest.mark.parametrize(
    ("phase", "told"),
    [("Pending", "Pending"), ("Succeeded", "Succeeded"), ("Failed", "Failed"), (None, "Pending"), ("Odd", "Missing")],
)
def test_of_a_pod_without_a_phase_nothing_is_believed_but_that_it_waits(
    world: World, phase: str | None, told: str
) -> None:
    world.pods = [pod(0, phase=phase)]
    assert world.view(0).phase == told
    world.pods[0].status = None
    assert world.view(0).phase == "Pending"


def test_a_pod_that_was_there_and_is_no_more_has_not_ended_well(world: World) -> None:
    world.steps = {0: 9, 1: 8}
    world.look()
    world.pods = [pod(0)]
    gone = world.view(1)
    assert (gone.phase, gone.detail, gone.step, gone.node) == ("Missing", "the pod is gone", 8, "node-1")
    assert world.view(1).phase == "Missing" and world.view(0).phase == "Running"
    world.pods = [pod(0), pod(1)]
    assert world.view(1).phase == "Running"
    world.observer.launched(2)
    world.pods = [pod(0)]
    assert [one.index for one in world.look().pods] == [0], "another attempt misses none of its pods"


def test_an_init_container_that_failed_speaks_for_its_pod(world: World) -> None:
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


def test_a_pod_that_waits_says_why_and_one_that_ran_does_not(world: World) -> None:
    waiting = pod(1, phase="Pending", ip=None)
    assert waiting.status and waiting.status.containerStatuses
    words = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    made: Any = from_dict(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": {"containerStatuses": [
            {"name": "t", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": words}]}}
    )  # fmt: skip
    waiting.status.containerStatuses[0].state = made.status.containerStatuses[0].state
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
    world: World, message: str | None, reason: str, told: str
) -> None:
    world.pods = [pod(0, phase="Failed", exitCode=137, message=message, reason="OOMKilled")]
    seen = world.view(0)
    assert (seen.exit_code, seen.ended_at, seen.reason, seen.detail) == (137, ENDED, reason, told)


def test_any_container_that_ended_tells_the_end_and_silence_tells_nothing(world: World) -> None:
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


# --- an agent's answer ---


class Answer:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def read(self) -> bytes:
        return self.body


GOOD = {
    "campaign": "c", "attempt": 1, "node": "n", "phase": "training", "step": 3, "steps": 9, "committed_step": 1,
    "tokens": 1, "loss": None, "step_seconds": None, "ranks": [],
}  # fmt: skip


@pytest.mark.parametrize("answer", [OSError("refused"), TimeoutError("slow"), b"no JSON", b"{}"])
def test_whatever_an_agent_does_not_say_is_silence(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def opened(url: str, timeout: float) -> Answer:
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer)

    monkeypatch.setattr(observe.urllib.request, "urlopen", opened)
    assert observe._probe(pod(0)) is None


def test_an_agent_is_asked_at_its_address_for_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(url: str, timeout: float) -> Answer:
        assert (url, timeout) == (f"http://10.0.0.1:{AGENT_PORT}/status", 1.0)
        return Answer(json.dumps(GOOD).encode())

    monkeypatch.setattr(observe.urllib.request, "urlopen", opened)
    told = observe._probe(pod(0))
    assert told is not None and told.step == 3

    def mistaken(url: str, timeout: float) -> Answer:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(observe.urllib.request, "urlopen", mistaken)
    with pytest.raises(KeyError):
        observe._probe(pod(0))


# --- money ---


@pytest.mark.parametrize(
    ("states", "billing"),
    [
        (("running", "running"), 2),
        (("running", "gone"), 1),
        (("impaired", "unknown"), 2),
        (("running", "running", "running"), 3),
        ((), 0),
    ],
)
def test_every_instance_that_has_not_gone_bills_fit_or_not(world: World, states: tuple[str, ...], billing: int) -> None:
    world.nodes = [node(index, instance_state=one, quarantined=True) for index, one in enumerate(states)]
    assert world.look().usd_per_hour == BASE + billing * NODE


def test_before_any_node_was_seen_all_that_are_wanted_bill(world: World) -> None:
    world.away = True
    assert world.look().usd_per_hour == BASE + 2 * NODE


def test_money_runs_by_the_hour_from_the_first_look_on(world: World) -> None:
    assert world.look(1000).spent_usd == 5, "before it, somebody else counted"
    assert world.look(1800).spent_usd == 5 + (BASE + 2 * NODE) / 2
    world.nodes = [node(0)]
    assert world.look(3600).spent_usd == 5 + (BASE + 2 * NODE) / 2 + BASE + NODE
    assert world.look(0).spent_usd == 5 + (BASE + 2 * NODE) / 2 + BASE + NODE


# --- nodes ---


def test_a_node_is_told_with_what_ails_it_and_for_how_long(world: World) -> None:
    fault = Ailment(words="AcceleratedHardwareReady is False", sickness=Sickness.FAULT, bars=False)
    held = Ailment(words="cordoned by somebody else", sickness=Sickness.HELD)
    changes = {"ready": None, "instance_state": "impaired", "ailments": (held,)}
    world.nodes = [node(0, ailments=(fault,)), node(1, **changes)]
    world.look()
    first, second = world.look(40).nodes
    assert (first.name, first.instance, first.unfit) == ("node-0", "i-0", fault.words)
    assert first.suspected and first.sick_for == {Sickness.FAULT: timedelta(seconds=40)}
    assert (second.ready, second.instance_state, second.suspected) == (None, "impaired", False)
    assert second.sick_for == {} and not second.quarantined
    assert world.observer.clocks.sick == {"node-0 i-0 fault": world.time() - 40}


def test_nodes_are_short_from_the_first_look_that_finds_too_few_fit_ones(world: World) -> None:
    assert world.look().since_short is None
    world.nodes = [node(0), node(1, ready=False)]
    assert seconds(world.look().since_short) == 0
    assert seconds(world.look(30).since_short) == 30
    world.nodes = [node(0), node(1), node(2, ready=False)]
    assert world.look().since_short is None, "there are enough"


def test_a_cluster_that_cannot_be_reached_makes_no_node_short_and_none_whole(world: World) -> None:
    world.nodes = [node(0)]
    world.look()
    world.away, world.nodes = True, [node(0), node(1)]
    sight = world.look(60)
    assert seconds(sight.since_short) == 60 and [one.name for one in sight.nodes] == ["node-0"]
    assert [one.source for one in sight.unseen] == ["cluster"]


def test_a_mistake_of_ours_is_no_weather(world: World) -> None:
    def mistaken(ask_ec2: bool) -> None:
        raise KeyError("a mistake")

    world.facts = mistaken  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyError):
        world.look()


def test_before_the_cluster_was_ever_seen_no_node_is_short(world: World) -> None:
    world.away = True
    assert world.look().since_short is None and world.look().nodes == ()


def test_pods_keep_their_last_word_and_agents_are_asked_while_the_cluster_is_away(world: World) -> None:
    world.look()
    world.away, world.steps = True, {0: 50, 1: 40}
    sight = world.look(60)
    assert [one.step for one in sight.pods] == [50, 40] and sight.step == 40


def test_ec2_is_away_when_it_does_not_tell_and_is_asked_again_when_its_pause_is_over(world: World) -> None:
    world.not_told = httpx2.ConnectError("no EC2")
    assert [one.source for one in world.look().unseen] == ["AWS"] and world.asked_ec2 == [True]
    world.look(0.5)
    assert world.asked_ec2 == [True, False] and world.sources.away("AWS")
    world.not_told = None
    world.look(0.1)
    assert world.sources.away("AWS"), "who was not asked has not answered"
    assert world.look(60).unseen == () and world.asked_ec2[-1]


# --- time ---


def test_a_new_attempt_begins_with_no_time_and_no_word_of_the_last(world: World) -> None:
    world.steps = {0: 9, 1: 9}
    world.look()
    del world.steps[0]
    world.look(30)
    world.observer.launched(2)
    sight = world.look(5)
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [5, 5] and sight.step == 0
    assert sight.pods[0].step == 0 and sight.pods[0].silent_for is None and seconds(sight.pods[0].running_for) == 0


def test_a_step_is_only_one_that_the_slowest_made(world: World) -> None:
    world.steps = {0: 5, 1: 5}
    world.look()
    world.steps = {0: 9, 1: 5}
    assert seconds(world.look(60).since_step) == 60
    world.steps = {0: 9, 1: 6}
    assert seconds(world.look(60).since_step) == 0


def taken_over(world: World, **changes: Any) -> None:
    """A predecessor launched two hours ago and saw no step for one."""
    now = world.time()
    marks = {"attempt": 1, "launched": now - 7200, "stepped": now - 3600, "step": 70} | changes
    world.observer.go_on_from(Clocks(**marks))


def test_who_takes_over_listens_to_every_running_pod_before_it_believes_the_stored_clocks(world: World) -> None:
    taken_over(world)
    world.steps = {0: 70}
    sight = world.look()
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [10, 10] and sight.step == 70
    world.steps = {0: 70, 1: 70}
    sight = world.look(5)
    assert [seconds(one) for one in (sight.since_launch, sight.since_step)] == [7215, 3615]


@pytest.mark.parametrize("over", [False, True])
def test_it_listens_for_no_longer_than_a_heartbeat(world: World, over: bool) -> None:
    taken_over(world)
    world.steps = {}
    after = HEARTBEAT_S + (1 if over else 0)
    assert seconds(world.look(after).since_step) == (3600 + after if over else after)
    assert seconds(world.look(0).since_step) == (3600 + after if over else after)


def test_a_new_attempt_of_who_took_over_is_believed_at_once(world: World) -> None:
    taken_over(world)
    world.steps = {}
    world.look()
    world.observer.launched(2)
    world.pods, world.away = [], True
    sight = world.look(7)
    assert (seconds(sight.since_launch), sight.pods) == (7, ())
    assert seconds(world.look(HEARTBEAT_S - 10).since_launch) == HEARTBEAT_S - 3


def test_what_was_stepped_meanwhile_is_no_hang(world: World) -> None:
    taken_over(world)
    world.steps = {0: 500, 1: 500}
    assert seconds(world.look().since_step) == 0


def test_younger_clocks_than_ones_own_listening_are_believed(world: World) -> None:
    world.time.go(100)
    taken_over(world, launched=world.time() + 5, stepped=world.time() + 5)
    world.steps = {}
    assert seconds(world.look(10).since_launch) == 5


def test_a_pod_that_was_silent_before_the_takeover_is_silent_since_then(world: World) -> None:
    now = world.time()
    taken_over(world, quiet={"gang-1": now - 300}, sick={"node-1 i-1 late": now - 200})
    world.nodes = [node(0), node(1, ailments=(Ailment(words="late", sickness=Sickness.LATE),))]
    world.steps = {0: 70}
    sight = world.look()
    assert seconds(sight.pods[1].running_for) == 310 and sight.pods[1].silent_for is None
    assert sight.nodes[1].sick_for == {Sickness.LATE: timedelta(seconds=210)}
    assert world.observer.clocks.quiet == {"gang-1": now - 300}, "and so for whoever comes next"


def test_the_clocks_know_since_when_each_pod_is_silent(world: World) -> None:
    world.look()
    heard = world.time()
    del world.steps[1]
    world.look()
    assert world.observer.clocks.quiet == {"gang-1": heard}
    world.look()
    assert world.observer.clocks.quiet == {"gang-1": heard}
    world.steps[1] = 1
    world.look()
    assert world.observer.clocks.quiet == {}

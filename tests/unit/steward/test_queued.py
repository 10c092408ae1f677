"""A gang that waits in Kueue's queue is neither failed nor hung, and its clocks begin when it may start."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ApiError

from infra.cluster import attempts
from infra.cluster.kubernetes import JobSet
from infra.cluster.standing.queueing import VANISHED, QueuePlace, Workload
from infra.spec.standing import StandingCluster
from infra.steward.decide import Attempt, EndAttempt, FailureClass, History, Hold, Wait, decide
from infra.steward.seeing import observe
from tests.fake_cluster import answer
from tests.root import ROOT
from tests.unit.steward.seeing.observe_world import ObservedGang, pod, seconds, world
from tests.unit.steward.test_decide import POLICY, node, seen
from tests.unit.steward.test_decide import pod as pod_view

__all__ = ["world"]
WAITS = QueuePlace(state="waiting", reason="Pending", message="insufficient unused quota")
WORDS = "the gang waits for quota: Pending: insufficient unused quota"
MAY_START = QueuePlace(state="admitted")
STOPPED = QueuePlace(state="stopped", reason="PodsReadyTimeout", message="exceeded the requeuing limit")


@pytest.fixture
def queued(world: ObservedGang, monkeypatch: pytest.MonkeyPatch) -> ObservedGang:
    """The gang in a queue, which says `world.answers`."""
    section = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())["cluster"]
    cluster = StandingCluster.model_validate({**section, "queue": "team-a"})
    config = world.observer.config
    spec = config.spec.model_copy(update={"cluster": cluster})
    world.observer.config = config.model_copy(update={"spec": spec})
    asked: list[tuple[Any, ...]] = []
    answers = {"place": WAITS}

    def place(*question: Any) -> QueuePlace:
        asked.append(question[1:])
        world._weather()
        return answers["place"]

    monkeypatch.setattr(observe.attempts, "ask_queue", place)
    world.answers, world.asked = answers, asked  # type: ignore[attr-defined]
    return world


def test_a_queued_gang_waits_with_its_queues_words_and_its_clocks_stand(queued: Any) -> None:
    queued.pods = []
    for _ in range(100):
        sight = queued.look(60)
    assert sight.queued == WORDS and sight.pods == () and seconds(sight.since_launch) == 0
    assert queued.asked[-1] == (JobSet, "story-a1", "team-a")
    queued.answers["place"] = MAY_START
    queued.pods = [pod(0), pod(1)]
    sight = queued.look(10)
    assert sight.queued == "" and len(sight.pods) == 2 and seconds(sight.since_launch) == 10


def test_the_pods_of_a_preempted_gang_are_not_missing_when_it_starts_again(queued: Any) -> None:
    queued.answers["place"] = MAY_START
    queued.steps = {0: 70, 1: 70}
    assert {one.phase for one in queued.look().pods} == {"Running"}
    queued.answers["place"], queued.pods = WAITS, []
    assert queued.look().pods == () and queued.observer.agents == {}
    queued.answers["place"] = MAY_START
    assert queued.look().pods == (), "no pod has been made yet, and none is missed"


def test_pods_that_the_queue_ends_while_it_is_looked_at_are_not_missing(
    queued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It suspends the gang first: who asks it last hears why pods are gone."""
    queued.answers["place"] = MAY_START
    queued.steps = {0: 70, 1: 70}
    assert {one.phase for one in queued.look().pods} == {"Running"}
    listed = observe.attempts.pods

    def list_and_preempt(*question: Any) -> Any:
        queued.pods, queued.answers["place"] = [], WAITS
        return listed(*question)

    monkeypatch.setattr(observe.attempts, "pods", list_and_preempt)
    view = queued.look()
    assert (view.queued, view.pods) == (WORDS, ()) and decide(view, POLICY, History()) == Wait(why=WORDS)


def test_a_gang_whose_job_is_deleted_under_it_has_neither_ended_nor_failed(queued: Any) -> None:
    """Kueue's retention deletes Workload and JobSet. Its pods were there, and had not ended."""
    queued.answers["place"] = MAY_START
    queued.steps = {0: 70, 1: 70}
    assert {one.phase for one in queued.look().pods} == {"Running"}
    queued.answers["place"], queued.pods = QueuePlace(state="vanished"), []
    view = queued.look()
    action = decide(view, POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure == "interrupted" and not action.dead_nodes
    assert action.why == VANISHED and "not known" in action.why
    assert seconds(view.since_launch) == 0, "no clock of the old pods counts"


def test_a_gang_that_its_queue_has_stopped_for_good_is_held_with_the_queues_words(queued: Any) -> None:
    """Not at once: Kueue may still delete it, and an admin may have erred. A retry would take no notice of either."""
    queued.look()
    queued.answers["place"], queued.pods = STOPPED, []
    queued.look(10)
    view = queued.look(POLICY.heartbeat_timeout.total_seconds())
    assert decide(view, POLICY, History()) == Wait(why=STOPPED.words)
    action = decide(queued.look(1), POLICY, History())
    assert action == EndAttempt(failure=FailureClass.QUEUE, why=STOPPED.words)
    attempt = Attempt(
        number=1, failure=FailureClass.QUEUE, ended_at=view.now, committed_at_launch=-1, committed_at_end=-1
    )
    after = queued.look(1, in_flight=False)
    held = decide(after, POLICY.model_copy(update={"on_stop": "hold"}), History(attempts=(attempt,)))
    assert after.stopped_for is None and isinstance(held, Hold) and "queue error" in held.why


def test_a_gang_that_is_started_again_after_a_stop_goes_on(queued: Any) -> None:
    queued.answers["place"] = STOPPED
    queued.look(10)
    queued.answers["place"] = WAITS
    assert queued.look(3600).stopped_for is None
    queued.answers["place"] = STOPPED
    assert decide(queued.look(10), POLICY, History()) == Wait(why=STOPPED.words)


def test_of_a_new_attempt_nothing_is_known_by_what_the_queue_said_of_the_last_one(queued: Any) -> None:
    queued.answers["place"], queued.pods = QueuePlace(state="vanished"), []
    assert queued.look().vanished == VANISHED
    queued.observer.begin_attempt(2)
    queued.away = True
    view = queued.look(1, attempt=2)
    assert not view.vanished and not isinstance(decide(view, POLICY, History()), EndAttempt)


def test_an_api_server_that_is_silent_takes_no_gang_out_of_its_queue(queued: Any) -> None:
    assert queued.look().queued == WORDS
    queued.away = True
    assert queued.look(60).queued == WORDS


def test_a_queue_that_cannot_be_asked_cuts_off_neither_stop_nor_budget(
    queued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kueue may be gone, or its right withdrawn, while the API server answers all else."""

    def refuse(*_: object) -> QueuePlace:
        raise answer(403, "Forbidden")

    assert queued.look().queued == WORDS
    monkeypatch.setattr(observe.attempts, "ask_queue", refuse)
    view = queued.look(60)
    assert view.queued == WORDS and [outage.source for outage in view.unseen] == ["queue"]
    assert isinstance(decide(view.model_copy(update={"stop_requested": True}), POLICY, History()), EndAttempt)


def test_without_a_queue_nobody_is_asked(world: ObservedGang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe.attempts, "ask_queue", lambda *_: pytest.fail("it was asked"))
    assert world.look().queued == ""


@pytest.mark.parametrize(
    "more",
    [
        {"step": 0, "pods": (), "since_launch": timedelta(hours=30)},
        {"pods": (), "since_step": timedelta(hours=30)},
        {"pods": (pod_view(0, phase="Missing"), pod_view(1, phase="Failed", exit_code=143))},
    ],
)
def test_no_clock_and_no_ended_pod_ends_a_queued_attempt(more: dict[str, Any]) -> None:
    view = seen(**({"nodes": (node(0), node(1)), "nodes_wanted": 2, "in_flight": True} | more))
    assert not isinstance(decide(view, POLICY, History()), Wait) or "pods" in str(decide(view, POLICY, History()))
    action = decide(view.model_copy(update={"queued": WORDS}), POLICY, History())
    assert action == Wait(why=WORDS)


def test_waiting_in_a_queue_bills_nothing(queued: Any) -> None:
    """The gang holds no node, so its budget is not spent by others' pods."""
    observer = queued.observer
    base, node_rate = observer.config.base_usd_per_hour, observer.config.node_usd_per_hour
    assert node_rate > 0
    queued.pods = []
    assert queued.look(60).usd_per_hour == base and observer.nodes_billing == 0
    queued.answers["place"] = MAY_START
    queued.pods = [pod(0), pod(1)]
    assert queued.look(10).usd_per_hour == base + 2 * node_rate and observer.nodes_billing == 2


def test_a_stop_and_the_deadline_end_a_queued_attempt_all_the_same() -> None:
    stopped = seen(in_flight=True, pods=(), queued=WORDS, stop_requested=True)
    assert isinstance(decide(stopped, POLICY, History()), EndAttempt)
    late = seen(in_flight=True, pods=(), queued=WORDS)
    late = late.model_copy(update={"deadline": late.now})
    assert isinstance(decide(late, POLICY, History()), EndAttempt)


class Server:
    """An API server with one JobSet, and a Workload of it; without, after the JobSet is gone."""

    suspended = True

    def __init__(self, code: int = 200) -> None:
        self.code = code

    def get(self, kind: Any, name: str, namespace: str) -> Any:
        if self.code != 200:
            request = httpx2.Request("GET", "https://racks")
            raise ApiError(request=request, response=httpx2.Response(self.code, json={"code": self.code}))
        return JobSet.from_dict({"metadata": {"name": name, "uid": "7"}, "spec": {"suspend": self.suspended}})

    def list(self, kind: Any, namespace: str) -> list[Any]:
        row = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient unused quota"}
        metadata = {"name": "jobset-a1", "ownerReferences": [{"uid": "7"}]}
        return [Workload.from_dict({"metadata": metadata, "spec": {}, "status": {"conditions": [row]}})]


def test_the_words_are_those_of_the_jobs_own_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(code: int) -> str:
        return attempts.ask_queue(Server(code), JobSet, "story-a1", "team-a").words  # type: ignore[arg-type]

    assert words(200) == WORDS and words(404) == VANISHED
    monkeypatch.setattr(Server, "suspended", False)
    assert words(200) == "", "its pods may start, whatever Kueue has forgotten of it"
    with pytest.raises(ApiError):
        words(403)

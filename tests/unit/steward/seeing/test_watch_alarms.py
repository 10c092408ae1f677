"""A node that the watch has named is replaced; an attempt that rolled back blames no node; alarms reach the record."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from infra.record.events import Event
from infra.record.payloads import Payload
from infra.steward.blame import first_failed, lost_nodes
from infra.steward.decide import EndAttempt, FailureClass, History, Replace, decide
from infra.steward.seeing.trainer_events import TrainerEvents
from tests.unit.steward.test_decide import POLICY, ended, node, pod, seen
from trainer.contract import ROLLED_BACK, ExitCode

SICK = {"phase": "Failed", "exit_code": ExitCode.SICK, "reason": "sick", "detail": "its gradients differ"}


def test_a_node_that_calls_itself_sick_is_buried_whatever_its_peers_died_of() -> None:
    peer = pod(0, phase="Failed", exit_code=ExitCode.INTERRUPTED, reason="interrupted")
    action = decide(seen(pods=(peer, pod(1, **SICK))), POLICY, History())
    assert isinstance(action, EndAttempt)
    assert (action.failure, action.dead_nodes, action.first_failed) == (FailureClass.NODE, ("node-1",), "node-1")
    assert "its gradients differ" in action.why


def test_it_is_replaced_before_the_next_attempt() -> None:
    last = ended(1, FailureClass.NODE).model_copy(update={"dead_nodes": ("node-1",)})
    assert set(lost_nodes((node(0), node(1)), last)) == {"node-1"}
    action = decide(seen(in_flight=False, pods=()), POLICY, History(attempts=(last,)))
    assert isinstance(action, Replace) and action.nodes == ("node-1",)


def test_a_roll_back_is_a_restart_that_blames_nobody() -> None:
    pods = tuple(pod(index, phase="Failed", exit_code=70, reason=ROLLED_BACK) for index in (0, 1))
    action = decide(seen(pods=pods), POLICY, History())
    assert isinstance(action, EndAttempt) and action.failure is FailureClass.PROCESS
    assert not action.dead_nodes and first_failed(pods) is None


class Store:
    """A record in memory."""

    def __init__(self) -> None:
        self.kept: list[Event] = []

    def get_json(self, name: str) -> None:
        return None

    def events(self) -> list[Event]:
        return self.kept

    def append(self, payload: Payload) -> None:
        self.kept.append(Event.of(payload, datetime(2026, 1, 1, tzinfo=UTC), "steward", len(self.kept)))


@pytest.mark.parametrize("alarms", [3, 400])
def test_alarms_are_recorded_once_and_not_without_end(alarms: int) -> None:
    store = Store()
    events = TrainerEvents(store)  # type: ignore[arg-type]
    for step in range(alarms):
        for _ in range(2):
            events.take("c-a1-0", {"event": "watch", "time": 1.0, "step": step, "detector": "loss", "text": "x"})
    assert [event.data["step"] for event in store.kept] == list(range(min(alarms, 300)))

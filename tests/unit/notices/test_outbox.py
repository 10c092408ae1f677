"""Each notice is sent once by each way, whoever looks and dies; a way that fails harms nobody and is recorded once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from infra.errors import LeaseLost
from infra.notices.notice import Notice, NotSent
from infra.notices.outbox import AGAIN, TRIES, Outbox, Teller
from infra.record.payloads.attempts import AttemptRunning, NodeQuarantined
from infra.spec.notify import Change, Notify
from tests.worlds.record import MemoryRecord

RUNNING: dict[str, Any] = {"attempt": 1, "nodes": ["a"]}


class Killed(BaseException):
    """The process dies here."""


class Way:
    """Takes notices; meets `troubles` first, one for each try, None for none."""

    def __init__(self, *troubles: BaseException | None) -> None:
        self.troubles, self.got, self.tries = list(troubles), list[Notice](), 0

    def __call__(self, notice: Notice) -> None:
        self.tries += 1
        if self.troubles and (trouble := self.troubles.pop(0)) is not None:
            raise trouble
        self.got.append(notice)


class NotedCampaign(MemoryRecord):
    def outbox(self, writer: str, notify: Notify | None = None, **ways: Way) -> Outbox:
        return Outbox(self.store(writer), notify or Notify(), ways, self.time.wall)

    def failures(self) -> list[dict[str, Any]]:
        return [event.data for event in self.store("reader").events() if event.kind == "notice.failed"]


@pytest.fixture
def world() -> NotedCampaign:
    made = NotedCampaign()
    made.store("steward-1").append(AttemptRunning(**RUNNING))
    return made


def cost() -> str:
    return "bills now: 1.00 USD/h"


def test_a_notice_is_sent_once_by_each_way_whoever_looks(world: NotedCampaign) -> None:
    topic, webhook = Way(), Way()
    for writer in ("steward-1", "driver-1", "steward-2"):
        one = world.outbox(writer, topic=topic, webhook=webhook)
        one.tell(cost)
        one.tell(cost)
    assert len(topic.got) == len(webhook.got) == 1
    assert topic.got[0].subject == "bivouac train: training has begun: attempt 1 on 1 node"
    assert "Cost: bills now: 1.00 USD/h." in topic.got[0].text


def test_two_that_look_at_once_send_once(world: NotedCampaign) -> None:
    """The second comes between the first one's look and its send."""
    topic = Way()
    second = world.outbox("driver-1", topic=topic)

    def slow() -> str:
        assert second.tell(cost) == 0
        return cost()

    assert world.outbox("steward-1", topic=topic).tell(slow) == 1
    assert topic.tries == 1


def test_what_a_dead_process_had_begun_is_sent_by_the_next_one(world: NotedCampaign) -> None:
    topic = Way(Killed())
    with pytest.raises(Killed):
        world.outbox("steward-1", topic=topic).tell(cost)
    successor = world.outbox("steward-2", topic=topic)
    assert successor.tell(cost) == 0  # the first may still be at it
    world.time.go(AGAIN.total_seconds())
    assert successor.tell(cost) == 1 and successor.tell(cost) == 0


def test_a_way_that_fails_is_tried_thrice_recorded_once_and_stops_no_other(world: NotedCampaign) -> None:
    webhook, topic = Way(*[NotSent("the webhook answers with status 404")] * 9), Way()
    one = world.outbox("steward-1", webhook=webhook, topic=topic)
    for _ in range(2 * TRIES):
        one.tell(cost)
        world.time.go(AGAIN.total_seconds())
    assert (webhook.tries, len(topic.got)) == (TRIES, 1)
    assert world.failures() == [{"way": "webhook", "error": "the webhook answers with status 404"}]


def test_a_second_try_that_succeeds_is_the_last(world: NotedCampaign) -> None:
    topic = Way(NotSent("away"))
    one = world.outbox("steward-1", topic=topic)
    assert one.tell(cost) == 0
    world.time.go(AGAIN.total_seconds())
    assert [one.tell(cost), one.tell(cost)] == [1, 0]


def test_a_way_that_is_silent_is_asked_once_for_a_look_however_much_is_due(world: NotedCampaign) -> None:
    for node in ("a", "b", "c"):
        world.store("steward-1").append(NodeQuarantined(node=node, instance="i", reason="dead"))
    topic = Way(NotSent("away"))
    world.outbox("steward-1", topic=topic).tell(cost)
    assert topic.tries == 1


def test_only_the_changes_that_the_spec_names_are_told(world: NotedCampaign) -> None:
    topic = Way()
    assert world.outbox("w", Notify(on=(Change.NODE,)), topic=topic).tell(cost) == 0
    assert world.outbox("w", Notify(on=(Change.TRAINING,)), topic=topic).tell(cost) == 1


def test_nothing_due_asks_nobody_what_bills(world: NotedCampaign) -> None:
    asked = list[str]()
    world.time.go(timedelta(days=2).total_seconds())
    assert world.outbox("w", topic=Way()).tell(lambda: asked.append("") or "") == 0
    assert not asked


def test_what_no_event_tells_is_said_once_by_its_own_key(world: NotedCampaign) -> None:
    topic = Way()
    notices: dict[str, Callable[[], Notice]] = {"closer-1": lambda: Notice("the closer has failed", "see its log")}
    assert [world.outbox(writer, topic=topic).say(notices) for writer in ("a", "b")] == [1, 0]
    assert [one.subject for one in topic.got] == ["the closer has failed"]


def test_who_has_lost_its_lease_tells_nobody(world: NotedCampaign) -> None:
    topic = Way()

    def guard() -> None:
        raise LeaseLost("lost")

    with pytest.raises(LeaseLost):
        Teller(world.outbox("steward-1", topic=topic), guard, cost).look()
    assert not topic.tries and Teller(world.outbox("steward-2", topic=topic), lambda: None, cost).look() == 1

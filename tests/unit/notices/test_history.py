"""`bivouac status` says which notices went out, when and by which way, and which did not."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.look import status
from infra.notices.history import Delivery, Entry, history
from infra.notices.notice import NotSent
from infra.notices.outbox import AGAIN, TRIES, Outbox
from infra.record.payloads.stages import StageFailed
from infra.spec.notify import Change, Notify
from infra.spec.secrets import SecretSource
from tests.worlds.record import MemoryRecord
from tests.worlds.s3 import NOON

BOTH = Notify(webhook=SecretSource(secret="bivouac_webhook"))


class NoticeHistory:
    def __init__(self) -> None:
        record = MemoryRecord()
        self.time, self.store, self.webhook_works = record.time, record.store(), True
        self.target = "aws"

    def tell(self, notify: Notify = BOTH) -> None:
        def post(_: Any) -> None:
            if not self.webhook_works:
                raise NotSent("the webhook answers with status 410")

        Outbox(self.store, notify, {"topic": lambda _: None, "webhook": post}, self.time.wall).tell(lambda: "nothing")

    def seen(self, notify: Notify = BOTH, most: int = 5) -> tuple[Entry, ...]:
        spec: Any = SimpleNamespace(target=self.target, notify=notify)
        return history(self.store, spec, self.time.wall(), most)


@pytest.fixture
def world() -> NoticeHistory:
    notice_history = NoticeHistory()
    notice_history.store.append(StageFailed(stage="provision", error="the VPC limit is reached"))
    return notice_history


def test_what_was_not_told_yet_waits_on_each_way_of_the_spec(world: NoticeHistory) -> None:
    assert [(one.way, one.delivery, one.tries) for one in world.seen()] == [
        ("webhook", Delivery.WAITING, 0), ("topic", Delivery.WAITING, 0),
    ]  # fmt: skip
    (only,) = world.seen(Notify())
    assert (only.way, only.change, only.at) == ("topic", Change.FAILED, NOON)
    assert only.subject == "bivouac train: provision has failed: the VPC limit is reached"
    assert world.seen(Notify(on=(Change.HELD,))) == (), "the spec does not ask for it"


def test_what_was_sent_stands_with_the_time_of_its_try_even_when_it_is_days_old(world: NoticeHistory) -> None:
    world.time.go(90)
    world.tell()
    world.time.go(timedelta(days=3).total_seconds())
    sent = [one for one in world.seen() if one.change is Change.FAILED]
    assert {(one.way, one.delivery, one.tries) for one in sent} == {
        ("topic", Delivery.SENT, 1), ("webhook", Delivery.SENT, 1),
    }  # fmt: skip
    assert {one.at for one in sent} == {NOON + timedelta(seconds=90)}


def test_a_way_that_fails_is_told_with_its_tries_and_its_trouble(world: NoticeHistory) -> None:
    world.webhook_works = False
    deliveries = []
    for _ in range(TRIES + 1):
        world.tell()
        deliveries.append([(one.delivery, one.tries, one.trouble) for one in world.seen() if one.way == "webhook"])
        world.time.go(AGAIN.total_seconds())
    trouble = "the webhook answers with status 410"
    assert deliveries == [
        [(Delivery.TRYING, 1, trouble)], [(Delivery.TRYING, 2, trouble)], [(Delivery.TRYING, 3, trouble)],
        [(Delivery.GIVEN_UP, 3, trouble)],
    ]  # fmt: skip
    assert [(one.delivery, one.trouble) for one in world.seen() if one.way == "topic"] == [(Delivery.SENT, "")]


def test_the_newest_come_first_and_no_more_than_asked_for(world: NoticeHistory) -> None:
    world.tell()
    for stage in ("bake", "launch"):
        world.time.go(60)
        world.store.append(StageFailed(stage=stage, error="x"))
    seen = world.seen(Notify(), most=2)
    assert [one.subject.partition(": ")[2] for one in seen] == ["launch has failed: x", "bake has failed: x"]


def test_a_reminder_is_one_of_them(world: NoticeHistory) -> None:
    world.tell()
    world.time.go(3600)
    world.tell()
    told = {(one.change, one.delivery) for one in world.seen()}
    assert told == {(Change.FAILED, Delivery.SENT), (Change.BILLING, Delivery.SENT)}


def test_status_prints_one_line_each_and_its_json_has_every_field(world: NoticeHistory) -> None:
    world.webhook_works = False
    world.tell()
    (label, first), (blank, second) = status._notices(world.seen())
    assert (label, blank) == ("notices", "")
    assert first == (
        "2026-11-22 12:00 UTC, webhook, trying, 1 try: the webhook answers with status 410: "
        "bivouac train: provision has failed: the VPC limit is reached"
    )
    assert second.startswith("2026-11-22 12:00 UTC, topic, sent: bivouac train: provision has failed")
    out = io.StringIO()
    write_json(Console(file=out), {"notices": world.seen()})
    (webhook, topic) = json.loads(out.getvalue())["notices"]
    assert (webhook["way"], webhook["delivery"], webhook["tries"]) == ("webhook", "trying", 1)
    assert topic["at"] == "2026-11-22T12:00:00Z" and topic["change"] == "failed"


def test_where_no_topic_is_no_notice_waits_for_one(world: NoticeHistory) -> None:
    world.target = "kubernetes"
    assert world.seen(Notify()) == ()

"""What trainers print reaches logs and record once each, whatever fails on the way: connection, S3, or the listener."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from infra.cluster.pod_logs import PodLogs
from infra.record import pod_logs
from infra.record.store import CampaignStore
from infra.rehearsal.aws.world import World
from infra.steward.seeing import logs
from infra.steward.seeing.logs import Listener, LogShipper
from infra.steward.seeing.trainer_events import TrainerEvents
from tests.rehearsal.aws_account import Account, until
from tests.rehearsal.rehearsal.aws.test_aws_faults import ONCE, ask
from tests.rehearsal.steward.fake_kubelet import START_NS, Kubelet, PodLog

POD, SHARD = "c-a2-0", "rank-0.bin"
EVENT = {"event": "refused_shard", "time": 1.0, "attempt": 2, "step": 20, "tier": "local", "rank": 0, "file": SHARD,
         "seen": "b", "wanted": "a"}  # fmt: skip
LINES = ("loading\n", json.dumps(EVENT) + "\n", "training\n")
RECORDED = {"pod": POD, **{key: value for key, value in EVENT.items() if key not in ("event", "time")}}
CUT = 2
"""So many lines come over the first connection, which then breaks."""


def printing(cut: int | None = None) -> Kubelet:
    """A pod that has printed all and ends; its log's first connection breaks after `cut` lines."""
    log = PodLog([(START_NS + number, line) for number, line in enumerate(LINES)])

    def end(number: int, log: PodLog) -> None:
        log.phase = "Running" if cut is not None and number == 1 else "Succeeded"

    return Kubelet({POD: log}, lambda number, log: cut if number == 1 else None, end)


@pytest.fixture
def store(aws: Account, world: World) -> Iterator[CampaignStore]:
    """A record whose client tries nothing twice, so that one fault is one failure."""
    s3 = aws.session.client("s3", endpoint_url=world.endpoint_url, config=ONCE)
    s3.create_bucket(Bucket="state")
    yield (campaign_store := CampaignStore(s3, "state", "c", "steward"))
    ask(world, clear=True)
    for key in campaign_store.keys(""):
        s3.delete_object(Bucket="state", Key=key)


@contextmanager
def shipping(kubelet: Kubelet, store: CampaignStore, listener: Listener) -> Iterator[LogShipper]:
    http = httpx2.Client(base_url="http://kubernetes", transport=kubelet)
    shipper = LogShipper(PodLogs(http), store, listener)
    shipper.follow(POD)
    try:
        yield shipper
    finally:
        shipper.close()


def recorded(store: CampaignStore) -> list[dict[str, Any]]:
    reader = CampaignStore(store.s3, "state", "c", "reader")
    return [event.data for event in reader.events() if event.kind == "checkpoint.refused"]


def text(store: CampaignStore) -> str:
    return b"".join(store.get(key) or b"" for key in pod_logs.pieces(store, POD)).decode()


class Once:
    """A listener that fails at its first `failures` calls."""

    def __init__(self, failures: int, error: Callable[[], Exception]) -> None:
        self.failures, self.error, self.heard = failures, error, list[dict[str, Any]]()

    def __call__(self, pod: str, event: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error()
        self.heard.append(event)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.05)


@pytest.mark.parametrize("cut", [None, CUT], ids=["one connection", "a connection that breaks"])
def test_an_event_whose_listener_failed_once_arrives_once_and_its_text_is_not_doubled(
    store: CampaignStore, caplog: pytest.LogCaptureFixture, cut: int | None
) -> None:
    listener, kubelet = Once(1, lambda: KeyError("a fault of ours")), printing(cut)
    with caplog.at_level(logging.INFO, "steward"), shipping(kubelet, store, listener) as shipper:
        shipper.wait_for([POD], 10)
        until(lambda: listener.heard)
        assert kubelet.connections == (1 if cut is None else 2), "a fault of the listener's is no lost connection"
    assert listener.heard == [EVENT]
    assert text(store) == "".join(LINES)
    records = [record for record in caplog.records if record.exc_info and record.exc_info[0] is KeyError]
    assert len(records) == 1 and POD in records[0].getMessage(), "the fault is said, with its traceback, once"


def test_a_fault_that_stays_is_said_with_the_event_and_holds_up_neither_text_nor_others(
    store: CampaignStore, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Once(10**9, lambda: KeyError("a fault of ours"))
    with shipping(printing(), store, listener) as shipper:
        shipper.wait_for([POD], 10)
    assert text(store) == "".join(LINES)
    assert SHARD in caplog.records[-1].getMessage(), "what never reached the record is in the log"


def hit(world: World) -> bool:
    return any(rule["hits"] for rule in ask(world)["rules"])


@pytest.mark.parametrize("effect", ["refuse", "refuse-after", "drop", "drop-after"])
def test_a_refusal_of_a_shard_reaches_the_record_once_though_s3_failed_at_it(
    store: CampaignStore, world: World, effect: str
) -> None:
    what = {"service": "s3", "action": "PutObject", "path": "/state/campaigns/c/events/*"}
    ask(world, add=[{**what, "effect": effect, "code": "SlowDown", "status": 503}])
    with shipping(printing(CUT), store, TrainerEvents(store).take) as shipper:
        shipper.wait_for([POD], 10)
        until(lambda: hit(world) and recorded(store))
    assert recorded(store) == [RECORDED]
    assert text(store) == "".join(LINES)


def test_a_steward_that_reads_a_log_again_records_nothing_twice(store: CampaignStore) -> None:
    for writer in ("steward", "its-successor"):
        own = CampaignStore(store.s3, "state", "c", writer)
        with shipping(printing(), own, TrainerEvents(own).take) as shipper:
            shipper.wait_for([POD], 10)
    assert recorded(store) == [RECORDED]


def test_logs_that_s3_refuses_are_said_and_shipped_whole_later(
    store: CampaignStore, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    what = {"service": "s3", "action": "PutObject", "path": "/state/campaigns/c/logs/*"}
    ask(world, add=[{**what, "code": "SlowDown", "status": 503}])
    with shipping(printing(), store, TrainerEvents(store).take):
        until(lambda: text(store) == "".join(LINES))
    assert "SlowDown" in caplog.text

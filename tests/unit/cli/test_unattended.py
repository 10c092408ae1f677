"""What the closer notes of a campaign that nobody drives and that is not over, so that people are told of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.campaign.repairs import lost_storage
from infra.cli.end import close
from infra.notices.changes import changes
from infra.record.events import Event
from infra.record.holder import Holder
from infra.record.lease import DRIVER_LEASE, Lease
from infra.record.payloads import payload_of
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.record.payloads.stages import StageStarted
from infra.record.payloads.training import FileSystemLost, FileSystemReplaced, TrainingFinished
from infra.record.store import CampaignStore
from infra.spec.notify import Change
from tests.worlds.s3 import FakeS3, Time

TTL = timedelta(seconds=30)
ELSEWHERE = Holder(user="me", host="laptop", boot_id="x", pid_namespace="", pid=1, start_ticks=1)
LAUNCHED = ("attempt.launched", {"attempt": 1, "committed_step": -1})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CampaignStore:
    """Of a driver that died in its provision."""
    monkeypatch.setattr(Lease, "_renew", lambda self: None)
    s3: Any = FakeS3(Time())
    campaign_store = CampaignStore(s3, "state", "train", "w", now=s3.time.wall)
    campaign_store.lease(DRIVER_LEASE, TTL, ELSEWHERE).acquire()
    campaign_store.append(StageStarted(stage="provision"))
    s3.time.go(60)
    return campaign_store


def told(store: CampaignStore, hours: float = 0.0) -> list[Change]:
    now = store.s3.time.wall() + timedelta(hours=hours)
    return [change.change for change in changes(store.events(), now)]


def failures(store: CampaignStore) -> list[Event]:
    return [event for event in store.events() if event.kind == "stage.failed"]


def test_a_driver_that_died_before_the_launch_is_told_of_and_reminded_of(store: CampaignStore) -> None:
    assert told(store, 2.0) == [], "by its record it is at work"
    for _ in range(3):
        close.note_dead_driver(store, store.state())
    (failed,) = failures(store)
    assert failed.data["stage"] == "provision" and "its driver died" in failed.data["error"]
    assert told(store) == [Change.FAILED]
    assert told(store, 1.0) == told(store, 7.0) == [Change.FAILED, Change.BILLING]


def test_the_nodes_of_a_driver_that_died_in_preflight_are_still_up(store: CampaignStore) -> None:
    """A preflight that fails gives its nodes back first; one that nobody ends does not, and they bill."""
    store.append(StageStarted(stage="preflight"))
    close.note_dead_driver(store, store.state())
    assert failures(store) and store.state().gpu_nodes_up


def test_a_driver_that_lives_or_was_interrupted_or_has_a_steward_is_not_called_dead(store: CampaignStore) -> None:
    lease = store.lease(DRIVER_LEASE, TTL, Holder.this_process())
    lease.acquire()
    close.note_dead_driver(store, store.state())
    assert failures(store) == [], "it lives"
    lease.release()
    close.note_dead_driver(store, store.state())
    assert failures(store) == [], "a person interrupted it"
    store.lease(DRIVER_LEASE, TTL, ELSEWHERE).acquire()
    store.s3.time.go(60)
    store.append(payload_of(LAUNCHED[0], LAUNCHED[1]))
    close.note_dead_driver(store, store.state())
    assert failures(store) == [], "its steward tells"


@pytest.mark.parametrize("stage", ["supervise", "archive", "teardown", "certify"])
def test_only_stages_without_a_steward_are_ended_in_the_record(store: CampaignStore, stage: str) -> None:
    store.append(StageStarted(stage=stage))
    close.note_dead_driver(store, store.state())
    assert failures(store) == []


def lose(monkeypatch: pytest.MonkeyPatch, word: str) -> Any:
    """A context whose file system has this word of FSx, at a clock that goes on by itself."""
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(close, "id_of", lambda store, stack: "fs-1")
    monkeypatch.setattr(lost_storage.FileSystemLoss, "_word", lambda self: word)
    monkeypatch.setattr(close.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(close, "turns", lambda seconds, interval: range(int(seconds / interval) + 1))
    return SimpleNamespace(account=None, names=SimpleNamespace(stack="campaign-train"))


def test_a_lost_file_system_without_a_driver_is_told_with_the_command_that_is_needed(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra.notices.notice import notice

    store.append(payload_of(LAUNCHED[0], LAUNCHED[1]))
    store.append(CheckpointCopied(step=40))
    context = lose(monkeypatch, "does not exist")
    for _ in range(2):
        close.note_loss(store, store.state(), context)
    lost = [event.data for event in store.events() if event.kind == "file-system.lost"]
    assert [(one["id"], one["repair"], one["copied"]) for one in lost] == [("fs-1", False, 40)]
    (due,) = changes(store.events(), store.s3.time.wall())
    text = notice(due, "train", "us-east-1", "bills now: 30.00 USD/h").text
    assert "file system fs-1 does not exist; training stands still, and each hour of it bills" in text
    assert "Cost: bills now: 30.00 USD/h." in text and "Next: `bivouac repair train` makes a new one" in text
    store.append(AttemptLaunched(attempt=2, committed_step=-1))  # which finds no file system either
    assert told(store, 1.0) == [Change.FAILED, Change.BILLING]
    store.append(FileSystemReplaced())
    assert told(store, 1.0) == [Change.FAILED]


@pytest.mark.parametrize(("word", "events"), [("", [LAUNCHED]), ("does not exist", [])])
def test_a_file_system_that_is_there_or_that_nothing_trains_on_is_not_called_lost(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch, word: str, events: list[Any]
) -> None:
    for kind, data in events:
        store.append(payload_of(kind, data))
    close.note_loss(store, store.state(), lose(monkeypatch, word))
    assert not [event for event in store.events() if event.kind == "file-system.lost"]


@pytest.mark.parametrize("known", ["lost", "given to a driver", "over"])
def test_a_loss_is_recorded_once_and_not_of_a_training_that_is_over(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    store.append(payload_of(LAUNCHED[0], LAUNCHED[1]))
    if known == "over":
        store.append(TrainingFinished(outcome="done", why="", committed_step=60))
    else:
        repair = known == "given to a driver"
        store.append(FileSystemLost(id="fs-0", word="x", copied=-1, repair=repair, why="earlier"))
    close.note_loss(store, store.state(), lose(monkeypatch, "does not exist"))
    lost = [event.data["id"] for event in store.events() if event.kind == "file-system.lost"]
    assert lost == {"lost": ["fs-0"], "given to a driver": ["fs-0", "fs-1"], "over": []}[known]


def test_a_file_system_that_is_away_for_one_look_is_not_called_lost(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(payload_of(LAUNCHED[0], LAUNCHED[1]))
    context, words = lose(monkeypatch, ""), iter(("does not exist", ""))
    monkeypatch.setattr(lost_storage.FileSystemLoss, "_word", lambda self: next(words))
    close.note_loss(store, store.state(), context)
    monkeypatch.setattr(lost_storage.FileSystemLoss, "_word", lambda self: "does not exist")
    monkeypatch.setattr(close, "turns", lambda seconds, interval: range(1))
    close.note_loss(store, store.state(), context)
    assert not [event for event in store.events() if event.kind == "file-system.lost"], "nor for the only one"


def test_what_is_due_is_noted_before_people_are_told(store: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    class Sends:
        def __init__(self, *_: object) -> None: ...

        def tell(self, bill: Callable[[], str]) -> int:
            calls.append(bill())
            return 3

    monkeypatch.setattr(close, "stored_spec", lambda store: SimpleNamespace(notify=(), campaign="train"))
    monkeypatch.setattr(close, "read_only_context", lambda *_: "context")
    monkeypatch.setattr(close, "ways", lambda spec: ())
    monkeypatch.setattr(close, "Outbox", Sends)
    monkeypatch.setattr(close, "note_loss", lambda store, state, context: calls.append(f"loss by {context}"))
    bill = SimpleNamespace(sentence=lambda campaign: f"bill of {campaign}")
    monkeypatch.setattr(close, "billing", SimpleNamespace(bill=lambda context: bill))
    stream = StringIO()
    assert close.attend(store, Console(file=stream)) == 3
    assert len(failures(store)) == 1 and calls == ["loss by context", "bill of train"]
    assert stream.getvalue() == "people were told of train: 3\n"
    monkeypatch.setattr(Sends, "tell", lambda self, bill: 0)
    assert close.attend(store, Console(file=stream)) == 0 and stream.getvalue().count("\n") == 1

"""When the closer ends a campaign, and when it leaves it alone: by its record, leases and clock."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.campaign import closing
from infra.campaign.closing import Act
from infra.cli.end import close
from infra.record.holder import Holder
from infra.record.lease import DRIVER_LEASE, Lease
from infra.record.payloads import payload_of
from infra.record.payloads.stages import Attached, Closing, Detached, StageFinished, StageStarted
from infra.record.store import STOP, CampaignStore
from tests.worlds.s3 import NOON, FakeS3, Time

DEADLINE = NOON + timedelta(hours=5)
TTL = timedelta(seconds=30)
ELSEWHERE = Holder(user="me", host="laptop", boot_id="x", pid_namespace="", pid=1, start_ticks=1)
NEXT = Holder(user="you", host="desk", boot_id="y", pid_namespace="", pid=2, start_ticks=2)
LAUNCHED = ("attempt.launched", {"attempt": 1, "committed_step": -1})
TRAINED = (LAUNCHED, ("training.finished", {"outcome": "done", "why": "", "committed_step": 60}))
ARCHIVED = (*TRAINED, ("archive.verified", {"manifest": "m", "step": 60}))
UNCOMMITTED = ("training.finished", {"outcome": "done", "why": "", "committed_step": -1})
LEFT = (UNCOMMITTED[0], {**UNCOMMITTED[1], "unrecognised": {"files": 3, "bytes": 12, "why": "no *.ckpt"}})
EMPTY = (UNCOMMITTED[0], {**UNCOMMITTED[1], "unrecognised": {"files": 0, "bytes": 0}})
COPIED = ("archive.unproven", {"prefix": "s3://a/b/unproven", "files": 3, "bytes": 12, "why": "no *.ckpt"})
AT_ZERO = ("nodes.at-zero", {"group": "gpu"})


def stage(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    return kind, {"stage": name, **({"seconds": 1.0} if kind == "stage.finished" else {})}


CASES: dict[str, tuple[list[tuple[str, dict[str, Any]]], datetime, str | None]] = {
    "nothing launched yet": ([], NOON, None),
    "training": ([LAUNCHED], NOON, None),
    "archiving": ([*TRAINED], NOON, None),
    "held": ([LAUNCHED, ("held", {"attempt": 1, "until": "later", "cause": "x"})], NOON, None),
    "archived, nodes at zero": ([*ARCHIVED, AT_ZERO], NOON, "the steward is done"),
    "nothing committed, and nobody could look": ([LAUNCHED, UNCOMMITTED, AT_ZERO], NOON, None),
    "nothing committed, unrecognised content": ([LAUNCHED, LEFT, AT_ZERO], NOON, None),
    "the same, and late": ([LAUNCHED, LEFT, AT_ZERO], DEADLINE, None),
    "the same, copied as it is": ([LAUNCHED, LEFT, COPIED, AT_ZERO], NOON, "the steward is done"),
    "nothing committed, and its folder was empty": ([LAUNCHED, EMPTY, AT_ZERO], NOON, "the steward is done"),
    "not archived": ([*TRAINED, ("archive.failed", {"error": "x"}), AT_ZERO], NOON, None),
    "not archived, and late": ([*TRAINED, ("archive.failed", {"error": "x"}), AT_ZERO], DEADLINE, None),
    "a second before the deadline": ([LAUNCHED], DEADLINE - timedelta(seconds=1), None),
    "the deadline": ([LAUNCHED], DEADLINE, "the deadline 2026-11-22T17:00:00+00:00 has passed"),
    "the deadline, never launched": ([], DEADLINE, "the deadline 2026-11-22T17:00:00+00:00 has passed"),
    "somebody's teardown": (
        [*ARCHIVED, AT_ZERO, stage("stage.started", "teardown")], NOON,
        "its teardown was begun and nobody finished it",
    ),
    "torn down, not certified": (
        [*ARCHIVED, AT_ZERO, stage("stage.finished", "teardown")], NOON,
        "its teardown was begun and nobody finished it",
    ),
    "given up": ([*TRAINED, ("abandoned", {})], NOON, "its teardown was begun and nobody finished it"),
}  # fmt: skip


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CampaignStore:
    monkeypatch.setattr(Lease, "_renew", lambda self: None)
    s3: Any = FakeS3(Time())
    campaign_store = CampaignStore(s3, "state", "train", "w", now=s3.time.wall)
    campaign_store.put_json("clock.json", {"started_at": NOON.isoformat(), "deadline": DEADLINE.isoformat()})
    campaign_store.append(StageStarted(stage="check"))
    campaign_store.lease(DRIVER_LEASE, TTL, ELSEWHERE).acquire()
    s3.time.go(60)  # and there it died
    campaign_store.lease("steward", TTL, ELSEWHERE).acquire()
    return campaign_store


def judged(store: CampaignStore, now: datetime) -> tuple[Act, str]:
    return closing.judge(closing.look(store, now))


@pytest.mark.parametrize("name", CASES)
def test_a_campaign_is_over_when_nobody_will_go_on_with_it(store: CampaignStore, name: str) -> None:
    events, now, why = CASES[name]
    for kind, data in events:
        store.append(payload_of(kind, data))
    assert judged(store, now) == (Act.END, why) if why else judged(store, now)[0] is Act.LEAVE
    store.lease(DRIVER_LEASE, TTL, NEXT).acquire()
    assert judged(store, now) == (Act.LEAVE, f"is driven by {NEXT}"), "somebody drives"


SILENCE = "the steward has been silent for 21 minutes"


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([], (Act.LEAVE, f"is not archived, and waits for a person: {SILENCE}")),
        ([stage("stage.started", "preflight")], (Act.GIVE_BACK, SILENCE)),
        ([stage("stage.started", "preflight"), AT_ZERO],
         (Act.LEAVE, f"is not archived, and waits for a person: {SILENCE}")),
        ([*ARCHIVED[1:]], (Act.END, SILENCE)),
    ],
    ids=["no node", "nodes up", "given back", "archived"],
)  # fmt: skip
def test_a_steward_that_is_silent_beyond_its_bound_ends_nodes_and_what_loses_nothing(
    store: CampaignStore, events: list[tuple[str, dict[str, Any]]], wanted: tuple[Act, str]
) -> None:
    for kind, data in (LAUNCHED, *events):
        store.append(payload_of(kind, data))
    store.s3.time.go(20 * 60)
    assert judged(store, store.s3.time.wall()) == (Act.LEAVE, "is not over")
    store.s3.time.go(90)
    assert judged(store, store.s3.time.wall()) == wanted
    del store.s3.objects["campaigns/train/leases/steward.json"]
    assert judged(store, store.s3.time.wall()) == wanted, "without its lease its launch counts"


def test_a_record_that_cannot_be_read_whole_is_torn_down_by_nobody(store: CampaignStore) -> None:
    kind, data = stage("stage.started", "preflight")
    store.append(payload_of(kind, data))
    budget = {
        "at": NOON.isoformat(),
        "writer": "z",
        "sequence": 0,
        "kind": "launch.budget",
        "data": {"until": "soon"},
    }
    store.put(f"{store.prefix}/events/z/000000.json", json.dumps(budget).encode())
    store.s3.time.go(3600)
    act, why = judged(store, store.s3.time.wall())
    assert act is Act.GIVE_BACK and why == "its driver has been silent for 60 minutes, and nothing trains"


def interrupted(store: CampaignStore) -> None:
    """A person's Ctrl-C: the driver gives its lease back."""
    lease = store.lease(DRIVER_LEASE, TTL, NEXT)
    lease.acquire()
    lease.release()


def test_what_a_person_interrupted_is_theirs_until_the_deadline_unless_they_have_left(store: CampaignStore) -> None:
    for kind, data in (*ARCHIVED, AT_ZERO):
        store.append(payload_of(kind, data))
    interrupted(store)
    theirs = (Act.LEAVE, "waits for whoever interrupted its driver, until its deadline")
    assert judged(store, NOON) == theirs
    assert judged(store, DEADLINE)[0] is Act.END
    store.append(Detached(holder="me", deadline=""))
    assert judged(store, NOON) == (Act.END, "the steward is done")
    store.append(Attached(holder="me"))
    assert judged(store, NOON) == theirs


def test_a_closer_that_failed_is_followed_by_another_though_it_gave_the_lease_back(store: CampaignStore) -> None:
    for kind, data in (*ARCHIVED, AT_ZERO, ("closing", {"why": "x"})):
        store.append(payload_of(kind, data))
    interrupted(store)
    assert judged(store, NOON) == (Act.END, "the steward is done")


def test_the_closer_gives_way_to_whoever_drives_and_asks_nobody_to_stop(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, data in (*ARCHIVED, AT_ZERO):
        store.append(payload_of(kind, data))
    monkeypatch.setattr(close, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(close, "opened", lambda *_: pytest.fail("it takes no lease"))
    store.lease(DRIVER_LEASE, TTL, NEXT).acquire()
    stream = StringIO()
    assert close.close_command("train", "us-east-1", Console(file=stream, width=200)) == 0
    assert stream.getvalue() == "train is driven by you@desk (process 2): nothing to do\n"
    assert store.get_json(STOP) is None


def test_a_campaign_that_has_ended_is_not_opened_again(store: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("teardown", "certify", "report"):
        store.append(StageFinished(stage=name, seconds=1.0))
    monkeypatch.setattr(close, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(close, "opened", lambda *_: pytest.fail("it takes no lease"))
    stream = StringIO()
    assert close.close_command("train", "us-east-1", Console(file=stream, width=200)) == 0
    assert stream.getvalue() == "train has ended: nothing to do\n"


def test_somebody_who_is_quicker_is_no_failure(store: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, data in (*ARCHIVED, AT_ZERO):
        store.append(payload_of(kind, data))

    def quicker(*_: Any) -> Any:
        store.lease(DRIVER_LEASE, TTL, NEXT).acquire()
        store.lease(DRIVER_LEASE, TTL).acquire()

    monkeypatch.setattr(close, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(close, "opened", quicker)
    monkeypatch.setattr(close, "stored_spec", lambda _: None)
    monkeypatch.setattr(close, "stored_plan", lambda *_: None)
    monkeypatch.setattr(close, "_set_to_zero", lambda *_: None)
    monkeypatch.setattr(close, "target", SimpleNamespace(have_engine=lambda: None, site_facts=lambda: None))
    stream = StringIO()
    assert close.close_command("train", "us-east-1", Console(file=stream, width=200)) == 0
    assert "somebody was quicker" in stream.getvalue() and store.get_json(STOP) is None


def test_what_is_unreadable_keeps_no_node_up_and_tears_nothing_down(store: CampaignStore) -> None:
    for kind, data in (LAUNCHED, stage("stage.started", "preflight")):
        store.append(payload_of(kind, data))
    for name in ("spec.json", "clock.json", "identity.json"):
        store.put(f"campaigns/train/{name}", b"\0")
    store.s3.time.go(21 * 60)
    view = closing.look(store, store.s3.time.wall())
    assert (view.money, view.deadline, view.loses_nothing) == (None, None, False)
    assert closing.judge(view)[0] is Act.GIVE_BACK


@pytest.mark.parametrize("trains", [True, False])
def test_an_end_is_recorded_and_only_a_steward_that_still_trains_is_asked_to_stop(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    for kind, data in (LAUNCHED,) if trains else (*ARCHIVED, AT_ZERO):
        store.append(payload_of(kind, data))
    context, ends, engines = SimpleNamespace(enters_cluster=True), list[Any](), list[str]()
    monkeypatch.setattr(close, "_set_to_zero", lambda *_: None)
    monkeypatch.setattr(close.target, "have_engine", lambda: engines.append("fetched"))
    monkeypatch.setattr(close.target, "site_facts", lambda: None)
    monkeypatch.setattr(close, "stored_spec", lambda store: "spec")
    monkeypatch.setattr(close, "stored_plan", lambda store, spec: "plan")
    monkeypatch.setattr(close, "opened", lambda *_: nullcontext(context))
    monkeypatch.setattr(close, "end", ends.append)
    close._end(store, closing.look(store, NOON), "the deadline has passed", Console(file=StringIO()))
    assert ends == [context] and context.enters_cluster is False and engines == ["fetched"]
    assert store.events()[-1].payload == Closing(why="the deadline has passed")
    assert (store.get_json(STOP) is not None) == trains


@pytest.mark.parametrize(
    ("act", "people_hear"), [(Act.LEAVE, True), (Act.GIVE_BACK, True), (Act.END, False)], ids=lambda word: str(word)
)
def test_each_act_ends_well_and_people_hear_of_a_campaign_that_stays(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch, act: Act, people_hear: bool
) -> None:
    calls = list[str]()
    monkeypatch.setattr(close, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(close, "judge", lambda view: (act, "[because]"))
    for name, replaced in (("_end", "end"), ("_set_to_zero", "zero"), ("attend", "told")):
        monkeypatch.setattr(close, name, lambda *_, call=replaced: calls.append(call))
    stream = StringIO()
    assert close.close_command("train", "us-east-1", Console(file=stream, width=20)) == 0
    assert calls == {Act.LEAVE: ["told"], Act.GIVE_BACK: ["zero", "told"], Act.END: ["end"]}[act]
    assert "[because]" in stream.getvalue() and stream.getvalue().count("\n") == 1, "one line, as it is"


@pytest.mark.parametrize("by", ["driver", "end"])
def test_nobody_is_told_of_a_campaign_that_somebody_drives_or_that_has_ended(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "driver":
        store.lease(DRIVER_LEASE, TTL, NEXT).acquire()
    else:
        store.append(StageFinished(stage="report", seconds=1.0))
    monkeypatch.setattr(close, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(close, "judge", lambda view: (Act.LEAVE, "stays"))
    monkeypatch.setattr(close, "attend", lambda *_: pytest.fail("people are told"))
    assert close.close_command("train", "us-east-1", Console(file=StringIO())) == 0


@pytest.mark.parametrize(
    ("any_node", "recorded_up", "rows"),
    [(True, True, ["because"]), (True, False, ["because"]), (False, True, [None]), (False, False, [])],
)
def test_nodes_are_at_zero_on_record_with_the_reason_if_some_were_given_back(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch, any_node: bool, recorded_up: bool, rows: list[str | None]
) -> None:
    if recorded_up:
        store.append(StageStarted(stage="preflight"))
    monkeypatch.setattr(close, "give_back", lambda *_: any_node)
    close._set_to_zero(store, closing.look(store, NOON), "because", Console(file=StringIO()))
    zeros = [event.data for event in store.events() if event.kind == "nodes.at-zero"]
    assert [row.get("why") for row in zeros] == rows and all("gpu" in row["group"] for row in zeros)

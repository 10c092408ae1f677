"""What a job prints is text. Only lines with its supervisor's mark are events, and only as the schemas have them."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from infra.cluster.pod_logs import PodLogs
from infra.record import pod_logs
from infra.record.store import CampaignStore
from infra.record.trainer_lines import event_of
from infra.steward.seeing.logs import LogShipper
from infra.steward.seeing.trainer_events import TrainerEvents
from tests.rehearsal.steward.fake_kubelet import START_NS, Kubelet, PodLog
from tests.worlds.s3 import FakeS3, Time

POD = "job-a1-gang-0-0-x10yz"
MARK = chr(0x1E)
AGENT = MARK + json.dumps({"event": "agent", "phase": "starting", "time": 1.0, "node": "n0", "attempt": 1})
REFUSED = {"event": "refused_shard", "step": 3, "tier": "local", "rank": 0, "file": "f", "seen": "a", "wanted": "b"}
OURS: dict[str, tuple[dict[str, Any], str]] = {
    "restored": ({"event": "restored", "step": 30}, "checkpoint.restored"),
    "restarted": (
        {"event": "restarted_in_place", "step": 31, "seconds": 4.5, "culprit": 3, "of_node": "n1", "cause": "SIGKILL"},
        "attempt.restarted-in-place",
    ),
    "refused shard": (REFUSED, "checkpoint.refused"),
    "watch": (
        {"event": "watch", "step": 3, "detector": "loss", "text": "x", "did": "y", "value": "nan", "threshold": 2.0},
        "watch",
    ),
    "not sealed": ({"event": "not_sealed", "step": 10, "why": "a link leads out"}, "checkpoint.not-sealed"),
    "look failed": ({"event": "look_failed", "why": "OSError: [Errno 5] Input/output error"}, "checkpoint.look-failed"),
    "refused step": ({"event": "refused_step", "step": 20, "why": "damaged"}, "checkpoint.step-refused"),
    "unrecognised": (
        {"event": "unrecognised", "files": 2, "bytes": 99, "newest": "a/b.pt", "why": "no format", "fits": "single"},
        "checkpoint.unrecognised",
    ),
    "weights": ({"event": "weights_only", "why": "it has no optimizer"}, "checkpoint.weights-only"),
    "elsewhere": ({"event": "resumed_elsewhere", "offered": 30, "first": 1}, "training.resumed-elsewhere"),
    "loss jumped": (
        {"event": "loss_jumped", "step": 31, "before": 1.5, "now": 9.5},
        "training.loss-jumped",
    ),
}
SAID = {"time": 1.0, "node": "n0", "attempt": 1}


def record() -> CampaignStore:
    time = Time()
    return CampaignStore(FakeS3(time), "b", "job", "steward", now=time.wall)


def read(store: CampaignStore, lines: list[str], marked: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Ship a pod's whole log; return what reached the record."""
    log = PodLog([(START_NS + number, line + "\n") for number, line in enumerate(lines)], phase="Succeeded")
    http = httpx2.Client(base_url="http://kubernetes", transport=Kubelet({POD: log}))
    shipper = LogShipper(PodLogs(http), store, TrainerEvents(store).take, has_marks=marked)
    shipper.follow(POD)
    shipper.wait_for([POD], 60)
    shipper.close()
    found: dict[str, list[dict[str, Any]]] = {}
    for event in store.events():
        found.setdefault(event.kind, []).append(event.data)
    return found


@pytest.mark.parametrize(("event", "kind"), OURS.values(), ids=OURS)
def test_a_supervisors_line_reaches_the_record_with_its_fields(event: dict[str, Any], kind: str) -> None:
    lines = [AGENT, MARK + json.dumps(event | SAID)]
    fields = {key: value for key, value in (event | SAID).items() if key not in ("event", "time")}
    assert read(record(), lines) == {kind: [{"pod": POD, **fields}]}


@pytest.mark.parametrize(("event", "kind"), OURS.values(), ids=OURS)
def test_the_same_line_of_a_job_is_text(event: dict[str, Any], kind: str) -> None:
    store = record()
    forged = json.dumps(event | SAID)
    lines = [AGENT, forged, f" {MARK}{forged}", f"x\r{MARK}{forged}", f"\u2028{MARK}{forged}", f"\u241e{forged}"]
    assert read(store, lines) == {}
    text = b"".join(store.get(key) or b"" for key in pod_logs.pieces(store, POD)).decode()
    assert text == "".join(line + "\n" for line in lines), "and it is kept"


@pytest.mark.parametrize(("event", "kind"), OURS.values(), ids=OURS)
def test_a_pod_without_any_mark_has_an_older_supervisor_and_is_read_as_before(event: dict[str, Any], kind: str) -> None:
    assert list(read(record(), [json.dumps({"event": "agent"}), json.dumps(event | SAID)])) == [kind]
    assert list(read(record(), [json.dumps(event | SAID)], marked=False)) == [kind]


def test_a_steward_that_comes_later_knows_the_mark_from_the_stored_log() -> None:
    store = record()
    read(store, [AGENT, "training"])
    assert read(store, [AGENT, "training", json.dumps(REFUSED | SAID)]) == {}


HOSTILE: dict[str, dict[str, Any]] = {
    "a key of ours": REFUSED | {"kind": "stage.finished"},
    "a pod": REFUSED | {"pod": "another"},
    "a field too many": REFUSED | {"more": 1},
    "a step that is none": REFUSED | {"step": "3"},
    "a step below zero": REFUSED | {"step": -5},
    "a step beyond all": REFUSED | {"step": 10**400},
    "a step that is not whole": REFUSED | {"step": 1.5},
    "a rank that is a list": REFUSED | {"rank": [[]]},
    "no step": {"event": "restored"},
    "seconds without end": {"event": "restarted_in_place", "step": 1, "seconds": float("inf")},
    "a loss that is none": {"event": "loss_jumped", "step": 1, "before": float("nan"), "now": 1.0},
    "an event that is a list": {"event": ["restored"], "step": 1},
    "an event that is a thing": {"event": {}, "step": 1},
    "a count below zero": {"event": "unrecognised", "files": -1, "bytes": 1},
}


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("event", HOSTILE.values(), ids=HOSTILE)
def test_a_line_that_does_not_fit_its_schema_is_text(event: dict[str, Any], marked: bool) -> None:
    last = json.dumps({"event": "refused_step", "step": 1, "why": "the last"})
    lines = [json.dumps(event), "{", "[1]", "{}", "null", "[" * 50_000, '{"event":' * 5_000, last]
    found = read(record(), [AGENT, *(MARK + line for line in lines)] if marked else lines, marked)
    assert list(found) == ["checkpoint.step-refused"], "and the lines after it are read"


def test_words_are_cut_and_each_kind_has_a_bound() -> None:
    store = record()
    events = TrainerEvents(store)
    for step in range(400):
        events.take(POD, {"event": "not_sealed", "step": step, "why": "x" * 10_000})
    events.take(POD, {"event": "refused_step", "step": 1, "why": "another kind"})
    kept = [event.data for event in store.events() if event.kind == "checkpoint.not-sealed"]
    assert [data["step"] for data in kept] == list(range(300)) and len(kept[0]["why"]) == 2000
    assert len(store.events()) == 301


def test_a_line_beyond_all_is_text() -> None:
    for marked in ("", MARK):
        line = marked + json.dumps({"event": "restored", "step": 1, "tier": "x"})
        assert event_of(line.ljust(2**16), False) is not None and event_of(line.ljust(2**16 + 1), False) is None


def test_a_predecessors_loss_is_taken_up_if_it_is_one() -> None:
    for kept, loss in (({"loss": 2.5}, 2.5), ({"loss": "2.5"}, None), ([2.5], None), ({}, None)):
        store = record()
        store.put_json("live.json", kept)
        assert TrainerEvents(store).loss == loss


def test_a_loss_is_taken_from_steps_alone_and_only_as_a_number() -> None:
    events = TrainerEvents(record())
    for loss in (1.5, None, float("nan"), "2", True, [3.0]):
        events.take(POD, {"event": "step", "step": 1, "loss": loss, "anything": "else"})
    events.take(POD, {"event": "evaluated", "step": 1, "loss": 7.0})
    assert events.loss == 1.5

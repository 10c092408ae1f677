"""`bivouac explain`: the table of failures is the steward's own judgement, and an event has its reasons."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from infra.cli.look import explain, reasons
from infra.cli.look.endings import DEEDS, rows
from infra.console.plain_console import PlainConsole
from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.record.events import Event
from infra.record.faults import PastFault
from infra.record.payloads import PAYLOADS, payload_of
from infra.record.store import CampaignStore
from infra.spec.sections import Recovery
from infra.steward import decide
from infra.steward.decide import Action, Consequence, FailureClass
from tests.unit.cli.test_unreadable_objects import SPEC
from tests.worlds.record import MemoryRecord
from trainer.contract import ExitCode

RESTARTS = ("attempts_without_progress", "process_restarts")
REPLACES = ("attempts_without_progress", "node_replacements", "repairs_per_hour")


def shown(campaign: str | None = None, event: str | None = None, as_json: bool = False) -> str:
    output = io.StringIO()
    console = PlainConsole(file=output, width=200)
    assert explain.explain_command(campaign, event, "us-east-1", as_json, console) == 0
    return output.getvalue()


def row_of(words: str) -> Any:
    (row,) = [row for row in rows(Recovery()) if words in row.how]
    return row


@pytest.mark.parametrize(
    ("words", "failure", "follows", "limits"),
    [
        ("exits with 70", "process", "starts the next attempt", RESTARTS),
        ("dies of a signal", "process", "starts the next attempt", RESTARTS),
        ("hang_timeout", "hang", "starts the next attempt", RESTARTS),
        ("startup_timeout", "startup", "starts the next attempt", RESTARTS),
        ("exits with 71", "node", "replaces the node, then starts the next attempt", REPLACES),
        ("silent for", "node", "replaces the node, then starts the next attempt", REPLACES),
        ("never started", "node", "replaces the node, then starts the next attempt", REPLACES),
        ("a node declines", "interrupted", "replaces the node, then starts the next attempt", RESTARTS),
        ("/dev/shm", "interrupted", "starts the next attempt", RESTARTS),
        ("money", "interrupted", "archives what is sound and ends the training", ()),
        ("every pod succeeds", None, "archives what is sound and ends the training", ()),
    ],
)
def test_a_way_to_end_has_its_class_what_follows_and_its_limits(
    words: str, failure: str | None, follows: str, limits: tuple[str, ...]
) -> None:
    assert row_of(words)[1:] == (failure, follows, limits)


def test_an_error_of_the_user_holds_or_ends_as_the_spec_says() -> None:
    held, ended = row_of("exits with 64").follows.split(" (`on_stop: hold`), else ")
    assert held.startswith("holds the warm cluster") and ended == "archives what is sound and ends the training"


@pytest.mark.parametrize(
    ("words", "failure", "follows", "limits"),
    [
        ("for `spare_timeout`", "node", "starts the next attempt with fewer nodes", REPLACES[:2]),
        ("room for more", "interrupted", "starts the next attempt", ()),
    ],
)
def test_a_gang_that_may_be_smaller_has_two_ways_more(
    words: str, failure: str, follows: str, limits: tuple[str, ...]
) -> None:
    (row,) = [row for row in rows(Recovery(min_nodes=1)) if words in row.how]
    assert (row.failure, row.follows, row.limits) == (failure, follows, limits)
    assert len(rows(Recovery(min_nodes=1))) == len(rows(Recovery())) + 2


def test_every_class_and_every_exit_code_is_in_the_table() -> None:
    table = rows(Recovery())
    assert {row.failure for row in table} == {*FailureClass, None}
    for code in ExitCode:
        assert code is ExitCode.DONE or any(f"exits with {code.value} (" in row.how for row in table)


def test_the_table_says_what_the_steward_would_do_were_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decide.CONSEQUENCE, FailureClass.HANG, Consequence.HOLD)
    assert row_of("hang_timeout").follows.startswith("holds the warm cluster")


def test_every_action_of_the_steward_has_words() -> None:
    assert DEEDS.keys() == {action.model_fields["kind"].default for action in get_args(Action)}


def test_the_table_names_its_defaults() -> None:
    text = shown()
    assert "process_restarts 10, node_replacements 5" in text and "`restarts_in_place` (2)" in text
    assert len(json.loads(shown(as_json=True))) == len(rows(Recovery()))


EVENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("attempt.launched", {"attempt": 1, "jobset": "x-a1", "committed_step": -1}),
    ("decision", {"action": "end-attempt", "why": "node b.ec2 is dead: silent, and a second witness agrees"}),
    ("attempt.ended", {
        "attempt": 1, "failure": "node", "detail": "node b.ec2 is dead", "step": 31, "committed_at_end": 20,
        "dead_nodes": ["b.ec2"], "instances": {"b.ec2": "i-7"}, "log": ["one", "last words"],
        "culprit": {"ranks": [3], "nodes": ["b"], "why": "died"},
    }),
    ("decision", {"action": "replace", "why": "after attempt 1: b.ec2: dead"}),
    ("node.quarantined", {"node": "b.ec2", "instance": "i-7", "reason": "dead"}),
    ("attempt.launched", {"attempt": 2, "jobset": "x-a2", "committed_step": 20}),
    ("attempt.running", {"attempt": 2, "nodes": ["a", "c"]}),
    ("attempt.ended", {"attempt": 2, "failure": "cosmic", "detail": "a ray", "step": 40, "committed_at_end": 40}),
)  # fmt: skip


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CampaignStore:
    record = MemoryRecord()
    store = record.store("steward-1")
    store.put_json("spec.json", SPEC.model_dump(mode="json"))
    for kind, data in EVENTS:
        record.time.go(2)
        store.append(payload_of(kind, data))
    monkeypatch.setattr(explain, "record_of", lambda *_: store)
    return store


def explained(event: str | None) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for line in json.loads(shown("train", event, as_json=True)):
        texts.setdefault(line["label"], []).append(line["text"])
    return texts


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("number", ["2", "3"])
def test_the_end_of_an_attempt_has_what_happened_its_counts_its_cost_and_its_runbook(number: str) -> None:
    texts = explained(number)
    assert texts["class"][0].startswith("node: ") and "`heartbeat_timeout`" in texts["class"][0]
    assert texts["then"] == ["the steward replaces the node, then starts the next attempt"]
    assert texts["seen"] == ["dead node b (i-7)", "rank 3 on b: died"] and texts["log"] == ["one", "last words"]
    limits = ["attempts_without_progress 0 of 3", "node_replacements 1 of 5", "repairs_per_hour 0 of 10"]
    assert texts["limits"] == [", ".join(limits)]
    assert texts["lost"] == ["11 steps: attempt 2 goes on from step 20, attempt 1 was at 31"]
    assert texts["after"][-1] == "+8.0 s: attempt 2 trains on a, c"
    assert texts["runbook"][0].startswith("docs/runbooks/PodSilent.md: ")
    assert "`bivouac status train`" in texts["look"][0]


@pytest.mark.usefixtures("store")
def test_a_decision_has_the_stewards_own_reason() -> None:
    assert explained("4")["why"] == ["the steward replaces the node: after attempt 1: b.ec2: dead"]
    assert explained(None)["event"] == explained("4")["event"] == explained("12:00:08")["event"]


@pytest.mark.usefixtures("store")
def test_a_class_that_this_version_does_not_know_is_not_taken_for_another() -> None:
    texts = explained("8")
    assert texts["class"] == ["cosmic: this version does not know it"] and "then" not in texts
    assert texts["limits"] == ["not known: the record has a class that this version does not know"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["0", "9", "noon", "", "13:00:00"])
def test_an_event_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="no such event"):
        shown("train", name)


def test_every_runbook_that_an_explanation_names_is_there() -> None:
    assert {*reasons._RUNBOOK.values()} <= alerts().keys()
    assert reasons._RUNBOOK.keys() <= {*PAYLOADS, *FailureClass, *DEEDS}


def test_a_node_that_an_older_fault_bars_has_that_fault_and_its_end_among_its_reasons() -> None:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    fault = PastFault(at=at, campaign="old", reason="row remap failed", instance="i-1")
    probe = {"name": "known_fault", "ok": False, "seen": str(fault), "wanted": "none"}
    fields = {"node": "n", "instance": "i-1", "fit": False, "probes": [probe]}
    event = Event.of(payload_of("node.verdict", fields), at, "driver-1", 1)
    (line,) = [row.text for row in reasons.reasons([event], 1, Recovery(), "c") if "known_fault" in row.text]
    assert "i-1 failed on 2026-11-20 in old (avoided until 2026-12-04): row remap failed" in line

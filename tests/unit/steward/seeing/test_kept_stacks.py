"""The stacks of a gang that hangs: asked before its end, kept in the record, and named in the event."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from infra.record.store import CampaignStore
from infra.steward import attempt
from infra.steward.attempt import keep_stacks
from infra.steward.seeing.agents import HttpAnswer, NoAnswer
from tests.unit.steward.steward_story import StewardRun, story
from tests.worlds.s3 import FakeS3, Time, refusal

__all__ = ["story"]


def told(text: str) -> HttpAnswer:
    return HttpAnswer(200, json.dumps({"stacks": text}).encode())


def test_each_pod_that_answers_has_an_object_and_the_others_hold_up_nothing() -> None:
    store = CampaignStore(FakeS3(Time()), "state", "c", "w")
    answers: dict[str, Any] = {
        "10.0.0.1": told("line 7"), "10.0.0.2": NoAnswer("silent"), "10.0.0.3": HttpAnswer(404, b"known: /status"),
        "10.0.0.4": HttpAnswer(200, b"[]"), "10.0.0.5": HttpAnswer(200, b'{"stacks": 7}'),
    }  # fmt: skip

    def get(address: str, path: str, within_s: float) -> HttpAnswer:
        assert path == "/stacks"
        answer = answers[address]
        if isinstance(answer, Exception):
            raise answer
        return HttpAnswer(*answer)

    names = keep_stacks(store, 3, {f"pod-{n}": f"10.0.0.{n}" for n in range(1, 6)}, get=get)
    assert names == ("stacks/attempt-3/pod-1.txt",)
    assert [store.get(key) for key in store.keys("stacks/")] == [b"line 7"]


def test_of_a_large_gang_the_suspect_is_among_those_that_are_asked() -> None:
    store = CampaignStore(FakeS3(Time()), "state", "c", "w")
    pods = {f"pod-{n:04}": "10.0.0.1" for n in range(500)}
    names = keep_stacks(store, 1, pods, "pod-0499", lambda *_: told("x"))
    assert len(names) == 64 and "stacks/attempt-1/pod-0499.txt" in names


def test_all_that_are_asked_are_asked_at_once_so_silent_ones_are_waited_for_once() -> None:
    together = threading.Barrier(64)

    def get(*_: Any) -> HttpAnswer:
        together.wait(60.0)  # broken, for all, if one of them is not asked yet
        return told("x")

    store = CampaignStore(FakeS3(Time()), "state", "c", "w")
    assert len(keep_stacks(store, 1, {f"pod-{n:04}": "10.0.0.1" for n in range(64)}, get=get)) == 64


def test_a_bucket_that_refuses_them_is_no_trouble() -> None:
    s3 = FakeS3(Time())
    s3.away = refusal("SlowDown", 503)
    assert keep_stacks(CampaignStore(s3, "state", "c", "w"), 1, {"p": "10.0.0.1"}, get=lambda *_: told("x")) == ()


def test_a_hang_is_ended_after_its_stacks_are_kept(story: StewardRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, dict[str, str], str | None]] = []

    def keep(store: CampaignStore, number: int, addresses: dict[str, str], first: str | None) -> tuple[str, ...]:
        asked.append((number, dict(addresses), first))
        assert story.cluster.jobs, "its ranks are still there"
        return ("stacks/attempt-1/p.txt",)

    def stand_still() -> None:
        story.steps = {0: 20, 1: 20}

    monkeypatch.setattr(attempt, "keep_stacks", keep)
    story.run(7, stand_still)
    end = story.events("attempt.ended")[0]
    assert end.data["failure"] == "hang" and end.data["stacks"] == ["stacks/attempt-1/p.txt"]
    assert asked[0][0] == 1 and set(asked[0][1].values()) == {"10.0.0.0", "10.0.0.1"}

"""Agents that meet over a real store: each thread is one, and all read one decision."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from tests import waiting
from trainer.builtin.in_place import meeting
from trainer.builtin.in_place.meeting import Decision, Meeting, Word
from trainer.contract import AGENT_PORT, Env
from trainer.place import place_of
from trainer.supervisor.place import Place

LONG_S = 3600.0
DIED = {"own": True, "rank": 1, "cause": "died of SIGKILL", "at": 2.0}
Gathering = list[Meeting]


def place(node: int, nodes: int) -> Place:
    numbers = {Env.NODE_RANK: node, Env.NODE_COUNT: nodes, Env.RANKS_PER_NODE: 1, Env.ATTEMPT: 1}
    texts = {Env.NODE_NAME: f"node-{node}", Env.POD_IP: f"127.0.9.{node + 1}", Env.RENDEZVOUS: "x:1", Env.CAMPAIGN: "c"}
    return place_of({str(name): str(value) for name, value in (texts | numbers).items()})


@pytest.fixture
def two() -> Iterator[Gathering]:
    """The meetings of two agents, of which the first has the store."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(minutes=1))
    yield [Meeting(store, place(node, 2), LONG_S) for node in range(2)]


def word(node: int, **said: object) -> Word:
    return Word.model_validate({"node": f"node-{node}", "cause": "lost a peer"} | said)


def decided(agents: Gathering, words: list[Word], stopped: Callable[[], bool] = lambda: False) -> list[Decision]:
    found: dict[int, Decision] = {}

    def decide(number: int) -> None:
        found[number] = agents[number].decide(0, words[number], stopped)

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in sorted(found)]


def test_all_go_on_and_name_the_process_that_died_first(two: Gathering) -> None:
    first, second = decided(two, [word(0, **DIED | {"rank": 0, "at": 3.0}), word(1, **DIED)])
    assert first == second
    assert first.go and first.culprit is not None and (first.culprit.node, first.culprit.rank) == ("node-1", 1)


def test_one_that_refuses_ends_all_and_says_why(two: Gathering) -> None:
    first, second = decided(two, [word(0, **DIED), word(1, refuses="the reason is config")])
    assert not first.go and first == second
    assert first.why == "node-1: the reason is config"


def test_lost_peers_alone_are_no_death(two: Gathering) -> None:
    first, second = decided(two, [word(0), word(1)])
    assert not first.go and not second.go and "no process is known to have died" in first.why


def test_who_waits_in_vain_ends_and_who_comes_too_late_reads_the_same(two: Gathering) -> None:
    early = replace(two[0], longest_s=0.2).decide(0, word(0, **DIED), lambda: False)
    late = two[1].decide(0, word(1, **DIED), lambda: False)
    assert not early.go and early == late
    assert early.why == "1 of 2 agents met within 0.2 s"


def test_who_is_asked_to_stop_waits_for_nobody(two: Gathering) -> None:
    decision = two[1].decide(0, word(1, **DIED), lambda: True)
    assert not decision.go and decision.why == "node-1 is asked to stop"


def test_an_agent_whose_pod_has_ended_is_not_waited_for(two: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at the second one's address; as long as somebody does, silence proves nothing."""
    monkeypatch.setattr(meeting, "_KNOCK_EVERY_S", 0.01)
    two[1].watch(0, threading.Event())
    address = two[1].place.pod_ip
    with socket.create_server((address, AGENT_PORT)):
        early = replace(two[0], longest_s=0.3).decide(0, word(0, **DIED), lambda: False)
    assert early.why.startswith("1 of 2")
    two[1].watch(1, threading.Event())
    decision = two[0].decide(1, word(0, **DIED), lambda: False)
    assert not decision.go and decision.why == f"the agent of {address} is gone"


def test_a_death_is_told_to_the_others_and_only_within_its_generation(two: Gathering) -> None:
    events = [threading.Event(), threading.Event()]
    for generation, event in enumerate(events):
        two[1].watch(generation, event)
    two[0].tell_over(1)
    waiting.until(events[1].is_set, "the word")
    assert not events[0].is_set()


def test_a_store_that_is_gone_ends_the_meeting() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    far = TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=5))
    lone = Meeting(far, place(1, 2), LONG_S)
    del store
    decision = lone.decide(0, word(1, **DIED), lambda: False)
    assert not decision.go and decision.why.startswith("the agents' store is gone")

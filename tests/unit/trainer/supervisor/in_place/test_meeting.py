"""Supervisors that meet at the table of pod 0, over their real servers: all read one decision."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests import waiting
from tests.addresses import own_network
from tests.waiting import HUNG_S
from trainer.contract import AGENT_PORT
from trainer.supervisor import serving
from trainer.supervisor.in_place import meeting
from trainer.supervisor.in_place.meeting import Decision, Meeting, Word
from trainer.supervisor.place import Place

LONG_S = 3600.0
DIED = {"own": True, "rank": 1, "cause": "died of SIGKILL", "at": 2.0}
Gathering = list[Meeting]


def place(node: int, nodes: int, network: str) -> Place:
    return Place("c", 1, f"node-{node}", f"{network}.{node + 1}", node, nodes, 1, f"{network}.1:1")


@pytest.fixture
def network() -> str:
    return own_network()


@pytest.fixture
def two(network: str) -> Iterator[Gathering]:
    """The meetings of two supervisors, of which the first has the table."""
    meetings = [Meeting(place(node, 2, network), LONG_S) for node in range(2)]
    server = serving.serve(f"{network}.1", dict, lambda path: None, take=meetings[0].table.take)
    yield meetings
    server.shutdown()
    server.server_close()


def word(node: int, **said: object) -> Word:
    return Word(f"node-{node}", **{"cause": "lost a peer"} | said)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("refusing", [0, 1])
def test_one_that_refuses_ends_all_and_says_why(refusing: int, two: Gathering) -> None:
    two[refusing].refuse(0, word(refusing, refuses="the reason is config"))
    decision = two[1 - refusing].decide(0, word(1 - refusing, **DIED), lambda: False)
    assert not decision.go and decision.why == f"node-{refusing}: the reason is config"


def test_who_refuses_waits_for_no_answer(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pod 0 has ended with its node: its address takes a connection and says nothing."""
    monkeypatch.setattr(meeting, "_TELL_S", 0.01)
    monkeypatch.setattr(meeting, "_ANSWER_S", HUNG_S)
    with socket.create_server((f"{network}.1", AGENT_PORT)):
        Meeting(place(1, 2, network), LONG_S).refuse(0, word(1, refuses="the reason is storage"))
        assert "refuse-0" in [thread.name for thread in threading.enumerate()], "it still waits, and nobody for it"


def test_who_refuses_without_a_thread_to_be_had_keeps_its_own_end(
    two: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse_start)
        two[1].refuse(0, word(1, refuses="the reason is storage"))
    assert two[0]._ask(0)["here"] == 0, "it was not told"


def test_who_refuses_at_a_table_whose_pod_has_ended_refuses_all_the_same(network: str) -> None:
    Meeting(place(1, 2, network), LONG_S).refuse(0, word(1, refuses="the reason is storage"))


def test_lost_peers_alone_are_no_death(two: Gathering) -> None:
    first, second = decided(two, [word(0), word(1)])
    assert not first.go and not second.go and "no process is known to have died" in first.why


def test_who_waits_in_vain_ends_and_who_comes_too_late_reads_the_same(two: Gathering) -> None:
    two[0].longest_s = 0.2
    early = two[0].decide(0, word(0, **DIED), lambda: False)
    late = two[1].decide(0, word(1, **DIED), lambda: False)
    assert not early.go and early == late
    assert early.why == "1 of 2 agents met within 0.2 s"


def test_who_is_asked_to_stop_waits_for_nobody(two: Gathering) -> None:
    decision = two[1].decide(0, word(1, **DIED), lambda: True)
    assert not decision.go and decision.why == "node-1 is asked to stop"


def test_an_agent_whose_pod_has_ended_is_not_waited_for(
    two: Gathering, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at the second one's address; as long as somebody does, silence proves nothing."""
    monkeypatch.setattr(meeting, "_KNOCK_EVERY_S", 0.01)
    two[1].watch(0, threading.Event())
    address = f"{network}.2"
    waiting.until(lambda: address in two[0]._ask(0)["missing"], "its address")
    two[0].longest_s = 0.3
    with socket.create_server((address, AGENT_PORT)):
        early = two[0].decide(0, word(0, **DIED), lambda: False)
    assert early.why.startswith("1 of 2")
    two[0].longest_s = LONG_S
    two[1].watch(1, threading.Event())
    decision = two[0].decide(1, word(0, **DIED), lambda: False)
    assert not decision.go and decision.why == f"the agent of {address} is gone"


def test_a_death_is_told_to_the_others_and_only_within_its_generation(
    two: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_LONG_POLL_S", 2 * HUNG_S)  # they hear of it at once, or not at all
    events = [threading.Event(), threading.Event()]
    for generation, event in enumerate(events):
        two[1].watch(generation, event)
    two[0].tell_over(1)
    waiting.until(events[1].is_set, "the word")
    assert not events[0].is_set()


def test_a_death_is_heard_by_who_listened_before_the_table_was_there(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_KNOCK_EVERY_S", 0.01)
    first, second = (Meeting(place(node, 2, network), LONG_S) for node in range(2))
    questions, ask, over = list[int](), second._ask, threading.Event()

    def count(generation: int, **more: float) -> object:
        questions.append(generation)
        return ask(generation, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(second, "_ask", count)
    second.watch(0, over)
    waiting.until(lambda: len(questions) > 1, "a question in vain")
    first.tell_over(0)
    with serving.serve(f"{network}.1", dict, lambda path: None, take=first.table.take) as server:
        assert over.wait(HUNG_S)
        server.shutdown()


def test_a_restart_tells_who_died_and_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting.time, "time", lambda: 14.504)
    told = {"culprit": 1, "of_node": "node-1", "cause": "died of SIGKILL"}
    assert word(1, **DIED).event() == {**told, "seconds": 12.5}
    assert word(1, **DIED | {"at": 15.0}).event() == {**told, "seconds": 0.0}, "another node's clock is ahead"


def test_who_only_waits_for_a_death_hears_nothing_of_a_decision(
    two: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next question would follow at once, without end."""
    two[0].refuse(0, word(0, refuses="the reason is config"))
    waits: list[tuple[bool, float]] = []
    monkeypatch.setattr(two[0].table._news, "wait_for", lambda news, wait_s: waits.append((bool(news()), wait_s)))
    two[0]._ask(0, wait_s=5.0)
    assert waits == [(False, 5.0)]


def test_a_table_whose_pod_has_ended_ends_the_meeting(network: str) -> None:
    decision = Meeting(place(1, 2, network), LONG_S).decide(0, word(1, **DIED), lambda: False)
    assert not decision.go and decision.why == "the agent of pod 0 is gone"


def test_a_table_that_does_not_answer_ends_the_meeting_with_its_time(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_MARGIN_S", 0.0)
    with serving.serve(f"{network}.1", dict, lambda path: None):
        decision = Meeting(place(1, 2, network), 0.0).decide(0, word(1, **DIED), lambda: False)
    assert not decision.go and decision.why == "the agent of pod 0 does not answer"


def test_a_supervisor_that_reached_the_table_late_is_counted_with_those_that_are_there(
    two: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, refusals = two[1]._ask, iter([TimeoutError("no answer")])

    def ask_late(*given: object, **more: object) -> dict[str, object]:
        for error in refusals:
            raise error
        return ask(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(two[1], "_ask", ask_late)
    two[1].longest_s = 0.0
    decision = two[1].decide(0, word(1, **DIED), lambda: False)
    assert decision.why == "1 of 2 agents met within 0 s"


def test_no_generation_is_skipped(two: Gathering) -> None:
    far = {"generation": 2, "pod": 1, "address": "a", "over": False, "word": None, "proposes": "", "wait_s": 0}
    two[0]._ask(0)
    with pytest.raises(ValueError, match="no generation of this attempt: 2"):
        two[0].table.take(far)


FAR = {"generation": 7, "pod": 1, "address": "a", "over": False, "word": None, "proposes": "", "wait_s": 0}
NO_MESSAGES = ("{}", "[", "3", '{"generation": 0, "pod": 1, "address": "a", "over": false}', json.dumps(FAR))


@pytest.mark.parametrize("content", NO_MESSAGES)
def test_what_is_no_message_is_refused_and_the_table_stays(content: str, two: Gathering, network: str) -> None:
    connection = http.client.HTTPConnection(f"{network}.1", AGENT_PORT)
    connection.request("POST", "/meeting", content)
    assert connection.getresponse().status == 400
    connection.close()
    first, second = decided(two, [word(0, **DIED), word(1)])
    assert first.go and first == second


@pytest.mark.parametrize("length", ["-5", "many"])
def test_a_message_without_a_true_length_is_refused_and_read_no_further(
    length: str, two: Gathering, network: str
) -> None:
    with socket.create_connection((f"{network}.1", AGENT_PORT)) as connection:
        connection.sendall(f"POST /meeting HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        assert b" 400 " in connection.recv(64)


def test_a_word_of_an_own_death_is_heard_by_who_waits_though_the_first_telling_was_lost(two: Gathering) -> None:
    over = threading.Event()
    two[0].watch(0, over)
    arguments = (0, word(1, **DIED), over.is_set)
    threading.Thread(target=two[1].decide, args=arguments, daemon=True).start()
    assert over.wait(HUNG_S)

"""The generations of an attempt on one node, with the other nodes' word as a table says it: who goes on, who ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from trainer.contract import ExitCode
from trainer.supervisor.ends import DONE, INTERNAL, INTERRUPTED, End
from trainer.supervisor.in_place.generations import Generations
from trainer.supervisor.in_place.meeting import Decision, Word

KILLED = End(INTERNAL, "rank 3 died of SIGKILL", "signal", 3, 9)
CULPRIT = Word("n1", own=True, rank=3, cause="died of SIGKILL")
GO, STAY = Decision(True, culprit=CULPRIT), Decision(False, "n1: its GPU is broken")


class Job:
    """A job whose ranks end as listed, start after start."""

    def __init__(self, *ends: End, suspected: str = "", stopping: str = "") -> None:
        self._ends, self._suspected, self.stopping = list(ends), suspected, stopping
        self.events, self.starts, self.over_events = list[dict[str, Any]](), list[int](), list[threading.Event]()
        self.prepared = list[tuple[int, Word]]()

    def emit(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def start_ranks(self, generation: int, over_event: threading.Event) -> End:
        assert not over_event.is_set()
        self.starts.append(generation)
        self.over_events.append(over_event)
        return self._ends.pop(0)

    def suspicion(self) -> str:
        return self._suspected

    def prepare(self, generation: int, culprit: Word) -> None:
        self.prepared.append((generation, culprit))


class Table:
    """A meeting that decides as listed, and keeps what it was told."""

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = list(decisions)
        self.watched, self.deaths, self.words, self.refusals = list[int](), list[int](), list[Word](), list[str]()
        self.meanwhile: Callable[[], object] = lambda: None
        self.stops = list[bool]()

    def watch(self, generation: int, over_event: threading.Event) -> None:
        self.watched.append(generation)

    def tell_over(self, generation: int) -> None:
        self.deaths.append(generation)

    def refuse(self, generation: int, word: Word) -> None:
        self.words.append(word)
        self.refusals.append(word.refuses)

    def decide(self, generation: int, word: Word, stops: Callable[[], bool]) -> Decision:
        self.words.append(word)
        self.meanwhile()
        self.stops.append(stops())
        return self._decisions.pop(0)


def run(job: Job, table: Table, most: int = 3) -> End:
    return Generations(job, "n0", table, most).run()  # type: ignore[arg-type]


def test_after_a_death_all_start_again_until_the_job_is_done() -> None:
    job, table = Job(KILLED, KILLED, End(DONE)), Table(GO, GO)
    assert run(job, table) == End(DONE)
    assert job.starts == table.watched == [0, 1, 2] and table.deaths == [0, 1]
    assert job.prepared == [(1, CULPRIT), (2, CULPRIT)] and all(event.is_set() for event in job.over_events)
    assert [event["event"] for event in job.events] == ["agents_meet"] * 2
    assert job.events[1] == {
        "event": "agents_meet", "after_generation": 1, "refuses": "", "own": True, "cause": "rank 3 died of SIGKILL",
    }  # fmt: skip
    word = table.words[0]
    assert (word.node, word.refuses, word.own, word.rank, word.cause) == ("n0", "", True, 3, "rank 3 died of SIGKILL")


def test_a_job_without_restarts_in_place_meets_nobody() -> None:
    job, table = Job(KILLED), Table()
    assert run(job, table, most=0) == KILLED
    assert not (table.watched or table.words or table.deaths or job.events)


def test_a_death_after_the_most_restarts_is_refused_and_ends_the_attempt() -> None:
    job, table = Job(KILLED, KILLED), Table(GO)
    assert run(job, table, most=1) == KILLED
    reason = "1 restarts in place are the most of an attempt"
    assert table.refusals == [reason] and len(table.words) == 2
    assert table.deaths == [0], "nobody need end for a death that ends the attempt"
    assert job.events[-1] == {"event": "not_restarted_in_place", "after_generation": 1, "why": f"n0: {reason}"}


def test_a_lost_peer_comes_with_no_death_of_its_own() -> None:
    end = End(INTERNAL, "a process on another node has died", "peer-lost")
    job, table = Job(end, End(DONE)), Table(GO)
    assert run(job, table) == End(DONE)
    assert table.deaths == [] and not table.words[0].own and table.words[0].refuses == ""


def test_a_suspected_device_refuses_though_the_others_are_told_of_the_death() -> None:
    job, table = Job(KILLED, suspected="GPU 2 has errors"), Table()
    assert run(job, table) == KILLED
    assert table.refusals == ["GPU 2 has errors"] and table.deaths == [0]


def test_an_end_that_a_retry_repeats_is_refused_by_its_own_words_and_no_device_is_asked() -> None:
    end = End(ExitCode.USER, "no such module")
    job, table = Job(end, suspected="GPU 2 has errors"), Table()
    assert run(job, table) == end
    assert [refusal.startswith("the reason is") for refusal in table.refusals] == [True] and table.deaths == []


def test_a_cause_without_a_sentence_is_its_reason_and_a_long_one_is_cut() -> None:
    job, table = Job(KILLED._replace(detail=""), KILLED._replace(detail="x" * 999), End(DONE)), Table(GO, GO)
    run(job, table)
    assert [word.cause for word in table.words] == ["signal", "x" * 300]


def test_a_stop_while_the_nodes_meet_ends_as_interrupted_with_what_was_before() -> None:
    job, table = Job(KILLED), Table(STAY)
    table.meanwhile = lambda: setattr(job, "stopping", "SIGTERM")
    end = run(job, table)
    assert (end.code, end.reason, end.rank) == (INTERRUPTED, "interrupted", 3) and table.stops == [True]
    assert end.detail == "asked to stop while the agents met; before: rank 3 died of SIGKILL"


def test_a_death_of_a_job_that_is_asked_to_stop_is_its_own_end() -> None:
    job, table = Job(KILLED, stopping="SIGTERM"), Table()
    assert run(job, table) == KILLED and table.deaths == []
    assert table.refusals == ["it is asked to stop"]


@pytest.mark.parametrize("decision", [Decision(True), STAY])
def test_without_a_culprit_nobody_starts_again(decision: Decision) -> None:
    job, table = Job(KILLED), Table(decision)
    assert run(job, table) == KILLED and job.starts == [0] and job.prepared == [] and table.stops == [False]

"""A node's progress: what is said of each step, which rank is heard, and when a job that exits 0 has done its work."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trainer.supervisor import activity, running
from trainer.supervisor.place import Place
from trainer.supervisor.progress import record
from trainer.supervisor.progress.lines import LARGEST
from trainer.supervisor.progress.record import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (record, running):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Node:
    """One node's progress, with what it said and the steps that it heard."""

    def __init__(self, tier: Path, rank: int = 0, nodes: int = 1, attempt: int = 1, **config: Any) -> None:
        self.events, self.heard = list[dict[str, Any]](), list[int]()
        place = Place("tiny", attempt, f"n{rank}", "127.0.0.1", rank, nodes, 2, "127.0.0.1:29500")
        told = {"steps": 40, "config_digest": "c", "checkpoints": {"format": "marker"}, **config}
        self.doubts = Counter[int]()
        doubt_of = self.doubts.__getitem__
        self.progress = Progress(told, place, tier, self._emit, self.heard.append, doubt_of)

    def _emit(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def line(self, **figures: Any) -> None:
        self.progress.hear_line(json.dumps(figures))

    def call(self, step: int, rank: int, **figures: float) -> None:
        self.progress.hear_call({"step": step, "rank": rank, **figures})

    def steps(self) -> list[tuple[int, float | None]]:
        return [(event["step"], event["loss"]) for event in self.events if event["event"] == "step"]


def test_a_step_has_its_loss_and_the_mean_time_of_the_steps_since_the_one_before(tmp_path: Path, clock: Clock) -> None:
    node = Node(tmp_path)
    clock.now += 3.0
    node.line(step=1, loss=0.5)
    clock.now += 8.0
    node.line(step=5, loss=0.4)
    assert node.events == [
        {"event": "step", "step": 1, "loss": 0.5, "seconds": 3.0, "time": 1003.0 + 1e9},
        {"event": "step", "step": 5, "loss": 0.4, "seconds": 2.0, "time": 1011.0 + 1e9},
    ]
    assert node.heard == [1, 5] and node.progress.step == 5 and node.progress.loss == 0.4


def test_a_loss_on_a_later_line_is_the_newest_steps_and_the_first_one_counts(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.line(loss=9.0)
    node.line(step=1)
    assert node.steps() == [], "its loss may be on the next line"
    node.line(loss=0.5)
    node.line(loss=0.1)
    node.line(step=2)
    node.line(step=3, loss=float("nan"))
    node.progress.tell()
    node.progress.tell()
    assert node.steps() == [(1, 0.5), (2, None), (3, None)] and node.progress.loss == 0.5


@pytest.mark.parametrize(("tokens", "count"), [(70, 70), (-5, 0), (1e300, LARGEST)])
def test_tokens_are_a_count_that_every_reader_takes(tokens: float, count: int, tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.line(step=1, loss=0.5, tokens=tokens)
    node.line(step=2, loss=0.5)
    assert node.progress.tokens == count


def test_the_lowest_rank_that_has_told_a_step_within_a_minute_is_heard(tmp_path: Path, clock: Clock) -> None:
    node = Node(tmp_path, progress="client")
    node.line(step=7, loss=0.5)
    node.call(1, rank=1)
    node.call(2, rank=0)
    node.call(3, rank=1)
    clock.now += 59.0
    node.call(4, rank=1)
    assert node.heard == [1, 2], "a line is none, where the client tells"
    clock.now += 1.0
    node.call(5, rank=1)
    assert node.heard == [1, 2, 5]


def test_a_line_that_names_its_rank_is_that_ranks(tmp_path: Path) -> None:
    node = Node(tmp_path, pattern=r"rank (?P<rank>\d+) step (?P<step>\d+)")
    for line in ("rank 0 step 1", "rank 1 step 2", "rank 0 step 3"):
        node.progress.hear_line(line)
    assert node.heard == [1, 3]


def test_a_number_far_beyond_the_estimate_is_believed_of_the_client_alone(tmp_path: Path) -> None:
    printed, called = Node(tmp_path), Node(tmp_path, progress="client")
    printed.line(step=500_000)
    called.call(500_000, rank=0)
    assert (printed.heard, called.heard) == ([], [500_000])


def test_a_rank_that_the_job_does_not_have_silences_nobody(tmp_path: Path) -> None:
    node = Node(tmp_path, progress="client")
    for step, rank in ((1, 2), (2, 3), (3, 1), (4, 2)):
        node.call(step, rank)
    assert node.heard == [1, 2, 3]


def test_calls_of_a_job_that_tells_by_lines_are_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.call(1, rank=0)
    assert node.heard == []


def test_so_many_steps_are_said_at_once_and_the_newest_is_known_all_the_same(tmp_path: Path) -> None:
    node = Node(tmp_path, steps=9000)
    for step in range(1, 2101):
        node.line(step=step, loss=0.5)
    assert len(node.steps()) == 2000 and node.progress.step == 2100


def test_a_restart_in_place_begins_at_the_step_that_it_resumes_from(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.progress.begin(0, 10)
    assert node.progress.step == 0, "the first one has told no step yet"
    node.progress.begin(1, 10)
    assert node.progress.step == 10
    node.progress.begin(2, -1)
    assert node.progress.step == 0


@pytest.mark.parametrize(
    ("steps", "sealed", "ends", "verdict"),
    [
        ([], -1, "about", (False, 40)),
        ([], 20, "about", (True, 20)),
        ([10], -1, "about", (True, 30)),
        ([40], -1, "about", (True, 0)),
        ([39], -1, "about", (True, 0)),
        ([38], -1, "about", (True, 2)),
        ([41], -1, "about", (True, 0)),
        ([42], -1, "about", (True, -2)),
        ([38], -1, "exact", (False, 2)),
        ([39], -1, "exact", (True, 0)),
        ([30], 40, "exact", (True, 0)),
        ([50], -1, "exact", (True, -10)),
    ],
)
def test_a_job_that_exits_0_has_worked_if_it_told_or_sealed_a_step_and_is_then_done(
    steps: list[int], sealed: int, ends: str, verdict: tuple[bool, int], tmp_path: Path
) -> None:
    node = Node(tmp_path, ends=ends)
    node.progress.begin(0, -1)
    for last in steps:
        for step in range(1, last + 1):
            node.line(step=step, loss=0.5)
    assert node.progress.finish(sealed) == verdict


def test_a_resumed_job_that_tells_nothing_and_seals_nothing_newer_has_not_worked(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.progress.begin(0, 20)
    assert node.progress.finish(20) == (False, 20) and node.progress.has_made(20) == (False, False)
    assert node.progress.finish(30) == (True, 10) and node.progress.has_made(30) == (False, True)
    node.line(step=21, loss=0.5)
    node.line(step=22, loss=0.5)
    assert node.progress.has_made(20) == (True, False)


def test_a_resumed_job_that_is_offered_its_last_step_may_tell_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.progress.begin(0, 40)
    assert node.progress.finish(40) == (True, 0)


def test_a_job_that_begins_again_at_1_where_30_was_offered_is_told_at_its_second_step(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.progress.begin(0, 30)
    for step in (1, 2, 3):
        node.line(step=step, loss=0.5)
    events = [event for event in node.events if event["event"] != "step"]
    assert events == [{"event": "resumed_elsewhere", "offered": 30, "first": 1}]


@pytest.mark.parametrize(("doubt", "first_step", "is_elsewhere"), [(0, 27, True), (4, 27, False), (4, 24, True)])
def test_a_step_that_quick_lines_told_may_be_a_few_too_large_at_the_next_attempt(
    doubt: int, first_step: int, is_elsewhere: bool, tmp_path: Path
) -> None:
    """The file holds step 26, and lines up to step 30 were read just after it was written."""
    first, second = Node(tmp_path), Node(tmp_path, attempt=2)
    for step in range(1, 31):
        first.line(step=step, loss=0.5)
    first.doubts[30] = doubt
    first.progress.keep(30, is_last=True)
    second.progress.begin(0, 30)
    for step in (first_step, first_step + 1):
        second.line(step=step, loss=0.5)
    assert any(event["event"] == "resumed_elsewhere" for event in second.events) == is_elsewhere


def test_losses_are_known_to_the_next_attempt_and_a_jump_is_told(tmp_path: Path) -> None:
    first, second = Node(tmp_path), Node(tmp_path, attempt=2)
    for step in range(1, 21):
        first.line(step=step, loss=1.0 - step / 1000)
    first.progress.keep(10, is_last=True)
    second.progress.begin(0, 10)
    second.line(step=11, loss=1.0 - 11 / 1000)
    second.line(step=12, loss=3.0)
    assert [event["event"] for event in second.events if event["event"] != "step"] == ["loss_jumped"]


@pytest.fixture
def silent_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "steps_of", lambda rendezvous: (0, -1))


def test_what_another_node_alone_tells_is_said_by_node_0(tmp_path: Path, silent_first_node: None) -> None:
    pair = [Node(tmp_path, rank, nodes=2, progress="client") for rank in (0, 1)]
    for step in (1, 2):
        pair[1].call(step, 2, loss=0.5, tokens=step * 7)
    pair[1].progress.checkpoint({"step": 2, "folder": "step-2"})
    assert list(pair[1].progress.last_messages(well=True)) == []
    assert pair[1].events == [], "one log has the steps"
    last_messages = list(pair[0].progress.last_messages(well=True))
    assert [(message["step"], message["folder"]) for message in last_messages] == [(2, "step-2")]
    assert pair[0].steps() == [(1, 0.5), (2, 0.5)] and pair[0].progress.tokens == 14


def test_where_node_0_tells_the_steps_those_of_another_node_are_none(tmp_path: Path, silent_first_node: None) -> None:
    pair = [Node(tmp_path, rank, nodes=2, progress="client") for rank in (0, 1)]
    pair[0].call(1, 0)
    pair[1].call(9, 2)
    assert list(pair[1].progress.last_messages(well=True)) == []
    assert list(pair[0].progress.last_messages(well=True)) == [] and pair[0].heard == [1]


@pytest.mark.parametrize(
    ("well", "form", "told_step", "seconds"),
    [
        (True, "marker", False, 10.0),
        (True, "marker", True, 0.0),
        (False, "marker", False, 0.0),
        (True, "client", True, 2.5),
        (False, "client", True, 0.0),
    ],
)
def test_node_0_waits_for_last_words_so_long_as_it_lacks_some(
    well: bool, form: str, told_step: bool, seconds: float, tmp_path: Path, clock: Clock
) -> None:
    node = Node(tmp_path, nodes=2, checkpoints={"format": form})
    for step in (1, 2) if told_step else ():
        node.line(step=step, loss=0.5)
    start = clock.now
    assert list(node.progress.last_messages(well)) == []
    assert clock.now - start == pytest.approx(seconds, abs=0.21)


def test_a_job_of_one_node_waits_for_nobody(tmp_path: Path, clock: Clock) -> None:
    node = Node(tmp_path)
    node.line(step=1)
    assert list(node.progress.last_messages(well=True)) == [] and clock.now == 1000.0
    assert node.steps() == [(1, None)], "what waited for its loss is said"


def test_another_node_knows_the_step_that_node_0_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, rank=1, nodes=2)
    for answer in ((12, 10), (0, -1), (12, 10)):
        monkeypatch.setattr(activity, "steps_of", lambda rendezvous, answer=answer: answer)
        node.progress.ask_first_node()
    assert node.heard == [12] and node.progress.step == 12
    assert node.progress.has_made(-1) == (True, True)


def test_what_earlier_attempts_told_each_other_is_removed_by_node_0_alone(tmp_path: Path) -> None:
    old = tmp_path / record.TOLD / "attempt-0001-generation-0"
    old.mkdir(parents=True)
    Node(tmp_path, rank=1, nodes=2)
    assert old.exists()
    Node(tmp_path, nodes=2)
    assert not old.exists()

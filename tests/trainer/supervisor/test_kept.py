"""What is kept of a job's progress between nodes and attempts: messages, boxes, losses, resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.supervisor.progress.lines import Line
from trainer.supervisor.progress.messages import Inbox, Messages, Outbox, folder_of
from trainer.supervisor.progress.resume import Memory
from trainer.supervisor.progress.steps import Laps, Steps


def test_messages_are_read_once_and_in_the_order_of_ranks(tmp_path: Path) -> None:
    messages = Messages(tmp_path)
    (tmp_path / "told-10.jsonl").write_text('{"step": 3, "loss": 0.5}\n{"step": 4')
    (tmp_path / "told-2.jsonl").write_text('{"step": 1, "folder": "/x"}\n{"step": 2, "tokens": 7, "other": 1}\n')
    (tmp_path / "told-1x.jsonl").write_text('{"step": 1}\n')
    assert list(messages.news()) == [{"step": 1, "folder": "/x", "rank": 2}, {"step": 2, "tokens": 7.0, "rank": 2},
                                     {"step": 3, "loss": 0.5, "rank": 10}]  # fmt: skip
    with (tmp_path / "told-10.jsonl").open("a") as file:
        file.write(', "ended": true}\n')
    assert list(messages.news()) == [{"step": 4, "ended": True, "rank": 10}] and not list(messages.news())


def test_a_message_without_an_end_is_left_behind(tmp_path: Path) -> None:
    messages = Messages(tmp_path)
    (tmp_path / "told-0.jsonl").write_bytes(b"x" * (1 << 20) + b'\n{"step": 1}\n')
    assert [one for _ in range(3) for one in messages.news()] == [{"step": 1, "rank": 0}]


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    messages, file = Messages(tmp_path), tmp_path / "told-0.jsonl"
    file.write_text('{"step": 4')
    assert not list(messages.news())
    with file.open("a") as more:
        more.write("}\n")
    assert list(messages.news()) == [{"step": 4, "rank": 0}]


def test_only_what_the_client_writes_is_a_message(tmp_path: Path) -> None:
    largest = (1 << 53) - 1
    good: list[dict[str, Any]] = [{"step": 0}, {"step": largest}, {"step": 1, "folder": "/x", "version": [1, 2, 3]},
            {"step": 2, "ended": True}, {"step": 3, "loss": -1e299, "tokens": 5.0}]  # fmt: skip
    bad: list[Any] = [[1], 7, "x", None, {}, {"loss": 1.0}, {"step": -1}, {"step": largest + 1}, {"step": True},
                      {"step": 1.0}, {"step": 1, "folder": 5}]  # fmt: skip
    cut: dict[str, Any] = {"version": [1, 2], "folder": "/y", "step": 5}
    figures = {"step": 6, "loss": True, "tokens": 1e300, "ended": 1}
    lines = [*map(json.dumps, [*bad, *good, cut, {**cut, "version": [1, 2, 3, 4]}, {**cut, "version": "abc"}, figures])]
    (tmp_path / "told-0.jsonl").write_text("\n".join(["{", "[" * 100_000, *lines]) + "\n")
    left = [{"step": 5, "folder": "/y"}] * 3 + [{"step": 6}]
    assert list(Messages(tmp_path).news()) == [{**one, "rank": 0} for one in [*good, *left]]


def test_a_job_asks_whether_it_should_stop_and_is_told(tmp_path: Path) -> None:
    messages = Messages(tmp_path)
    assert not messages.job_asks()
    (tmp_path / "asks").touch(), messages.stop()
    assert messages.job_asks() and (tmp_path / "stop").exists()


def told(box: Inbox) -> list[dict[str, Any]]:
    box.exchange()
    return list(box.news())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path, 3, 0)


def test_steps_that_node_0_does_not_know_are_brought_to_it(folder: Path) -> None:
    outbox, inbox = Outbox(folder, 8), Inbox(folder)
    for step in (1, 2):
        outbox.step(step, {"loss": 1 / step})
    outbox.note_first_node(0)
    outbox.exchange()
    assert told(inbox) == [], "they may be on their way by node 0's own ranks"
    outbox.note_first_node(0)
    outbox.step(3, {})
    outbox.exchange()
    assert told(inbox) == [
        {"step": 1, "loss": 1.0, "rank": 8},
        {"step": 2, "loss": 0.5, "rank": 8},
        {"step": 3, "rank": 8},
    ]
    assert inbox.telling == {8}
    outbox.step(4, {})
    outbox.exchange(is_last=True)
    assert [one["step"] for one in told(inbox)] == [4] and inbox.telling == set()


def test_steps_that_node_0_knows_are_not_written_down(folder: Path) -> None:
    outbox = Outbox(folder, 8)
    for step in range(1, 20):
        outbox.step(step, {})
        outbox.note_first_node(step)
        outbox.exchange()
    outbox.note_first_node(0, is_last=True)
    outbox.exchange(is_last=True)
    assert not folder.exists(), "also where node 0 has ended before"


def test_the_last_steps_are_written_down_where_node_0_is_behind(folder: Path) -> None:
    outbox = Outbox(folder, 8)
    outbox.step(5, {})
    outbox.note_first_node(4, is_last=True)
    outbox.exchange(is_last=True)
    assert [one["step"] for one in told(Inbox(folder))] == [5]


def test_a_finished_checkpoint_is_told_again_after_a_full_tier(folder: Path) -> None:
    outbox = Outbox(folder, 8)
    folder.parent.parent.joinpath("told").write_text("in the way")
    outbox.checkpoint({"step": 10, "folder": "/x/a", "version": [1, 2, 3]})
    outbox.checkpoint({"step": 20, "folder": "/x/b", "rank": 1})
    outbox.exchange()
    folder.parent.unlink()
    outbox.exchange()
    assert [(one["step"], one["folder"]) for one in told(Inbox(folder))] == [(10, "/x/a"), (20, "/x/b")]


def test_the_last_steps_are_written_down_where_node_0_never_answered(folder: Path) -> None:
    outbox = Outbox(folder, 8)
    outbox.note_first_node(0)
    outbox.exchange()
    outbox.step(5, {})
    outbox.note_first_node(0, is_last=True)
    outbox.exchange(is_last=True)
    assert [one["step"] for one in told(Inbox(folder))] == [5]


def test_a_node_keeps_its_last_thousand_steps(folder: Path) -> None:
    outbox = Outbox(folder, 8)
    for step in range(3000):
        outbox.step(step, {})
    outbox.note_first_node(0, is_last=True)
    outbox.exchange(is_last=True)
    assert [one["step"] for one in told(Inbox(folder))] == list(range(2000, 3000))


def counted(*numbers: int) -> Steps:
    steps = Steps(100)
    for number in numbers:
        steps.count(Line(number, {}), certain=True)
    return steps


def losses(memory: Memory, first: int, last: int, more: float = 0.0) -> list[dict[str, Any]]:
    found = [memory.hear_loss(step, 2.0 + 0.1 * (step % 3) + more) for step in range(first, last + 1)]
    return [event for event in found if event]


def kept(tier: Path, config: str = "a") -> Memory:
    """Of an attempt that has told the losses of 30 steps, and sealed step 20."""
    memory = Memory(tier, config)
    assert memory.begin(-1) is None
    memory.hear_step(1, counted(1))
    assert not losses(memory, 1, 30)
    memory.note_sealed(20, Laps(20, 0, 0), 0)
    memory.write(is_last=True)
    return memory


@pytest.mark.parametrize(("more", "jumps"), [(0.0, False), (0.9, False), (1.2, True), (-1.2, True)])
def test_a_loss_is_held_against_the_one_of_its_step(more: float, jumps: bool, tmp_path: Path) -> None:
    kept(tmp_path)
    memory = Memory(tmp_path, "a")
    memory.begin(20)
    found = losses(memory, 21, 30, more)
    assert len(found) == jumps, "ten times the median difference of 0.1, and once"
    if jumps:
        assert found[0] == {"event": "loss_jumped", "step": 21, "before": 2.0, "now": 2.0 + more}
    assert not losses(memory, 31, 40, 9.0), "they are new"


def test_losses_of_another_configuration_are_not_compared(tmp_path: Path) -> None:
    kept(tmp_path)
    memory = Memory(tmp_path, "b")
    memory.begin(20)
    assert not losses(memory, 21, 30, 9.0)


def test_a_restart_in_place_is_held_against_what_it_told_before(tmp_path: Path) -> None:
    memory = kept(tmp_path)
    memory.begin(20)
    assert len(losses(memory, 21, 30, 9.0)) == 1


@pytest.mark.parametrize(
    ("offered", "numbers", "told"),
    [
        (20, (21, 22), {}),
        (20, (19, 20), {}),
        (20, (1, 2), {"event": "resumed_elsewhere", "offered": 20, "first": 1}),
        (20, (0, 21), {}),
        (20, (15, 16), {"event": "resumed_elsewhere", "offered": 20, "first": 15}),
        (20, (18, 20), {"event": "resumed_elsewhere", "offered": 20, "first": 18}),
        (20, (18, 21), {}),
        (-1, (1, 2), {}),
        (1, (0, 1), {}),
    ],
)
def test_the_first_steps_are_held_against_what_was_offered(
    offered: int, numbers: tuple[int, int], told: dict[str, Any], tmp_path: Path
) -> None:
    kept(tmp_path)
    memory = Memory(tmp_path, "a")
    memory.begin(offered)
    first, second = numbers
    assert memory.hear_step(first, counted(first)) == {}
    assert memory.hear_step(second, counted(first, second)) == told
    assert memory.hear_step(second + 1, counted(first, second, second + 1)) == {}


def test_a_line_every_ten_steps_may_begin_one_line_before(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "a")
    memory.begin(35)
    memory.hear_step(30, counted(30))
    assert memory.hear_step(40, counted(30, 40)) == {}


def test_batches_within_an_epoch_begin_again_by_themselves(tmp_path: Path) -> None:
    memory = kept(tmp_path)
    memory.note_sealed(5, Laps(50, 40, 10), 0)
    memory.write(is_last=True)
    memory = Memory(tmp_path, "a")
    assert memory.begin(5) == Laps(50, 40, 10)
    assert [memory.hear_step(step, counted(1, 2)) for step in (1, 2)] == [{}, {}]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"config": "a", "losses": [[1]], "interval": 1, "sealed": {}}'])
def test_what_cannot_be_read_is_held_against_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text(content)
    memory = Memory(tmp_path, "a")
    assert memory.begin(20) is None and not losses(memory, 1, 30, 9.0)


def test_what_is_kept_stays_small(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "a")
    memory.begin(-1)
    memory.hear_step(1, counted(1))
    losses(memory, 1, 5000)
    for step in range(50):
        memory.note_sealed(step, Laps(step), 1)
    memory.write(is_last=True)
    content = json.loads((tmp_path / "progress.json").read_text())
    assert content["format"] == 1
    assert [step for step, _ in content["losses"]] == list(range(4001, 5001)) and len(content["sealed"]) == 16
    assert content["doubts"].keys() == content["sealed"].keys()


@pytest.mark.parametrize(
    ("known", "now", "jumps"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 19.0, False),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 19.1, True),
        ([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 1000.0, False),
        ([1.0] * 9, 1.01, False),
        ([1.0] * 9, 1.02, True),
        ([100.0] + [1.0] * 9, 1.02, True),
        ([1.0] * 8 + [2.0], 1.9, True),
        ([9.0, 1.0] * 100 + [float(n) for n in range(192, -9, -1)] + [1.0], 11.0, False),
    ],
)
def test_how_far_a_loss_may_be_from_the_one_of_its_step(
    known: list[float], now: float, jumps: bool, tmp_path: Path
) -> None:
    """The last one known, again: within ten medians of the neighbours' differences, 1 % of itself, by eight or more."""
    memory = Memory(tmp_path, "a")
    memory.begin(-1)
    memory.hear_step(1, counted(1))
    for step, loss in enumerate(known, 1):
        memory.hear_loss(step, loss)
    memory.write(is_last=True)
    memory = Memory(tmp_path, "a")
    memory.begin(len(known) - 1)
    told = memory.hear_loss(len(known), now)
    assert told.get("event") == ("loss_jumped" if jumps else None) and memory.hear_loss(len(known) + 1, now) == {}


def test_it_is_written_now_and_then_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("trainer.supervisor.progress.resume.time.monotonic", lambda: now[0])
    memory = Memory(tmp_path, "a")
    memory.begin(-1)
    file = tmp_path / "progress.json"
    memory.write(is_last=True)
    assert not file.exists(), "there is nothing to keep"
    for later, step, last, written in [
        (0, 1, False, True),
        (9.9, 2, False, False),
        (0.2, 3, False, True),
        (1, 4, True, True),
    ]:
        now[0] += later
        memory.hear_step(step, counted(*range(step + 1)))
        memory.hear_loss(step, float(step))
        memory.write(last)
        assert (json.loads(file.read_text())["losses"][-1] == [step, float(step)]) is written
    file.unlink()
    memory.write(is_last=True)
    assert not file.exists(), "nothing has changed"


def test_the_steps_between_two_lines_are_known_to_the_next_attempt(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "a")
    memory.begin(-1)
    memory.hear_step(30, counted(10, 20, 30))
    memory.write(is_last=True)
    for first, second, told in ((21, 30, False), (20, 30, True), (20, 31, False), (30, 40, False)):
        memory = Memory(tmp_path, "a")
        memory.begin(30)
        memory.hear_step(first, counted(first))
        assert bool(memory.hear_step(second, counted(first, second))) is told


def test_a_job_that_logs_every_5_steps_and_was_offered_10_begins_at_10_or_15(tmp_path: Path) -> None:
    for numbers, told in (((5, 10), True), ((10, 15), False), ((15, 20), False)):
        memory = Memory(tmp_path, "a")
        memory.begin(10)
        said = [memory.hear_step(step, counted(*numbers[: at + 1])) for at, step in enumerate(numbers)]
        assert bool(said[1]) is told and not said[0]

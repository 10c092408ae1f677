"""Nodes with disks of their own, once the job has ended: who waits for whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.supervisor_tier import TwoNodes
from trainer.supervisor import activity, seal
from trainer.supervisor.sealing import local

STEP_S = 5.0


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after_sleep: Callable[[], Any] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += STEP_S
        self.after_sleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(local, "time", clock)
    monkeypatch.setattr(activity, "serves", lambda host: True)
    return clock


@pytest.fixture
def pair(tmp_path: Path, clock: Clock) -> TwoNodes:
    """Two nodes of a job that has written a checkpoint, of which nobody has sealed anything."""
    pair = TwoNodes(tmp_path)
    assert pair.resume() == ["", ""]
    pair.put(0, "step-10/__0_0.distcp", b"zero"), pair.put(1, "step-10/__1_0.distcp", b"one")
    pair.put(0, "step-10/.metadata")
    return pair


@pytest.mark.parametrize(("code", "seconds"), [(0, 600.0), (1, 60.0)])
def test_node_0_waits_for_a_node_that_serves_and_gives_nothing_so_long(
    code: int, seconds: float, pair: TwoNodes, clock: Clock
) -> None:
    pair.nodes[0].finish(code)
    assert clock.now == seconds and seal.committed(pair.tier) == []


def test_a_job_that_was_asked_to_stop_has_as_long_as_one_that_ended_well(pair: TwoNodes, clock: Clock) -> None:
    pair.jobs[0].stopping = "SIGTERM"
    pair.nodes[0].finish(143)
    assert clock.now == 600.0


def test_node_0_waits_no_longer_than_until_all_have_given_their_files(pair: TwoNodes, clock: Clock) -> None:
    clock.after_sleep = pair.nodes[1].look
    pair.nodes[0].finish(0)
    assert clock.now == STEP_S and seal.committed(pair.tier) == [10] and not pair.nodes[0].busy
    assert pair.nodes[1].parts.is_over()


def test_node_0_does_not_wait_for_a_node_that_is_gone(
    pair: TwoNodes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "serves", lambda host: False)
    pair.nodes[0].finish(0)
    assert clock.now == 0.0 and pair.nodes[0].parts.is_over()


@pytest.mark.parametrize(("code", "seconds"), [(0, 600.0), (1, 0.0)])
def test_another_node_waits_for_node_0s_word_only_where_its_job_ended_well(
    code: int, seconds: float, pair: TwoNodes, clock: Clock
) -> None:
    pair.nodes[1].finish(code)
    assert clock.now == seconds


def test_another_node_gives_what_node_0_asks_for_at_the_end_and_then_goes(pair: TwoNodes, clock: Clock) -> None:
    def end_on_node_0() -> None:
        pair.nodes[0].look()
        if seal.committed(pair.tier):
            pair.nodes[0].parts.end()

    clock.after_sleep = end_on_node_0
    pair.nodes[1].finish(0)
    assert clock.now == 2 * STEP_S and pair.nodes[1].committed == 10


def test_what_a_node_has_given_it_copies_only_once_while_others_are_waited_for(
    pair: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, copy = [], seal.copy_checkpoint

    def noted(*arguments: Any) -> Any:
        copied.append(arguments[2])
        return copy(*arguments)

    monkeypatch.setattr(seal, "copy_checkpoint", noted)
    pair.look(0, 0, 0, 1, 1, 0, 0, 1, 1)
    assert seal.committed(pair.nodes[1].disk) == [10] and copied == [0, 1]

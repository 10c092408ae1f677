"""A process dies and its node is well: the pods stay, all ranks start again, and training ends as if undisturbed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.trainer.agents import Attempt, Hold, World, wait_until
from tests.trainer.test_ends import LONG, children
from trainer.builtin.checkpoint.fence import losses
from trainer.contract import DataConfig, Manifest
from trainer.contract.ledger import Consumed


def kill_rank(attempt: Attempt, node: int, number: signal.Signals = signal.SIGKILL) -> int:
    """Kill the one rank of a node; return its process."""
    (rank,) = children(attempt.agents[node].pid)
    os.kill(rank, number)
    return rank


def manifest_of(world: World, step: int) -> Manifest:
    return Manifest.model_validate_json((world.shared / f"tiny/step-{step:08d}/manifest.json").read_bytes())


def samples(attempt: Attempt, node: int) -> list[tuple[int, str]]:
    return [(event["step"], event["samples"]) for event in attempt.events("step", node)]


@pytest.fixture
def restarting(world: World) -> World:
    world.config = world.config.model_copy(update={"restarts_in_place": 1, "meet_s": 60.0})
    return world


def test_a_killed_rank_restarts_all_in_their_pods_and_loss_and_ledger_equal_the_twins(
    twin: Attempt, restarting: World
) -> None:
    with Attempt(restarting, 1, hold=Hold(node=1, step=34, committed=30)) as attempt:
        attempt.wait_for_step(34)
        attempt.wait_for_shared(30)
        kill_rank(attempt, 1)
        assert attempt.wait() == [0, 0], attempt.log(0).read_text()

    assert attempt.losses() == twin.losses(), "of a repeated step the later loss counts"
    assert dict(samples(attempt, 0)) == dict(samples(twin, 0))
    again = [step for step, _ in samples(attempt, 0)]
    assert len(again) > len(set(again)) == 60, "steps were repeated"
    each: dict[int, set[Any]] = {}
    for event in attempt.events("step"):
        each.setdefault(event["step"], set()).add((event["loss"], event["samples"]))
    assert all(len(values) == 1 for values in each.values()), "a repeated step differs from its first run"
    ours, theirs = manifest_of(restarting, 60), manifest_of(twin.world, 60)
    assert [shard.sha256 for shard in ours.shards] == [shard.sha256 for shard in theirs.shards]
    assert (ours.attempt, ours.generation, theirs.generation) == (1, 1, 0)
    assert chain(ours.consumed) == chain(theirs.consumed)
    assert [(row.attempt, row.generation) for row in ours.consumed] == [(1, 0), (1, 1)]
    (told,) = attempt.events("restarted_in_place")
    assert (told["culprit"], told["of_node"], told["generation"]) == (1, "node-1", 1)
    assert "SIGKILL" in told["cause"] and told["seconds"] > 0
    assert losses(restarting.shared / "tiny")[0] == 1, "the interval's measure of failures counts it"


def chain(rows: tuple[Consumed, ...]) -> tuple[int, int, str]:
    return rows[0].first_position, rows[-1].end_position, rows[-1].chain


def test_a_death_beyond_the_bound_ends_the_attempt_as_without_restarts(restarting: World) -> None:
    restarting.config = restarting.config.model_copy(update={"steps": LONG})
    with Attempt(restarting, 1) as attempt:
        attempt.wait_for_step(2)
        first = kill_rank(attempt, 0)
        wait_until(lambda: bool(attempt.events("restarted_in_place")) or attempt._ended(), "the restart")
        assert attempt.events("restarted_in_place"), attempt.log(0).read_text()
        second = kill_rank(attempt, 1)
        assert attempt.wait() == [70, 70]
    assert first != second
    said = attempt.termination(1)
    assert (said["reason"], said["signal"], said["rank"]) == ("signal", signal.SIGKILL, 1)
    assert attempt.termination(0)["reason"] == "peer-lost"
    assert len(attempt.events("restarted_in_place")) == 1


@pytest.mark.nightly
def test_an_error_that_a_retry_would_repeat_ends_all_at_once(restarting: World) -> None:
    restarting.config = restarting.config.model_copy(update={"data": DataConfig(manifest_digest="0" * 64)})
    with Attempt(restarting, 1) as attempt:
        assert attempt.wait() == [65, 65]
    assert not attempt.events("started_fresh")
    assert [attempt.events("not_restarted_in_place", node) != [] for node in range(2)] == [True, True]


@pytest.mark.nightly
def test_with_an_agent_gone_the_others_do_not_wait_until_the_meetings_end(restarting: World) -> None:
    patience_s = 3600.0
    restarting.config = restarting.config.model_copy(update={"steps": LONG, "meet_s": patience_s})
    with Attempt(restarting, 1) as attempt:
        attempt.wait_for_step(2)
        attempt.kill(1)
        assert attempt.wait() == [70, -signal.SIGKILL]
    assert attempt.termination(0)["reason"] == "peer-lost"
    (event,) = attempt.events("not_restarted_in_place")
    assert "is gone" in event["why"]


def meet_without_node_1(attempt: Attempt) -> None:
    """Kill the rank of node 0 while the other agent stands still, so that it never comes to the meeting."""
    attempt.wait_for_step(2)
    attempt.agents[1].send_signal(signal.SIGSTOP)
    kill_rank(attempt, 0)


def test_a_stop_while_the_agents_meet_ends_them_as_interrupted(restarting: World) -> None:
    restarting.config = restarting.config.model_copy(update={"steps": LONG, "meet_s": 3600.0})
    with Attempt(restarting, 1) as attempt:
        meet_without_node_1(attempt)
        wait_until(lambda: bool(attempt.events("agents_meet")), "the meeting")
        attempt.terminate(0)
        wait_until(lambda: attempt.agents[0].poll() is not None, "the end of node 0")
        assert attempt.agents[0].returncode == 75, attempt.log(0).read_text()
    said = attempt.termination(0)
    assert said["reason"] == "interrupted" and "while the agents met" in said["detail"]


@pytest.mark.nightly
def test_agents_that_do_not_meet_in_time_end(restarting: World) -> None:
    restarting.config = restarting.config.model_copy(update={"steps": LONG, "meet_s": 1.0})
    with Attempt(restarting, 1) as attempt:
        meet_without_node_1(attempt)
        wait_until(lambda: attempt.agents[0].poll() is not None, "the end of node 0")
        assert attempt.agents[0].returncode == 70, attempt.log(0).read_text()
    (event,) = attempt.events("not_restarted_in_place")
    assert event["why"] == "1 of 2 agents met within 1 s"
    assert attempt.termination(0)["reason"] == "signal"

"""How an attempt ends: each end has its exit code and says why."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path

import pytest

from tests.trainer.agents import Attempt, World, run, wait_until
from trainer.builtin.checkpoint.fence import losses, newest_attempt, raise_fence
from trainer.contract import AGENT_PORT, DataConfig, ModelConfig, OptimizerConfig, Status, TrainConfig

LONG = 100_000


def get(attempt: Attempt, node: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{attempt.address(node)}:{AGENT_PORT}{path}", timeout=10) as answer:
        return answer.read()


def committed(tier: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in tier.glob("tiny/step-*/manifest.json"))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_sigterm_of_one_node_commits_the_last_step_everywhere_and_all_exit_75(world: World) -> None:
    world.config = world.config.model_copy(update={"steps": LONG})
    with Attempt(world, 1) as attempt:
        attempt.wait_for_step(5)
        status = Status.model_validate_json(get(attempt, 1, "/status"))
        metrics = get(attempt, 0, "/metrics").decode()
        attempt.terminate(1)
        codes = attempt.wait()

    assert codes == [75, 75], attempt.log(0).read_text()
    assert (status.node, status.steps, [rank.rank for rank in status.ranks]) == ("node-1", LONG, [1])
    assert status.step >= 1 and status.ranks[0].alive and status.ranks[0].heartbeat_age_s < 30
    assert 'bivouac_heartbeat_age_seconds{attempt="1"' in metrics and "bivouac_step{" in metrics
    assert status.figures is not None and 0 < (status.figures.rate or 0) < 1 and (status.figures.norm or 0) > 0
    assert all(f"bivouac_{name}{{" in metrics for name in ("gradient_norm", "learning_rate", "step_compute_seconds"))
    assert 'layers="embedding"' in metrics and "bivouac_mfu" not in metrics, "a CPU has no known peak"
    last = attempt.step()
    for node in range(2):
        assert attempt.termination(node)["committed_step"] == last
        assert attempt.termination(node)["reason"] == "interrupted"
        assert committed(world.local(node))[-1] == last
    assert committed(world.shared)[-1] == last
    raise_fence(world.shared / "tiny", 2)
    assert losses(world.shared / "tiny")[0] == 0, "the interval's measure of failures knows that nothing was lost"


def test_a_killed_rank_is_named_with_its_signal(world: World) -> None:
    world.config = world.config.model_copy(update={"steps": LONG})
    with Attempt(world, 1, nodes=1) as attempt:
        attempt.wait_for_step(2)
        import os

        (rank,) = children(attempt.agents[0].pid)
        os.kill(rank, signal.SIGKILL)
        assert attempt.wait() == [70]
    said = attempt.termination(0)
    assert (said["reason"], said["signal"], said["rank"]) == ("signal", signal.SIGKILL, 0)


@pytest.mark.nightly
def test_an_attempt_that_a_newer_one_has_fenced_off_publishes_nothing_more(world: World) -> None:
    world.config = world.config.model_copy(update={"steps": LONG})
    with Attempt(world, 3, nodes=1) as stale:
        wait_until(lambda: bool(committed(world.shared)), "a first commit")
        raise_fence(world.shared / "tiny", 4)
        known = {tier: committed(tier) for tier in (world.shared, world.local(0))}
        assert stale.wait() == [70]
    assert stale.termination(0)["reason"] == "fenced"
    assert newest_attempt(world.shared / "tiny") == 4
    assert set(committed(world.shared)) <= set(known[world.shared]) | set(known[world.local(0)])
    assert stale.step() >= max(committed(world.shared))


@pytest.mark.nightly
def test_an_attempt_older_than_the_fence_does_not_start(world: World) -> None:
    raise_fence(world.shared / "tiny", 4)
    late = run(world, 3, nodes=1)
    assert late.agents[0].returncode == 70
    assert late.termination(0)["reason"] == "fenced"
    assert not late.losses()


def test_a_loss_that_is_no_number_ends_with_76_and_without_a_commit(world: World, config: TrainConfig) -> None:
    hot = OptimizerConfig(learning_rate=1e30, minimum_learning_rate=1e30, warmup_steps=0)
    world.config = config.model_copy(update={"optimizer": hot})
    attempt = run(world, 1, nodes=1)
    assert attempt.agents[0].returncode == 76, attempt.log(0).read_text()
    assert attempt.termination(0)["reason"] == "numeric"
    assert committed(world.shared) == []


@pytest.mark.nightly
def test_data_that_the_configuration_does_not_name_ends_with_65(world: World, config: TrainConfig) -> None:
    world.config = config.model_copy(update={"data": DataConfig(manifest_digest="0" * 64)})
    attempt = run(world, 1, nodes=1)
    assert attempt.agents[0].returncode == 65
    assert "0" * 64 in attempt.termination(0)["detail"]


def test_a_configuration_that_cannot_run_ends_with_64_and_names_the_field(world: World, config: TrainConfig) -> None:
    world.config = config.model_copy(update={"model": ModelConfig(width=100, heads=6)})
    attempt = run(world, 1, nodes=1)
    assert attempt.agents[0].returncode == 64
    assert "model.width 100" in attempt.termination(0)["detail"]

"""The oracle of recovery is equality with an undisturbed twin."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.checkpoints.place import FolderPlace
from infra.checkpoints.work import restore
from tests.trainer.agents import Attempt, Hold, World, run
from tests.trainer.warm import run_module
from trainer.builtin.checkpoint.search import unsound_shards
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import Manifest, TrainConfig

NODE_1_SHARD = "attempt-0001/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"


def manifest_of(root: Path, step: int) -> Manifest:
    return Manifest.model_validate_json((root / "tiny" / f"step-{step:08d}" / "manifest.json").read_bytes())


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_after_a_killed_node_training_repeats_steps_and_ends_bit_equal_to_the_twin(twin: Attempt, world: World) -> None:
    with Attempt(world, 1, hold=Hold(node=1, step=34, committed=30)) as first:
        first.wait_for_step(34)
        first.wait_for_shared(30)
        first.kill(1)
        codes = first.wait()
    assert codes == [70, -9]
    assert first.termination(0)["reason"] == "peer-lost"
    world.lose_node(1)

    second = run(world, 2)

    assert [agent.returncode for agent in second.agents] == [0, 0], second.log(0).read_text()
    assert second.events("restored")[0]["step"] == 30
    repeated = set(first.losses()) & set(second.losses())
    assert repeated, "no step was repeated"
    assert first.losses() | second.losses() == twin.losses()
    assert {step: first.losses()[step] for step in repeated} == {step: second.losses()[step] for step in repeated}
    digests = [
        {s.file.rpartition("/")[2]: s.sha256 for s in manifest_of(w.shared, 60).shards} for w in (twin.world, world)
    ]
    assert digests[0] == digests[1]


def test_a_flipped_byte_on_the_local_tier_is_refused_and_another_copy_is_used(twin: Attempt, tmp_path: Path) -> None:
    world = twin.world.copy(tmp_path / "world")
    flip_byte(world.local(1) / "tiny/step-00000060" / NODE_1_SHARD)

    attempt = run(world, 2)

    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(1).read_text()
    (refusal,) = attempt.events("refused_shard", node=1)
    assert (refusal["tier"], refusal["rank"], refusal["file"]) == ("local", 1, NODE_1_SHARD)
    assert refusal["seen"] != refusal["wanted"]
    assert attempt.events("restored")[0]["step"] == 60


def test_a_step_that_is_damaged_on_every_tier_is_refused_and_the_one_before_it_is_used(
    twin: Attempt, tmp_path: Path
) -> None:
    world = twin.world.copy(tmp_path / "world")
    # The successor's copy too, which would else be fetched.
    for tier in (world.local(1), world.local(0), world.shared):
        flip_byte(tier / "tiny/step-00000060" / NODE_1_SHARD)

    attempt = run(world, 2)

    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(1).read_text()
    refusals = [(e["tier"], e["step"], e["file"]) for e in attempt.events("refused_shard", node=1)]
    assert refusals == [("local", 60, NODE_1_SHARD), ("shared", 60, NODE_1_SHARD)]
    assert attempt.events("refused_step")[0]["step"] == 60
    assert attempt.events("restored")[0]["step"] == 30
    assert attempt.losses() == {step: loss for step, loss in twin.losses().items() if step > 30}
    assert manifest_of(world.shared, 60).attempt == 2
    assert manifest_of(world.shared, 60).evaluation_loss == manifest_of(twin.world.shared, 60).evaluation_loss


def test_each_step_tells_its_rate_and_the_norm_of_its_gradients(twin: Attempt) -> None:
    steps = {event["step"]: event for event in twin.events("step")}
    assert len(steps) == 60 and all(0 < step["norm"] < 100 for step in steps.values())
    assert len({step["norm"] for step in steps.values()}) > 50, "each step has its own"
    warm = {step: one["rate"] for step, one in steps.items() if step <= 20}
    assert warm == pytest.approx({step: 2e-3 * step / 20 for step in range(1, 21)})
    assert steps[60]["rate"] < steps[30]["rate"] < 2e-3


@pytest.mark.nightly
def test_with_all_disks_lost_training_goes_on_from_a_copy_bit_equal_to_the_twin(twin: Attempt, tmp_path: Path) -> None:
    """The copy comes back as the steward's Job brings it: only the shared tier of a new file system has it."""
    world = twin.world.copy(tmp_path / "world")
    copies = tmp_path / "copies"
    shutil.copytree(world.shared / "tiny" / "step-00000030", copies / "step-00000030")
    for tier in (world.local(0), world.local(1), world.shared):
        shutil.rmtree(tier / "tiny")
    restore(FolderPlace(copies), 30, world.shared / "tiny", lambda said: None)

    attempt = run(world, 2)

    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(0).read_text()
    assert attempt.events("restored")[0]["step"] == 30
    assert attempt.losses() == {step: loss for step, loss in twin.losses().items() if step > 30}
    digests = [
        {s.file.rpartition("/")[2]: s.sha256 for s in manifest_of(w.shared, 60).shards} for w in (twin.world, world)
    ]
    assert digests[0] == digests[1]


def evaluate(checkpoint: Path, world: World) -> subprocess.CompletedProcess[str]:
    arguments = ("--checkpoint", str(checkpoint), "--config", str(world.root / "train-1.json"))
    return run_module("trainer.builtin.evaluate", *arguments, "--data", str(world.data), folder=world.root)


def test_evaluating_the_checkpoint_alone_gives_the_very_loss_that_training_recorded(twin: Attempt) -> None:
    ended = evaluate(twin.world.shared / "tiny/step-00000060", twin.world)

    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout.splitlines()[-1])
    recorded = manifest_of(twin.world.shared, 60).evaluation_loss
    assert recorded is not None
    assert (answer["step"], answer["evaluation_loss"]) == (60, recorded)


def test_evaluation_refuses_a_damaged_checkpoint(twin: Attempt, tmp_path: Path) -> None:
    world = twin.world.copy(tmp_path / "world")
    flip_byte(world.shared / "tiny/step-00000060" / NODE_1_SHARD)

    ended = evaluate(world.shared / "tiny/step-00000060", world)

    assert ended.returncode == 74
    assert NODE_1_SHARD in ended.stderr


@pytest.mark.drill
@pytest.mark.parametrize("stage", [*(pytest.param(one, marks=pytest.mark.nightly) for one in (0, 1, 3)), 2])
def test_resume_is_bit_equal_with_every_zero_stage_and_two_ranks_per_node(
    stage: int, world: World, config: TrainConfig, tmp_path: Path
) -> None:
    world.config = config.model_copy(update={"zero_stage": stage})
    whole = run(World(tmp_path / "whole", world.data, world.config), 1, nodes=1, ranks_per_node=2)
    with Attempt(world, 1, nodes=1, ranks_per_node=2, hold=Hold(node=0, step=34, committed=30)) as first:
        first.wait_for_step(34)
        first.wait_for_shared(30)
        first.kill(0)
        first.wait()
    second = run(world, 2, nodes=1, ranks_per_node=2)
    assert second.agents[0].returncode == 0, second.log(0).read_text()
    assert first.losses() | second.losses() == whole.losses()


@pytest.mark.nightly
def test_what_two_ranks_saved_one_rank_goes_on_with_at_the_same_evaluation_loss(twin: Attempt, tmp_path: Path) -> None:
    longer = twin.world.config.model_copy(update={"steps": 61, "evaluate_every": 60})
    attempts = []
    for nodes in (1, 2):
        world = twin.world.copy(tmp_path / f"world-{nodes}", longer)
        if nodes == 1:  # the step lies on the nodes alone, and this gang is not the one that saved it
            shutil.rmtree(world.shared / "tiny/step-00000060")
        attempts.append(run(world, 2, nodes=nodes))
    resized, same = attempts

    assert resized.agents[0].returncode == 0, resized.log(0).read_text()
    assert resized.events("restored")[0]["step"] == 60
    assert [(e["from_ranks"], e["to_ranks"]) for e in resized.events("reshaped")] == [(2, 1)]
    tier = Tier("shared", resized.world.shared / "tiny")
    assert [not unsound_shards(manifest, tier.folder(60)) for manifest in tier.committed() if manifest.step == 60] == [
        True
    ]
    losses = [attempt.losses()[61] for attempt in (resized, same)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    evaluated = [attempt.events("evaluated")[0]["loss"] for attempt in (resized, same)]
    # One step lies between: its sums have another order, and bfloat16 rounds the new weights to 8 bits.
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-4)

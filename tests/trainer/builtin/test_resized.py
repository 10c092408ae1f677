"""A gang goes on with fewer nodes and grows again: over the data of its undisturbed twin, its losses within a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.agents import Attempt, Hold, World, run
from trainer.contract import Manifest, TrainConfig
from trainer.contract.ledger import audit
from trainer.contract.model.layout import TOLERANCES

pytestmark = pytest.mark.nightly
LAST = 60
LIMIT = TOLERANCES["float32"]
"""Largest relative difference of a loss from the twin's: the sums of a step have another order over other ranks, and
training carries the difference on."""


def manifest_of(world: World, step: int) -> Manifest:
    return Manifest.model_validate_json((world.shared / f"tiny/step-{step:08d}/manifest.json").read_bytes())


def until_killed(world: World, number: int, nodes: int, committed: int) -> Attempt:
    """An attempt whose nodes all lose their power a few steps after a commit."""
    with Attempt(world, number, nodes, hold=Hold(node=0, step=committed + 4, committed=committed)) as attempt:
        attempt.wait_for_step(committed + 4)
        attempt.wait_for_shared(committed)
        for node in range(nodes):
            attempt.kill(node)
        attempt.wait()
    return attempt


@pytest.mark.parametrize("stage", [1, pytest.param(3, marks=pytest.mark.drill)])
def test_three_nodes_become_two_and_three_again_over_the_same_data(
    stage: int, world: World, config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saving = config.checkpoint.model_copy(update={"every_steps": 20})
    world.config = config.model_copy(
        update={"zero_stage": stage, "global_batch": 12, "precision": "float32", "checkpoint": saving}
    )
    twin = run(World(tmp_path / "twin", world.data, world.config), 1, nodes=3)
    assert [agent.returncode for agent in twin.agents] == [0, 0, 0], twin.log(0).read_text()

    first = until_killed(world, 1, 3, committed=20)
    world.lose_node(2)
    second = until_killed(world, 2, 2, committed=40)
    last = run(world, 3, nodes=3)

    assert [agent.returncode for agent in last.agents] == [0, 0, 0], last.log(0).read_text()
    changes = [event for attempt in (second, last) for event in attempt.events("reshaped")]
    assert [(event["step"], event["from_ranks"], event["to_ranks"]) for event in changes] == [(20, 3, 2), (40, 2, 3)]
    rows = manifest_of(world, LAST).consumed
    assert [(row.world_size, row.first_step, row.last_step) for row in rows] == [(3, 1, 20), (2, 21, 40), (3, 41, 60)]
    (whole,) = manifest_of(twin.world, LAST).consumed
    assert rows[-1].chain == whole.chain, "each step has had the twin's sequences, and each position its place"
    assert audit(rows, LAST * 12, [], None).findings == ()

    losses = first.losses() | second.losses() | last.losses()
    assert losses.keys() == twin.losses().keys() == set(range(1, LAST + 1))
    assert {step: losses[step] for step in range(1, 21)} == {step: twin.losses()[step] for step in range(1, 21)}
    apart: Callable[[int], float] = lambda step: abs(losses[step] / twin.losses()[step] - 1)  # noqa: E731
    assert max(map(apart, losses)) < LIMIT
    with capsys.disabled():
        print(f"\nwidest relative difference: step 21 {apart(21):.2g}, all steps {max(map(apart, losses)):.2g}")

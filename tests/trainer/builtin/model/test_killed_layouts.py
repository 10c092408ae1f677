"""A training whose processes are killed at drawn moments, again and again, ends with the bytes of an undisturbed one.

Real agents: what dies is a rank or a whole node with its disk, within a step, within a save, or while it restores.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.trainer.agents import Attempt, World
from tests.trainer.builtin.model.striking import IN_RESTORE, IN_SAVE, IN_STEP, PROGRAM, Moment, calls_of, note_of
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import Manifest, ParallelConfig, TrainConfig

STEPS, EVERY = 12, 2
COUNT = 50
WORLD = 2
Digests = dict[str, str]


@dataclass(frozen=True)
class Kind:
    nodes: int
    stage: int
    precision: str = "bfloat16"
    tensor: int = 1
    sequence: int = 1

    def config(self, config: TrainConfig) -> TrainConfig:
        saving = config.checkpoint.model_copy(update={"every_steps": EVERY, "keep_local": 2, "keep_shared": 3})
        own = {"zero_stage": self.stage, "precision": self.precision, "steps": STEPS, "evaluate_every": 5}
        parallel = ParallelConfig(tensor=self.tensor, sequence=self.sequence)
        own |= {"parallel": parallel, "checkpoint": saving, "collective_timeout_s": 3600.0}
        return config.model_copy(update=own)


KINDS = {
    "tensor 2": Kind(1, stage=1, tensor=2),
    "tensor 2, stage 2, float32": Kind(1, stage=2, precision="float32", tensor=2),
    "sequence 2, stage 3": Kind(2, stage=3, sequence=2),
    "sequence 2, float32": Kind(1, stage=1, precision="float32", sequence=2),
    "stage 3": Kind(2, stage=3),
}


@dataclass(frozen=True)
class Twin:
    """What an undisturbed training was."""

    losses: dict[int, float]
    steps: dict[int, Digests]
    """Step -> each of its files and its SHA-256."""
    last: Manifest
    calls: list[Counter[str]]
    """By rank, how often it came to each place."""


def attempted(world: World, number: int, kind: Kind, moment: Moment | None) -> Attempt:
    note_of(world.root).unlink(missing_ok=True)
    program = (PROGRAM, json.dumps(moment and asdict(moment)), str(world.root))
    with Attempt(world, number, kind.nodes, WORLD // kind.nodes, program=program) as attempt:
        attempt.wait()
    return attempt


def committed(world: World) -> dict[int, tuple[Manifest, Digests]]:
    """The steps on the shared tier, by what lies in their files."""
    tier = Tier("shared", world.shared / "tiny")
    return {one.step: (one, digests(tier.folder(one.step), one)) for one in tier.committed()}


def digests(folder: Path, manifest: Manifest) -> Digests:
    names = [shard.file for shard in manifest.shards]
    return {name.rpartition("/")[2]: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def twin_of(kind: Kind, root: Path, data: Path, config: TrainConfig) -> Twin:
    kept = config.checkpoint.model_copy(update={"keep_shared": STEPS})
    world = World(root, data, config.model_copy(update={"checkpoint": kept}))
    attempt = attempted(world, 1, kind, None)
    assert [agent.returncode for agent in attempt.agents] == [0] * kind.nodes, attempt.log(0).read_text()
    found = committed(world)
    assert len(found) > 2 and len(attempt.losses()) == STEPS
    calls = [Counter(json.loads(calls_of(root, rank).read_text())) for rank in range(WORLD)]
    return Twin(attempt.losses(), {step: one for step, (_, one) in found.items()}, found[STEPS][0], calls)


def drawn(chance: random.Random, number: int, twin: Twin, resumed: bool) -> Moment:
    """Every second moment lies in a save, and of a resumed training every seventh in the restore."""
    if resumed and number % 7 == 0:
        return Moment(chance.choice(list(IN_RESTORE)), chance.randrange(WORLD), 1, chance.random() < 0.5)
    place = chance.choice(list(IN_SAVE if number % 2 else IN_STEP))
    rank = chance.choice([rank for rank in range(WORLD) if twin.calls[rank][place]])
    # In the first half: each attempt is to leave the next ones something to do.
    call = chance.randint(1, max(1, twin.calls[rank][place] // 2))
    return Moment(place, rank, call, chance.random() < 0.5)


def compare(attempt: Attempt, world: World, twin: Twin) -> None:
    losses = attempt.losses()
    assert losses == {step: twin.losses[step] for step in losses}
    for step, (_, files) in committed(world).items():
        assert files == twin.steps.get(step, files), f"step {step} after attempt {attempt.number}"


def killed(kind: Kind, count: int, twin: Twin, root: Path, data: Path, config: TrainConfig) -> list[Moment]:
    """Train again and again until so many moments have killed something; return those."""
    chance, found, trainings = random.Random(f"{kind}"), list[Moment](), 0
    while len(found) < count:
        trainings += 1
        world, number, over = World(root / str(trainings), data, config), 0, False
        while not over:
            number += 1
            goes_on = len(found) < count and STEPS not in committed(world)
            moment = drawn(chance, len(found), twin, number > 1) if goes_on else None
            attempt = attempted(world, number, kind, moment)
            codes = [agent.returncode for agent in attempt.agents]
            over, struck = codes == [0] * kind.nodes, note_of(world.root).exists()
            assert over != struck, (codes, moment, attempt.log(0).read_text()[-3000:])
            compare(attempt, world, twin)
            if struck and moment is not None:
                found.append(moment)
                if moment.node and chance.random() < 0.5:
                    # At once: a process that is being killed may still write there.
                    lost = moment.rank * kind.nodes // WORLD
                    world.local(lost).rename(world.root / f"lost-{number}")
        last, files = committed(world)[STEPS]
        assert files == twin.steps[STEPS]
        assert last.consumed[-1].chain == twin.last.consumed[-1].chain
        assert last.evaluation_loss == twin.last.evaluation_loss
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_fifty_kills(name: str, config: TrainConfig, data: Path, tmp_path: Path) -> None:
    kind = KINDS[name]
    config = kind.config(config)
    found = killed(kind, COUNT, twin_of(kind, tmp_path / "twin", data, config), tmp_path, data, config)
    places = Counter(moment.place for moment in found)
    assert len(places) > 5, places
    assert sum(places[name] for name in IN_SAVE) > COUNT / 4, places
    assert {moment.node for moment in found} == {True, False} and {moment.rank for moment in found} == {0, 1}

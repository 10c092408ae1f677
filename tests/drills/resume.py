"""Drill: training killed at seeded random moments goes on bit for bit as an undisturbed twin did.

    .venv/bin/python -m tests.drills.resume --seed 1 --count 50

Real agents and real DeepSpeed ranks on loopback addresses. A case is one kill: of a node, or of all at once, at any
moment from the start of an attempt to well into its steps, now and then with the node's own disk lost. Up to five
kills hit one training. It passes when every step that the killed attempt and all after it finished, at least 100 of
them, has the twin's very loss, and what is committed in the end is the twin's, byte for byte.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.results import conclude, results_of
from tests.trainer.agents import Attempt, World, run, wait_until
from tests.trainer.data_sets import prepare
from trainer.contract import CheckpointConfig, DataConfig, ModelConfig, TrainConfig, parse_manifest

RESULTS = results_of("drills", "resume")

AFTER = 100
"""Steps that must be equal after a kill."""
KILLS, REACH, NODES = 5, 14, 2
STEPS = KILLS * REACH + AFTER
"""Of a training: a kill comes within so many steps of where its attempt began."""


@dataclass
class Kill:
    """What is to happen to one attempt, and what did."""

    number: int
    steps: int
    """Finished by the attempt before its end; 0: it dies on its way to the first one."""
    delay_s: float
    victims: tuple[int, ...]
    lost: tuple[int, ...]
    """Nodes whose own disk goes with them."""
    seen: str = ""
    compared: int = 0
    wrong: str = ""


def draw(chance: random.Random, number: int) -> Kill:
    victims = chance.choice(((0,), (1,), (1,), tuple(range(NODES))))
    nodes = tuple(node for node in victims if chance.random() < 0.3)
    steps = 0 if chance.random() < 0.2 else chance.randint(1, REACH - 2)
    # On its way an attempt spends seconds, over a step hundredths of one.
    delay_s = chance.uniform(0.0, 8.0) if steps == 0 else chance.uniform(0.0, 0.2)
    return Kill(number, steps, delay_s, victims, nodes)


def make_data(folder: Path, seed: int) -> Path:
    chance, text, out = random.Random(seed), folder / "text", folder / "data"
    text.mkdir(parents=True)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 7))) for _ in range(600)]
    for index in range(80):
        lines = (" ".join(chance.choices(words[index : index + 60], k=12)) for _ in range(20))
        (text / f"{index}.txt").write_text("\n".join(lines))
    prepare(text, "*.txt", None, 0.1, 7, 512, out, lambda stage, part: None)
    return out


def make_config(data: Path, stage: int = 1, precision: str = "float32") -> TrainConfig:
    return TrainConfig(
        campaign="tiny",
        model=ModelConfig(layers=2, width=64, heads=4, context=64, vocabulary=512),
        data=DataConfig(manifest_digest=hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()),
        checkpoint=CheckpointConfig(every_steps=5, shared_every=2, keep_local=2),
        steps=STEPS,
        global_batch=8,
        micro_batch=2,
        evaluate_every=1000,
        evaluate_batches=2,
        zero_stage=stage,
        precision=precision,
    )


def strike(attempt: Attempt, kill: Kill) -> None:
    """SIGKILL to an agent and to all that it started: a node that is gone."""
    if kill.steps:
        first = _first_step(attempt)
        wait_until(lambda: attempt.step() >= first + kill.steps or _over(attempt), f"{kill.steps} steps")
    until = time.monotonic() + kill.delay_s  # the drill's dice, not an oracle
    while time.monotonic() < until and not (kill.steps == 0 and attempt.losses()):  # a quick machine is soon on its way
        time.sleep(0.01)
    family = [psutil.Process(attempt.agents[node].pid) for node in kill.victims if attempt.agents[node].poll() is None]
    family = [one for parent in family for one in (parent, *parent.children(recursive=True))]
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    kill.seen = f"at step {attempt.step()}"


def _first_step(attempt: Attempt) -> int:
    wait_until(lambda: bool(attempt.losses()) or _over(attempt), "the first step")
    return min(attempt.losses(), default=0)


def _over(attempt: Attempt) -> bool:
    return any(agent.poll() is not None for agent in attempt.agents)


def train(world: World, kills: list[Kill], twin: Attempt) -> None:
    """One training through all its kills to its end; each kill is told what was equal after it."""
    series: list[dict[int, float]] = []
    for number, kill in enumerate(kills, start=1):
        with Attempt(world, number, NODES) as attempt:
            strike(attempt, kill)
            codes = attempt.wait()
        for node in kill.lost:
            world.lose_node(node)
        series.append(attempt.losses())
        if 0 in codes:
            kill.wrong = f"an agent ended as if nothing had happened: {codes}"
    last = run(world, len(kills) + 1, NODES)
    series.append(last.losses())
    codes = [agent.returncode for agent in last.agents]
    wrong = "" if codes == [0] * NODES else f"the last attempt ended with {codes}, see {last.log(0)}"
    wrong = wrong or _differences(world, twin)
    for number, kill in enumerate(kills):
        after = series[number:]
        unequal = sorted({s for seen in after for s, loss in seen.items() if twin.losses().get(s) != loss})
        kill.compared = len({step for seen in series[number + 1 :] for step in seen})
        restored = min(series[number + 1], default=None)
        kill.seen += f", the next one began with step {restored}" if restored else ", the next one died before a step"
        if unequal:
            kill.wrong = f"steps {unequal[:5]} have another loss than the twin's"
        elif not kill.wrong and kill.compared < AFTER:
            kill.wrong = f"only {kill.compared} steps came after it"
        kill.wrong = kill.wrong or wrong


def _differences(world: World, twin: Attempt) -> str:
    """How the last committed step differs from the twin's; the ledger names attempts, which may differ."""
    ours, theirs = (_last(one.shared / "tiny") for one in (world, twin.world))
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            return f"{name} of the last checkpoint is not the twin's"
    return "" if ours else "nothing was committed"


def _last(tier: Path) -> dict[str, Any]:
    folder = tier / f"step-{STEPS:08d}"
    if not (folder / "manifest.json").exists():
        return {}
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), STEPS)
    digests: dict[str, Any] = {shard.file.rpartition("/")[2]: shard.sha256 for shard in manifest.shards}
    chain = manifest.consumed[-1].chain if manifest.consumed else ""
    return digests | {"loss": manifest.loss, "held-out loss": manifest.evaluation_loss, "ledger's chain": chain}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--stage", type=int, default=1, choices=range(4))
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--keep", action="store_true", help="leave the folder of a training that failed")
    options = parser.parse_args()
    kills = [draw(random.Random(f"{options.seed}/{number}"), number) for number in range(options.count)]
    work, started = Path(tempfile.mkdtemp(prefix="bivouac-drill-resume-")), time.monotonic()
    kept = False
    try:
        data = make_data(work, 7)
        config = make_config(data, options.stage, options.precision)
        twin = run(World(work / "twin", data, config), 1, NODES)
        if [agent.returncode for agent in twin.agents] != [0] * NODES:
            print(twin.log(0).read_text()[-3000:])
            print(f"drill resume: {options.count} cases, {options.count} failed, {time.monotonic() - started:.0f} s")
            return 1
        print(f"the twin: {STEPS} steps, loss {twin.losses()[STEPS]!r}", flush=True)
        for first in range(0, len(kills), KILLS):
            group, world = kills[first : first + KILLS], World(work / f"training-{first}", data, config)
            train(world, group, twin)
            for kill in group:
                nodes = f"node{'s' if len(kill.victims) > 1 else ''} {', '.join(map(str, kill.victims))}"
                lost = f", disk of {', '.join(map(str, kill.lost))} lost" if kill.lost else ""
                verdict = f"FAILED: {kill.wrong}" if kill.wrong else f"{kill.compared} steps after it equal"
                print(f"case {kill.number}: {nodes} killed {kill.seen}{lost}: {verdict}", flush=True)
            if any(kill.wrong for kill in group) and options.keep:
                kept = True
                print(f"kept: {world.root}")
            else:
                shutil.rmtree(world.root, ignore_errors=True)
    finally:
        if not kept:
            shutil.rmtree(work, ignore_errors=True)
    seconds, failed = time.monotonic() - started, sum(bool(kill.wrong) for kill in kills)
    rows = [vars(kill) for kill in kills]
    return conclude(
        RESULTS, {"seed": options.seed, "seconds": round(seconds, 1), "rows": rows}, len(kills), failed, started
    )


if __name__ == "__main__":
    sys.exit(main())

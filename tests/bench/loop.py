"""What the loop itself costs in a step, at 256 simulated ranks: all but the model, the network and the disk of a save.

    .venv/bin/python -m tests.bench.loop [--ranks 256] [--steps 400]

One rank's real loop packs its figures, adds those of 255 others, reads them, judges them with all detectors, prints the
step's event and writes its heartbeat. The other ranks' numbers are drawn. The peer is the same loop with the watch
switched off. The exchanges of a step are counted: one. Times are of the processor, which other work does not stretch.
Last comes the pause of a garbage collection, as Python makes it and as the loop does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from tests.trainer.test_loop_pace import alone
from trainer.builtin.heartbeat import Heartbeat
from trainer.builtin.loop import Loop
from trainer.builtin.tuning.garbage import EVERY, collection
from trainer.builtin.watch.figures import PARTS, Mine, pack
from trainer.builtin.watch.watch import Watch
from trainer.contract import WatchConfig

RESULTS = results_of("bench", "loop")
STEP_S, MOST = 0.2, 0.005
GROUPS = 6


class Simulated:
    """All ranks but the first, whose numbers are drawn once for each of some steps."""

    def __init__(self, ranks: int) -> None:
        self.world_size, self.rank, self.first, self.first_on_node = ranks, 0, True, True
        self.exchanges = 0
        self._others = [
            np.sum([pack(mine(ranks * step + rank), rank, ranks) for rank in range(1, ranks)], axis=0)
            for step in range(4)
        ]
        self.bytes = self._others[0].nbytes

    def sums(self, values: list[float]) -> list[float]:
        self.exchanges += 1
        summed: list[float] = (np.asarray(values) + self._others[self.exchanges % 4]).tolist()
        return summed


def mine(seed: int) -> Mine:
    chance = random.Random(seed)
    return Mine(
        loss=3 + chance.gauss(0, 0.01),
        parts={name: 0.03 + 0.0005 * chance.random() for name in PARTS},
        memory_gib=60.0,
        layers=[1e-3 * (1 + 0.1 * chance.random()) for _ in range(GROUPS)],
        weights=[10 + 0.01 * chance.random() for _ in range(GROUPS)],
        activation=1 + 0.01 * chance.random(),
        entropy=4 + 0.01 * chance.random(),
        others=[0.0] * 13,
    )


def measured(folder: Path, ranks: int, steps: int, watch: WatchConfig) -> tuple[list[float], Simulated]:
    """Return the seconds of each step's own work."""
    folder.mkdir()
    loop: Loop = alone(folder)
    gang: Any = Simulated(ranks)
    loop.gang = loop.overseer.gang = gang
    loop.heartbeat = Heartbeat(folder, 0)
    settle: Any = lambda tally: False  # noqa: E731
    loop.committer.settle = settle  # type: ignore[method-assign]
    loop.overseer.watch = Watch(watch)
    loop.overseer.signals.groups = tuple(f"group {index}" for index in range(GROUPS))
    loop.feed = type("Feed", (), {"wait_seconds": 0.0})()
    took = []
    with contextlib.redirect_stdout(io.StringIO()):
        for step in range(1, steps + 1):
            loop.step = loop.position = step
            figures = mine(step)
            begun = time.thread_time()
            stepped = loop._accept(loop._agree(figures, time.monotonic() - STEP_S, step, 1e-3))
            loop._report(stepped)
            loop._watch(stepped)
            took.append(time.thread_time() - begun)
    assert gang.exchanges == steps, "one exchange a step"
    return took, gang


def pauses() -> dict[str, float]:
    """Return seconds: Python's own collection of all there is, and the loop's after ten steps of some thousand objects,
    the median of ten."""
    begun = time.thread_time()
    gc.collect()
    whole, took = time.thread_time() - begun, []
    with collection() as garbage:
        for step in range(1, 10 * EVERY + 1):
            made = [[number] for number in range(1000)]
            made.append(made)  # type: ignore[arg-type]
            del made
            begun = time.thread_time()
            garbage.collect_after(step)
            if step % EVERY == 0:
                took.append(time.thread_time() - begun)
    return {"python's": whole, "the loop's": statistics.median(took)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    names = (
        "loss",
        "norm",
        "layers",
        "weights",
        "activations",
        "data",
        "divergence",
        "precision",
        "throughput",
        "straggler",
    )
    off = WatchConfig(**dict.fromkeys(names, "off"))  # type: ignore[arg-type]
    rows, verdicts = {}, list[Verdict]()
    with tempfile.TemporaryDirectory() as folder:
        for name, watch in (("watch on", WatchConfig()), ("watch off", off)):
            took, gang = measured(Path(folder) / name.split()[1], options.ranks, options.steps, watch)
            verdicts.append(
                Verdict(f"a step, {name}", tuple(1e3 * each for each in took), 1e3 * MOST * STEP_S, unit="ms")
            )
            rows[name] = {"median_s": statistics.median(took), "p99_s": sorted(took)[int(len(took) * 0.99)]}
    print(f"{options.ranks} ranks, {options.steps} steps, one exchange of {gang.bytes} bytes a step")
    for name, row in rows.items():
        part = row["median_s"] / STEP_S
        print(f"{name:10} {row['median_s'] * 1e3:7.3f} ms  p99 {row['p99_s'] * 1e3:7.3f} ms  {part:.3%} of 200 ms")
    stopped = pauses()
    print("garbage    " + ", ".join(f"{name} pause {seconds * 1e3:.2f} ms" for name, seconds in stopped.items()))
    keep(RESULTS, rows | {"garbage": stopped})
    return judge(*verdicts)


if __name__ == "__main__":
    sys.exit(main())

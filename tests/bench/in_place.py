"""Restart in place: from the death of a rank to the first new step, against a cold start of the same job.

    .venv/bin/python -m tests.bench.in_place [--pairs 5]

Each pair is one attempt of two nodes on loopback. Its agents start as in a pod, restore the last attempt's checkpoint
and step: the cold start. Then one rank gets SIGKILL, and all ranks start again in place from a newer checkpoint. The
start of a pod (node, image, kubelet) is in neither.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of
from tests.trainer.agents import Attempt, World, wait_until
from tests.trainer.data_sets import prepared_words
from tests.trainer.test_ends import LONG
from trainer.contract import CheckpointConfig, DataConfig, ModelConfig, TrainConfig

RESULTS = results_of("bench", "in_place")
MOST = 0.5
SAVE_EVERY = 10


def world(root: Path) -> World:
    data = prepared_words(root)
    config = TrainConfig(
        campaign="tiny",
        model=ModelConfig(layers=4, width=192, heads=6, context=64, vocabulary=512),
        data=DataConfig(manifest_digest=hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()),
        checkpoint=CheckpointConfig(every_steps=SAVE_EVERY),
        steps=LONG,
        global_batch=8,
        micro_batch=2,
        evaluate_every=LONG,
        precision="bfloat16",
        restarts_in_place=1,
        meet_s=300.0,  # a busy machine is no broken one
        collective_timeout_s=300.0,
    )
    return World(root / "world", data, config)


def first_step(attempt: Attempt, generation: int) -> float:
    """Return when rank 0 made the first step of a generation, in seconds since the epoch."""

    def made() -> list[float]:
        return [event["time"] for event in attempt.events("step") if event.get("generation", 0) == generation]

    wait_until(lambda: bool(made()) or attempt._ended(), f"a step of generation {generation}")
    assert made(), attempt.log(0).read_text()[-3000:]
    return made()[0]


def pair(one: World, number: int, nodes: int = 2) -> dict[str, float]:
    """Return the seconds of a cold start and of a restart in place."""
    begun = time.time()
    with Attempt(one, number, nodes, cold=True) as attempt:
        cold = first_step(attempt, 0) - begun
        attempt.wait_for_shared(attempt.step() + SAVE_EVERY)
        agent = attempt.agents[-1].pid
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        # On a GPU ranks are spawned, beside a process of Python's own and younger ones that wait to be ranks.
        ranks = [int(pid) for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        died = time.time()
        os.kill(min(ranks), 9)
        again = first_step(attempt, 1) - died
        attempt.wait_for_shared(attempt.step() + SAVE_EVERY)
        attempt.terminate(0)
        assert attempt.wait() == [75] * nodes, attempt.log(0).read_text()[-3000:]
    return {"cold start": round(cold, 2), "in place": round(again, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="in-place-") as folder:
        one = world(Path(folder))
        for number in range(1, options.pairs + 1):
            rows.append(pair(one, number))
            print("  ".join(f"{name} {seconds:6.2f} s" for name, seconds in rows[-1].items()), flush=True)
    ratios = [row["in place"] / row["cold start"] for row in rows]
    middle = statistics.median(ratios)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"rows": rows, "ratio": middle, "cores": os.cpu_count(), "load": os.getloadavg()}))
    ours, cold = (tuple(row[name] for row in rows) for name in ("in place", "cold start"))
    return judge(Verdict("in place", ours, MOST, "cold start", cold))


if __name__ == "__main__":
    sys.exit(main())

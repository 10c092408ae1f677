"""How soon failures are noticed: the seconds from the fault to the steward's decision in the record, and the steps from
a slow rank to its alarm.

    .venv/bin/python -m tests.bench.detection [--runs 3] [--only steward stragglers]

The real steward, as a program of its own with the pod's own rest between two looks, beside an account, an API server
and agents that fail when they are told to (`fleet.py`). A dead node is one whose agent falls silent and which EC2 calls
gone; the spec's `heartbeat_timeout` and `hang_timeout` are 5 s each, and a step takes one: they bound what is measured
from below. A notice counts until the gang is asked to end, which makes it commit. What a node's own service and kubelet
add is not in it: `bivouac drill` has that. Times of ranks are drawn, as in the bench of the watch: 256 ranks, 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tests.bench.parts.verdict import Verdict, judge
from tests.bench.steward.__main__ import STEWARD
from tests.results import keep, results_of
from tests.root import ROOT
from trainer.builtin.watch.times import Straggler

RESULTS = results_of("bench", "detection")
LIMITS = {"process": 2.0, "hang": 3 * 1.0 + 5.0, "notice": 2.0, "node": 10.0}
"""Fault -> most seconds; the order of the strikes: the last two end an instance."""
WORDS = {
    "process": "dead process", "hang": "hang, steps of 1 s", "notice": "spot notice to the request to commit",
    "node": "dead node",
}  # fmt: skip
RANKS, NOISE, FORWARD_S = 256, 0.02, 0.06
SLOWER, MOST_STEPS, QUIET_STEPS, ONSET = 1.2, 30, 10_000, 100


def seconds_of(runs: int, folder: Path) -> dict[str, list[float]]:
    """Return fault -> seconds of each strike. Raises `AssertionError` with the steward's log if it ends."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-m", "tests.bench.detection.fleet", str(folder / "account")]
    found: dict[str, list[float]] = {name: [] for name in LIMITS}
    log = (folder / "steward.log").open("w")
    with log, subprocess.Popen(command, cwd=ROOT, env=environment, stdin=-1, stdout=-1, text=True) as world:
        answers, questions = cast(IO[str], world.stdout), cast(IO[str], world.stdin)
        try:
            facts = json.loads(answers.readline())
            own = [sys.executable, "-c", STEWARD, facts["api"], facts["config"]]
            with subprocess.Popen(
                own, cwd=ROOT, env=environment | facts["environment"], stdout=log, stderr=log
            ) as steward:
                try:
                    for name in [name for name in LIMITS for _ in range(runs)]:
                        questions.write(f"{name}\n")
                        questions.flush()
                        line = answers.readline()
                        assert line and steward.poll() is None, (folder / "steward.log").read_text()[-2000:]
                        times = json.loads(line)
                        print(json.dumps({"fault": name, **times}), flush=True)
                        found[name].append(times["ended_s" if name == "notice" else "decided_s"])
                finally:
                    steward.kill()
        finally:
            world.kill()
    return found


def forward(chance: np.random.Generator, slow: float = 1.0) -> list[float]:
    """Return the seconds of each rank's forward pass; the first rank's are `slow` times as long."""
    seconds = FORWARD_S * (1 + np.abs(chance.normal(0, NOISE, RANKS)))
    seconds[0] *= slow
    return [float(value) for value in seconds]


def steps_until(seed: int) -> float:
    """Return the steps from the onset of a slow rank to its alarm; 200 if none of so many raises it."""
    rule, chance = Straggler(), np.random.default_rng(seed)
    onset = ONSET + seed  # looks are every few steps
    for step in range(1, onset + 200):
        found = rule.look(step, forward(chance, SLOWER if step >= onset else 1.0))
        if found is not None and found[1] == 0 and step >= onset:
            return float(step - onset)
    return 200.0


def false_alarms(seed: int) -> int:
    rule, chance = Straggler(), np.random.default_rng(seed)
    return sum(rule.look(step, forward(chance)) is not None for step in range(1, QUIET_STEPS + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=("steward", "stragglers"), default=["steward", "stragglers"])
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    verdicts = []
    if "steward" in options.only:
        rows["seconds"] = seconds_of(options.runs, Path(tempfile.mkdtemp(prefix="bivouac-detection-")))
        verdicts += [Verdict(WORDS[name], tuple(rows["seconds"][name]), LIMITS[name]) for name in LIMITS]
    if "stragglers" in options.only:
        rows["steps"] = [steps_until(seed) for seed in range(8 * options.runs)]
        rows["false alarms"] = false_alarms(1)
        verdicts.append(Verdict("a rank 20 % slower", tuple(rows["steps"]), MOST_STEPS, unit="steps"))
        quiet = (float(rows["false alarms"]),)
        verdicts.append(Verdict(f"false alarms in {QUIET_STEPS} steps of noise", quiet, 0.5, unit="alarms"))
    keep(RESULTS, rows)
    return judge(*verdicts)


if __name__ == "__main__":
    sys.exit(main())

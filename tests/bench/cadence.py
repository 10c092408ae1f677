"""What checkpoints cost in the end: a training whose interval follows from what its own saves were seen to cost.

    .venv/bin/python -m tests.bench.cadence [--seconds 90] [--mtbf 60]

One rank on this machine's CPU, saves replicated to a shared tier on the same disk. Failures come so often (`--mtbf`,
seconds) that Daly's formula alone would save all the time: the bound on the overhead decides. The peer, DeepSpeed's own
blocking `save_checkpoint` of the same state at the same interval, is timed in the same process, in turns with ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.parts.verdict import Verdict, judge
from tests.bench.saves import Bench
from tests.results import results_of
from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.pace import Pace
from trainer.builtin.checkpoint.tiers import campaign_tiers
from trainer.contract import CheckpointConfig
from trainer.contract.cadence import MAX_OVERHEAD, TOO_DEAR

RESULTS = results_of("bench", "cadence")

_SETTLING = 3
"""Saves before the interval counts as found."""
_PARTS = 5
"""Parts of the settled training, each with its own overhead: their spread is that of the figure."""


def train(bench: Bench, folder: Path, seconds: float, mtbf_s: float) -> dict[str, Any]:
    """Steps and saves for so long; what the saves of the settled part cost, dip included."""
    tiers = campaign_tiers(folder / "local", folder / "shared", "bench")
    saving = CheckpointConfig(every_steps=20, shared_every=1, keep_local=2, keep_shared=2, measured=True)
    committer = Committer(bench.gang, tiers, saving, ManifestIdentity("bench", 1, 1, "", "", "", ""), Begun())
    pace = Pace(every=saving.every_steps, steps=10**6, mtbf_s=mtbf_s)
    bench.engine.checkpoint_engine = bench.ours
    steps: list[tuple[float, bool, int]] = []
    stalls: list[float] = []
    saves, saved, until = 0, bench.step_number, time.monotonic() + seconds
    while time.monotonic() < until:
        took = bench.step()
        committer.settle(committer.votes())
        writing = committer.writing()
        pace.add_step(took, writing)
        if not writing and committer.measured.write_s is not None:
            pace.finish_save(committer.measured.write_s, committer.measured.shared_s)
        if saves > _SETTLING:
            steps.append((took, writing, max(0, len(stalls) - 1)))
        if bench.step_number - saved < pace.every:
            continue
        if committer.save(bench.engine, TrainingProgress(bench.step_number, 0, 0, 1.0)):
            saves, saved = saves + 1, bench.step_number
            pace.begin_save(committer.measured.stall_s)
            if saves > _SETTLING:
                stalls.append(committer.measured.stall_s)
    committer.drain(replicate=False)
    if not stalls or all(writing for _, writing, _ in steps):
        raise SystemExit(f"no save after the first {_SETTLING}, or no quiet step: give more --seconds")
    quiet = statistics.fmean(took for took, writing, _ in steps if not writing)
    dip = sum(took - quiet for took, writing, _ in steps if writing)
    return {
        "every_steps": pace.every,
        "every_s": pace.every * quiet,
        "saves": len(stalls),
        "stall_s": statistics.median(stalls),
        "dip_s": dip / len(stalls),
        "overheads": overheads(stalls, steps, quiet),
    }


def overheads(stalls: list[float], steps: list[tuple[float, bool, int]], quiet: float) -> list[float]:
    """Return what saves cost of the time, stall and dip, in each of `_PARTS` runs of saves. `steps`: seconds, whether a
    checkpoint was being written, and the number of the save before."""
    parts, count = list[float](), min(_PARTS, len(stalls))
    for part in range(count):
        saves = range(part * len(stalls) // count, (part + 1) * len(stalls) // count)
        stall = sum(stalls[number] for number in saves)
        dip = sum(took - quiet for took, writing, save in steps if writing and save in saves)
        parts.append((stall + dip) / (stall + sum(took for took, _, save in steps if save in saves)))
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--mtbf", type=float, default=60, help="mean seconds between failures")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-cadence-", dir=RESULTS.parent))
    try:
        bench = Bench(options, folder)
        blocking = [bench.deepspeed()[0] for _ in range(3)]
        row = train(bench, folder / "paced", options.seconds, options.mtbf)
        blocking += [bench.deepspeed()[0] for _ in range(3)]
        size = sum(tensor.nbytes for tensor, _ in bench.plain)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peer = statistics.median(blocking)
    dear = tuple(stall / (stall + row["every_s"]) for stall in blocking)
    row |= {"peer_stall_s": peer, "peer_overheads": dear, "bytes": size}
    print(f"state {size / 1e6:.0f} MB, a failure every {options.mtbf:.0f} s expected; {row['saves']} saves", end="")
    print(f" after {_SETTLING} to settle; every {row['every_steps']} steps, {row['every_s']:.1f} s")
    print(f"{'':36}{'stall s':>9}{'dip s':>8}")
    print(f"{'bivouac':36}{row['stall_s']:9.4f}{row['dip_s']:8.3f}")
    print(f"{'DeepSpeed save_checkpoint, as often':36}{peer:9.4f}")
    print(f"the interval's bound is {MAX_OVERHEAD:.1%}, never above {TOO_DEAR:.1%}")
    RESULTS.write_text(json.dumps(row | {"load": os.getloadavg()}, indent=1))
    ours = tuple(100 * part for part in row["overheads"])
    name, peers = "DeepSpeed's save_checkpoint, as often", tuple(100 * part for part in dear)
    return judge(
        Verdict("part of the training's time", ours, 100 * MAX_OVERHEAD, unit="%"),
        Verdict("part of the training's time", ours, 1.0, name, peers, unit="%"),
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)

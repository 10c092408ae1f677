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


def train(bench: Bench, folder: Path, seconds: float, mtbf_s: float) -> dict[str, Any]:
    """Steps and saves for so long; what the saves of the settled part cost, dip included."""
    tiers = campaign_tiers(folder / "local", folder / "shared", "bench")
    saving = CheckpointConfig(every_steps=20, shared_every=1, keep_local=2, keep_shared=2, measured=True)
    committer = Committer(bench.gang, tiers, saving, ManifestIdentity("bench", 1, 1, "", "", "", ""), Begun())
    pace = Pace(every=saving.every_steps, steps=10**6, mtbf_s=mtbf_s)
    bench.engine.checkpoint_engine = bench.ours
    steps: list[tuple[float, bool]] = []
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
            steps.append((took, writing))
        if bench.step_number - saved < pace.every:
            continue
        if committer.save(bench.engine, TrainingProgress(bench.step_number, 0, 0, 1.0)):
            saves, saved = saves + 1, bench.step_number
            pace.begin_save(committer.measured.stall_s)
            if saves > _SETTLING:
                stalls.append(committer.measured.stall_s)
    committer.drain(replicate=False)
    quiet = statistics.fmean(took for took, writing in steps if not writing)
    dip = sum(took - quiet for took, writing in steps if writing)
    spent = sum(stalls) + sum(took for took, _ in steps)
    return {
        "every_steps": pace.every,
        "every_s": pace.every * quiet,
        "saves": len(stalls),
        "stall_s": statistics.median(stalls),
        "dip_s": dip / len(stalls),
        "overhead": (sum(stalls) + dip) / spent,
    }


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
    row |= {"peer_stall_s": peer, "peer_overhead": peer / (peer + row["every_s"]), "bytes": size}
    print(f"state {size / 1e6:.0f} MB, a failure every {options.mtbf:.0f} s expected; {row['saves']} saves", end="")
    print(f" after {_SETTLING} to settle; every {row['every_steps']} steps, {row['every_s']:.1f} s")
    print(f"{'':36}{'stall s':>9}{'dip s':>8}{'overhead':>10}")
    print(f"{'bivouac':36}{row['stall_s']:9.4f}{row['dip_s']:8.3f}{row['overhead']:10.2%}")
    print(f"{'DeepSpeed save_checkpoint, as often':36}{peer:9.4f}{'':8}{row['peer_overhead']:10.2%}")
    print(f"bound {MAX_OVERHEAD:.1%}, never above {TOO_DEAR:.1%}")
    RESULTS.write_text(json.dumps(row | {"load": os.getloadavg()}, indent=1))
    return 0 if row["overhead"] <= MAX_OVERHEAD else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)

"""Drill: every type of the catalogue in every purchase option through the real engine against the emulated AWS.

Each is created, read back, asked for one node (which EC2 takes with all its interfaces or refuses), changed and
destroyed; some first meet an EC2 without capacity, which then comes late. `--count` takes so many, drawn by the seed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.rehearsal.stack.fleet import Case, all_cases, fleet_in, life
from tests.results import conclude, results_of

RESULTS = results_of("drills", "fleet")
SHORT_S = (0.0, 0.0, 1.0, 2.5)
"""Seconds without capacity, one drawn for each case."""


def batch(cases: list[Case]) -> list[dict[str, Any]]:
    """One account and one stack for these cases."""
    wrong, begun = dict[int, str](), time.monotonic()

    def failed(case: Case, error: AssertionError) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        wrong.setdefault(case.number, f"{where.name}: {where.line} {error}"[:300])

    counted = dict[str, int]()
    try:
        with tempfile.TemporaryDirectory(prefix="bivouac-fleet-") as folder, fleet_in(Path(folder)) as fleet:
            counted = life(fleet, cases, failed)
    except Exception as error:  # the stack as a whole: no case of it is proven
        wrong = {case.number: wrong.get(case.number, f"the stack: {str(error)[-300:]}") for case in cases}
    seconds = round(time.monotonic() - begun, 1)
    return [
        {"case": str(case), "short_s": case.short_s, "verdict": f"FAILED {wrong[case.number]}" if case.number in wrong
         else "ok", "stack_seconds": seconds, "stack": counted}
        for case in cases
    ]  # fmt: skip


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=len(all_cases()))
    parser.add_argument("--batch", type=int, default=20, help="cases in one stack")
    options = parser.parse_args()
    chance, begun, rows = random.Random(options.seed), time.monotonic(), list[dict[str, Any]]()
    cases = all_cases()
    chance.shuffle(cases)
    cases = cases[: options.count]
    for case in cases:
        case.short_s = chance.choice(SHORT_S)
    for start in range(0, len(cases), options.batch):
        for row in batch(cases[start : start + options.batch]):
            rows.append(row)
            print(f"{len(rows):3d} {row['verdict']:4s} {row['case']}", flush=True)
    failed = sum(row["verdict"] != "ok" for row in rows)
    return conclude(RESULTS, {"seed": options.seed, "rows": rows}, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())

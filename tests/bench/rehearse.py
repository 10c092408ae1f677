"""How long `bivouac rehearse infra/campaigns/p5-32-nodes.yaml` takes as a whole, spec to certificate, with a node that
dies: first with no data prepared, then warm. The parts are the stages' own times.

    python -m tests.bench.rehearse [--rounds 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.parts.verdict import Verdict, judge
from tests.campaign.rehearsal import Rehearsal
from tests.results import keep, results_of
from tests.root import ROOT

RESULTS = results_of("bench", "rehearse")
LIMIT_S = 240.0
REAL = ROOT / "infra/campaigns/p5-32-nodes.yaml"
WHOLE = "the command"


def rehearsed(one: Rehearsal) -> dict[str, float]:
    """Seconds of each stage and of the command; the site is removed."""
    try:
        begun = time.monotonic()
        done = one.run("rehearse", str(REAL), "--json")
        took = time.monotonic() - begun
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        ends = [event["data"] for event in one.events() if event["kind"] == "stage.finished"]
        return {end["stage"]: float(end["seconds"]) for end in ends} | {WHOLE: took}
    finally:
        one.strike()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="warm ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rehearse-") as text:
        one = Rehearsal(Path(text), {"campaign": f"{REAL.stem}-dry"})
        first = rehearsed(one)
        print(f"  with its data to prepare {first[WHOLE]:6.1f} s", flush=True)
        warm = list[dict[str, float]]()
        for _ in range(options.rounds):
            warm.append(rehearsed(one))
            print(f"  warm                     {warm[-1][WHOLE]:6.1f} s", flush=True)
    table = Table("stage", "first s", "warm, median s", "limit s", box=None)
    for name in first:
        limit = f"{LIMIT_S:.0f}" if name == WHOLE else ""
        table.add_row(name, f"{first[name]:.1f}", f"{statistics.median(row[name] for row in warm):.1f}", limit)
    Console(highlight=False).print(table)
    facts = {"first": first, "warm": warm, "cores": os.cpu_count(), "load": os.getloadavg()}
    keep(RESULTS, facts)
    return judge(Verdict("warm rehearsal", tuple(row[WHOLE] for row in warm), LIMIT_S))


if __name__ == "__main__":
    sys.exit(main())

"""How much longer the example's rehearsal takes with monitoring, spec to certificate, with a node that dies: pairs of a
campaign with Prometheus and Alertmanager and one without, of which each is the first in turn.

Processor time is the whole machine's (`/proc/stat`), since a site's processes end unseen with their namespace: nothing
else may run meanwhile.

    python -m tests.bench.monitoring.rehearsed [--pairs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.parts.verdict import Verdict, judge
from tests.campaign.rehearsal import Rehearsal
from tests.results import results_of

RESULTS = results_of("bench", "monitoring-rehearsed")
LIMIT = 1.1


class Cost(NamedTuple):
    """What a campaign took, in seconds."""

    clock_s: float
    processor_s: float


def rehearsed(folder: Path, with_monitoring: bool) -> Cost:
    """Rehearse the example once and remove its site."""
    one = Rehearsal(folder, {"campaign": "monitored", "addons": {"prometheus": with_monitoring}})
    start_s, start_processor_s = time.monotonic(), _processor_s()
    done = one.run("run", str(one.path))
    took_s = time.monotonic() - start_s
    removed = one.run("down", "--all", "--yes")
    assert done.returncode == removed.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}{removed.stderr}"
    return Cost(took_s, _processor_s() - start_processor_s)


def _processor_s() -> float:
    """What all processors spent in user, nice, system and both interrupt times since the start (proc(5))."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields[:3] + fields[5:7]) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="monitored-") as text:
        for number in range(options.pairs):
            for with_monitoring in (True, False) if number % 2 else (False, True):
                folder = Path(text, f"{number}-{with_monitoring}")
                folder.mkdir()
                cost = rehearsed(folder, with_monitoring)
                costs[with_monitoring].append(cost)
                name = "with" if with_monitoring else "without"
                print(f"  {name:<8} {cost.clock_s:6.1f} s, processor {cost.processor_s:6.1f} s", flush=True)
    table = Table("", "with, median s", "without, median s", "ratio", box=None)
    for name in Cost._fields:
        medians = [statistics.median(getattr(cost, name) for cost in costs[which]) for which in (True, False)]
        table.add_row(name, *(f"{median:.1f}" for median in medians), f"{medians[0] / medians[1]:.3f}")
    Console(highlight=False).print(table)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    facts = {"with": costs[True], "without": costs[False], "cores": os.cpu_count(), "load": os.getloadavg()}
    RESULTS.write_text(json.dumps(facts, indent=1))
    clocks = {which: tuple(cost.clock_s for cost in costs[which]) for which in costs}
    return judge(Verdict("rehearsal with monitoring", clocks[True], LIMIT, "without", clocks[False]))


if __name__ == "__main__":
    sys.exit(main())

"""How long a person waits: `bivouac --help`, `status` of a campaign that trains, `down --all` of a living site.

The machine's own speed is in the same table: a bare start of the interpreter. `python -m tests.bench.commands`
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.parts.verdict import Verdict, judge
from tests.campaign.rehearsal import BIVOUAC, Rehearsal, until
from tests.results import keep, results_of
from tests.root import ROOT

RESULTS = results_of("bench", "commands")

TIMES = 9
LIMITS_S = {"--help": 0.4, "status": 2.0, "down --all": 20.0}
LONG = {"campaign": "timed", "training": {"steps": 5000}, "rehearsal": {"faults": []}}


def seconds(run: Callable[[], subprocess.CompletedProcess[str]]) -> float:
    begun = time.monotonic()
    done = run()
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stdout + done.stderr
    return took


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    bare = [sys.executable, "-c", ""]
    rows: dict[str, list[float]] = {"python -c ''": [], "--help": [], "status": [], "down --all": []}
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = Rehearsal(Path(folder), LONG)
        try:
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or rehearsal.step() >= 3, "training has begun")
            assert driver.poll() is None, rehearsal.log()
            for _ in range(TIMES):
                rows["python -c ''"].append(seconds(lambda: subprocess.run(bare, capture_output=True, text=True)))
                rows["--help"].append(
                    seconds(lambda: subprocess.run([*BIVOUAC, "--help"], cwd=ROOT, capture_output=True, text=True))
                )
                rows["status"].append(seconds(lambda: rehearsal.run("status", rehearsal.name)))
            rehearsal.kill(driver)
            rows["down --all"].append(seconds(lambda: rehearsal.run("down", "--all", "--yes")))
        finally:
            rehearsal.strike()
    table = Table("command", "runs", "median s", "longest s", "limit s", box=None)
    for name, took in rows.items():
        limit = LIMITS_S.get(name)
        table.add_row(
            name, str(len(took)), f"{statistics.median(took):.2f}", f"{max(took):.2f}", f"{limit}" if limit else ""
        )
    Console(highlight=False).print(table)
    keep(RESULTS, rows)
    return judge(*(Verdict(name, tuple(rows[name]), limit) for name, limit in LIMITS_S.items()))


if __name__ == "__main__":
    sys.exit(main())

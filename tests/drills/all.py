"""Drills one after the other, each a module of this folder; prints a table, exits 1 if any case failed.

Without options an hour, the kills, leaks and storage cases in full; `--whole` runs every drill in full, for hours.
`--record` writes what was seen into docs/drills.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from datetime import UTC, datetime

from rich.console import Console

from infra.console.tables import Listing
from tests.root import ROOT

CASES = {
    "leaks": (200, 200),
    "storage": (1000, 1000),
    "jobs": (200, 200),
    "kills_live": (68, 68),
    "kills": (8, 52),
    "input": (60, 200),
    "teardown": (3, 100),
    "consistency": (2, 32),
    "drift": (0, 40),
    "fleet": (30, 160),
    "campaigns": (200, 200),
    "kills_inside": (0, 6),
    "hold": (0, 2),
    "resume": (3, 50),
    "damage": (100, 1000),
    "data": (2, 20),
    "preflight": (0, 5),
}
"""Drill -> cases in an hour for all of them, and of its whole form."""
PAGE = ROOT / "docs/drills.md"
_LAST_LINE = re.compile(r"^drill (\S+): (\d+) cases, (\d+) failed, ([\d.]+) s$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drills", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="every case of every drill that is run")
    parser.add_argument("--count", type=int, help="cases of each drill that is run")
    parser.add_argument("--record", action="store_true", help=f"write the figures into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if unknown := set(options.drills) - set(CASES):
        parser.error(f"no drill called {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    console = Console(highlight=False)
    table = Listing("drill", "cases", "failed", "seconds", "seed")
    failed = False
    for drill in options.drills or CASES:
        # Whoever names a drill wants all of it.
        count = options.count or CASES[drill][options.whole or bool(options.drills)]
        if count == 0:
            table.row(drill, "left out", "", "", f"its {CASES[drill][1]} cases: DRILLS=--whole, or DRILLS={drill}")
            continue
        cases, bad, seconds = _run(drill, options.seed, count)
        failed = failed or bad != "0"
        table.row(drill, cases, bad, seconds, str(options.seed))
        if options.record:
            _record(drill, str(options.seed), cases, bad, seconds)
    table.show(console)
    return 1 if failed else 0


def _record(drill: str, *figures: str) -> None:
    """Replace the drill's row in the page: day, commit, seed, cases, failed, seconds."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    row = f"| {' | '.join((drill, f'{datetime.now(UTC):%Y-%m-%d}', commit.strip(), *figures))} |"
    page, rows = PAGE.read_text(), re.compile(rf"^\| {drill} \|.*$", re.MULTILINE)
    assert rows.search(page), f"{PAGE} has no row of {drill}"
    PAGE.write_text(rows.sub(row, page, count=1))


def _run(drill: str, seed: int, count: int) -> tuple[str, str, str]:
    """(cases, failed, seconds) as the drill's last line says; one that dies without it has failed."""
    begun = time.monotonic()
    command = [sys.executable, "-m", f"tests.drills.{drill}", "--seed", str(seed), "--count", str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)
        said += line
    code = process.wait()
    found = _LAST_LINE.search(said)
    if found is None or (code != 0 and found.group(3) == "0"):
        return str(count), f"exit code {code}", f"{time.monotonic() - begun:.0f}"
    return found.group(2), found.group(3), found.group(4)


if __name__ == "__main__":
    sys.exit(main())

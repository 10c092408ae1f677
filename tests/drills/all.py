"""All drills one after the other, each a script of this folder; prints a table, exits 1 if any case failed."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
CASES = {
    "leaks": 200,
    "storage": 1000,
    "input": 200,
    "kills": 52,
    "kills_live": 68,
    "kills_inside": 6,
    "drift": 40,
    "teardown": 100,
    "consistency": 32,
    "fleet": 160,
    "resume": 50,
    "damage": 1000,
    "data": 20,
}
"""Drill -> cases of its long form."""
_LAST_LINE = re.compile(r"^drill (\S+): (\d+) cases, (\d+) failed, ([\d.]+) s$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drills", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="part of the long form's cases")
    asked = parser.parse_args()
    if unknown := set(asked.drills) - set(CASES):
        parser.error(f"no drill called {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    console = Console(highlight=False)
    table = Table("drill", "cases", "failed", "seconds", "seed", box=None)
    failed = False
    for drill in asked.drills or CASES:
        count = max(1, round(CASES[drill] * asked.share))
        cases, bad, seconds = _run(drill, asked.seed, count)
        failed = failed or bad != "0"
        table.add_row(drill, cases, bad, seconds, str(asked.seed))
    console.print(table)
    return 1 if failed else 0


def _run(drill: str, seed: int, count: int) -> tuple[str, str, str]:
    """(cases, failed, seconds) as the drill's last line says; one that dies without it has failed."""
    begun = time.monotonic()
    command = [sys.executable, str(FOLDER / f"{drill}.py"), "--seed", str(seed), "--count", str(count)]
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

"""Seconds from a node's death to the first new step, of any campaigns side by side: the reports say it.

    python -m tests.bench.parts.node_death REPORT.json REPORT.json

A report lies in the results of a campaign, whatever its target: `results/000000000000-kubernetes/NAME/report.json` is
one of somebody's cluster. The parts are sums of one row: from the gang's last step to the decision, from there to the
attempt that made the next step, and from its launch to that step. Attempts that made none lie in the second part.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Death:
    """A death of one node or more at once, in seconds."""

    campaign: str
    decided_s: float
    """From the last step of the gang until the record has the end of its attempt."""
    waited_s: float
    """Until the next attempt that made a step was launched: nodes that come, or an attempt that did not start."""
    started_s: float
    """Until its first step."""
    repeated: int
    """Steps that were made twice."""

    @property
    def whole_s(self) -> float:
        return self.decided_s + self.waited_s + self.started_s


def deaths(report: dict[str, Any]) -> list[Death]:
    """The deaths that a step followed. Raises `KeyError` for what is no report."""
    rows = report["attempts"]
    found = []
    for number, row in enumerate(rows):
        if row["failure"] != "node" or row["last_step_s"] is None:
            continue
        after = next((later for later in rows[number + 1 :] if later["first_step_s"] is not None), None)
        if after is None:
            continue
        decided, waited = row["ended_s"] - row["last_step_s"], after["launched_s"] - row["ended_s"]
        started = after["first_step_s"] - after["launched_s"]
        found.append(Death(_name(report), decided, waited, started, after["repeated"]))
    return found


def _name(report: dict[str, Any]) -> str:
    return str(report["campaign"])


def main(paths: list[str]) -> int:
    table = Table("campaign", "decided s", "waited s", "started s", "whole s", "steps twice", box=None)
    count = 0
    for path in paths:
        for row in deaths(json.loads(Path(path).read_text())):
            seconds = (row.decided_s, row.waited_s, row.started_s, row.whole_s)
            table.add_row(row.campaign, *(f"{value:.1f}" for value in seconds), str(row.repeated))
            count += 1
    Console(highlight=False).print(table)
    return 0 if count else 69


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

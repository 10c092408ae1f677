"""How long a person waits after a mended source: `bivouac relaunch NAME` on a held, warm cluster, from the command to
the first step of the new attempt on all nodes. The peer is a cold torchrun of the same script, to its first step.

Each round's source ends as a slip does, ten steps further on, and the cluster is held again. It needs a whole
rehearsal.

    python -m tests.bench.relaunch [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.parts.verdict import Verdict, judge
from tests.campaign.rehearsal import Rehearsal, until
from tests.results import keep, results_of
from tests.root import ROOT

RESULTS = results_of("bench", "relaunch")
LIMIT_S = 60.0
EXAMPLE = ROOT / "trainer/examples/ddp"
APART = 10
"""Steps between two slips; the script saves as often."""
LOOP = "    for step in range(start + 1, STEPS + 1):\n"
STEPS = ("relaunched", "attempt.launched", "attempt.running")
"""Events between the command and the first step."""
HELD = re.compile(r"held until [^,\n]+ at ")
"""In the driver's note of it; its line of progress goes on otherwise."""


def slip(source: Path, step: int) -> None:
    """Let the script end at this step with the code of a user's error."""
    text = (EXAMPLE / "train.py").read_text()
    assert LOOP in text, "the slip has lost its place"
    (source / "train.py").write_text(
        text.replace(LOOP, f"{LOOP}        if step == {step}:\n            sys.exit(64)\n")
    )


def cold(source: Path) -> float:
    """Seconds of a torchrun by itself, to its first step."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29517", "train.py", "3", "0"]
    begun = time.monotonic()
    environment = {**os.environ, "BIVOUAC_CHECKPOINTS": str(source / "checkpoints")}
    with subprocess.Popen([sys.executable, *words], cwd=source, env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        line = run.stdout.readline()
        took = time.monotonic() - begun
        assert json.loads(line)["step"] == 1, line
        run.stdout.read()
    shutil.rmtree(source / "checkpoints", ignore_errors=True)
    return took


def held(one: Rehearsal, driver: subprocess.Popen[str], holds: int) -> None:
    """Wait for the driver's word that the cluster is held for the so manieth time, and end it. Its log is looked at:
    a question to the record would take a processor from what is measured."""

    def said() -> bool:
        assert driver.poll() is None, f"the driver ended with {driver.returncode}: {one.log()[-2000:]}"
        return len(HELD.findall(one.log())) >= holds

    until(said, f"hold {holds}")
    driver.send_signal(signal.SIGINT)
    driver.wait()


def relaunched(one: Rehearsal, holds: int) -> dict[str, float]:
    """Relaunch; return the seconds from the command to each event up to the first step."""
    begun = time.time()
    held(one, one.start("relaunch", one.name, "--yes"), holds)
    when = [(event["kind"], datetime.fromisoformat(event["at"]).timestamp() - begun) for event in one.events()]
    return {kind: next(after for what, after in when if what == kind and after > 0) for kind in STEPS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="relaunch-") as text:
        source = Path(text) / "source"
        source.mkdir()
        slip(source, APART + 5)
        changes: dict[str, Any] = {
            "campaign": "relaunched", "on_stop": "hold", "hold_for": "60m", "rehearsal": {"faults": []},
            "workload": {"source": str(source), "args": ["5000", "0.1"], "estimates": {"steps": 5000}},
        }  # fmt: skip
        one = Rehearsal(Path(text), changes, base="trainer/examples/ddp/rehearsal.yaml")
        os.environ["BIVOUAC_CACHE"] = str(one.cache)
        try:
            held(one, one.start(), 1)
            for number in range(2, options.rounds + 2):
                slip(source, APART * number + 5)
                for name, seconds in (relaunched(one, number) | {"cold torchrun": cold(source)}).items():
                    rows.setdefault(name, []).append(round(seconds, 2))
                    print(f"  {name:<20} {seconds:6.1f} s", flush=True)
        finally:
            one.strike()
    return told(rows)


def told(rows: dict[str, list[float]]) -> int:
    medians = {name: statistics.median(several) for name, several in rows.items()}
    table = Table("from the command to", "rounds", "median s", "longest s", "limit s", box=None)
    for name, took in rows.items():
        limit = f"{LIMIT_S:.0f}" if name == STEPS[-1] else ""
        table.add_row(name, str(len(took)), f"{medians[name]:.1f}", f"{max(took):.1f}", limit)
    Console(highlight=False).print(table)
    keep(RESULTS, {"rows": rows, "cores": os.cpu_count(), "load": os.getloadavg()})
    return judge(Verdict("relaunch to a step", tuple(rows[STEPS[-1]]), LIMIT_S))


if __name__ == "__main__":
    sys.exit(main())

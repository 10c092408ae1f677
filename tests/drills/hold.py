"""Held campaigns on a live site: one goes on with mended code on the warm nodes, one is ended by its hold's own end.

Each runs from a clone of its own, whose learning rate turns infinite after 24 steps, as a slip in the code would do it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.rehearsal import Rehearsal, quick
from tests.drills.parts.struck import environ_restored, until
from tests.results import conclude, results_of
from tests.root import ROOT

SPEC = quick(
    40,
    training={
        "optimizer": {"learning_rate": 3.0e-3, "minimum_learning_rate": 3.0e-4, "warmup_steps": 20},
        "evaluate_every": 20,
    },
    on_stop="hold",
)
PLACE = "trainer/builtin/engine.py"
SOUND = "    span = config.learning_rate - config.minimum_learning_rate\n"
SLIPPED = "    span = (config.learning_rate - config.minimum_learning_rate) * (1.0 if step < 24 else math.inf)\n"
WITHIN_S = 2400.0
RESULTS = results_of("drills", "hold")


def cloned(folder: Path) -> tuple[Path, Path]:
    """The working tree's own files in a folder, with a slip; also the slipped file."""
    named = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, named.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    slipped = folder / PLACE
    text = slipped.read_text()
    assert SOUND in text, "the slip has lost its place"
    slipped.write_text(text.replace(SOUND, SLIPPED))
    return folder, slipped


def mended_code(held: Rehearsal, slipped: Path) -> dict[str, Any]:
    driver = held.start()
    until(lambda: driver.poll() is not None or held.status().get("hold"), "the cluster is held", within_s=WITHIN_S)
    assert driver.poll() is None, f"the driver ended with {driver.returncode}: {held.log()[-1200:]}"
    driver.send_signal(signal.SIGINT)
    driver.wait(60)
    slipped.write_text(slipped.read_text().replace(SLIPPED, SOUND))
    done = held.run("relaunch", held.name, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    events = held.events()
    relaunched = next(event["data"] for event in events if event["kind"] == "relaunched")
    baked = next(
        event["data"]["outputs"]
        for event in events
        if event["kind"] == "stage.finished" and event["data"]["stage"] == "bake"
    )
    assert relaunched["diff"] == [] and relaunched["bake"]["code"] != baked["code"], relaunched
    ran = [event["data"]["nodes"] for event in events if event["kind"] == "attempt.running"]
    assert set(ran[-1]) == set(ran[0]), "no new node was paid for"
    finished = next(event["data"] for event in events if event["kind"] == "training.finished")
    assert (finished["outcome"], finished["committed_step"]) == ("done", 40), finished
    return {"image": relaunched["bake"]["image"], "from_step": relaunched["committed_step"], **clean(events)}


def own_end(held: Rehearsal, slipped: Path) -> dict[str, Any]:
    driver = held.start()
    until(lambda: driver.poll() is not None, "the hold has ended and the campaign is torn down", within_s=WITHIN_S)
    events = held.events()
    kinds = [event["kind"] for event in events]
    assert "held" in kinds and "relaunched" not in kinds, kinds
    archived = next(event["data"] for event in events if event["kind"] == "archive.verified")
    assert archived["step"] == 20, archived
    assert kinds.index("held") < kinds.index("archive.verified") < kinds.index("certified"), kinds
    return {"exit_code": driver.returncode, "archived": archived["step"], **clean(events)}


def clean(events: list[dict[str, Any]]) -> dict[str, Any]:
    verdicts = [event["data"]["clean"] for event in events if event["kind"] == "certified"]
    assert verdicts == [True], f"certificates: {verdicts}"
    return {"clean": True}


CASES: tuple[tuple[str, str, Callable[[Rehearsal, Path], dict[str, Any]]], ...] = (
    ("mended code", "20m", mended_code),
    ("the hold's own end", "30s", own_end),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="taken, and without meaning here")
    parser.add_argument("--count", type=int, default=len(CASES))
    parser.add_argument("--only", default="", help="cases with this in their name")
    options = parser.parse_args()
    rows, begun = list[dict[str, Any]](), time.monotonic()
    cases = [one for one in CASES if options.only in one[0]]
    for number in range(min(options.count, len(cases)) if options.only else options.count):
        name, hold_for, case = cases[number % len(cases)]
        row: dict[str, Any] = {"case": name, "failure": None}
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hold-") as folder, environ_restored():
            root, slipped = cloned(Path(folder) / "clone")
            rehearsal = Rehearsal(Path(folder), SPEC | {"campaign": f"held{number}", "hold_for": hold_for}, root)
            os.environ["BIVOUAC_CACHE"] = str(rehearsal.cache)  # this process looks into the site too, and strikes it
            try:
                row |= case(rehearsal, slipped)
            except Exception as error:
                row["failure"] = f"{type(error).__name__}: {error}"[:1500]
                RESULTS.parent.mkdir(parents=True, exist_ok=True)
                RESULTS.with_name(f"hold-{number}.log").write_text(rehearsal.log())
            finally:
                rehearsal.strike()
        row["seconds"] = round(time.monotonic() - started, 1)
        rows.append(row)
        print(f"{name:20} {row['seconds']:6.1f} s  {row['failure'] or 'ok'}", flush=True)
    failed = sum(row["failure"] is not None for row in rows)
    return conclude(RESULTS, rows, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())

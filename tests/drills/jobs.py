"""Jobs drawn from habits, under real supervisors whose nodes are lost: each is given what it would itself restore.

    .venv/bin/python -m tests.drills.jobs --seed 1 --count 200

A script saves in a drawn format, naming, place and rights, prints and counts in its own way, and loses its node at a
drawn moment, up to three times; some sealed steps are damaged. It keeps a ledger of its own. The oracle: each attempt
is given the newest checkpoint that was committed and not damaged, or one that is newer and whole, byte for byte;
nothing else of the job is gone; no step goes back; the end is told truly; at the end the newest checkpoint is sealed,
and all that is none stands among the unrecognised. `--only N` runs a single case and keeps its folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.drills.parts import jobs_oracle
from tests.drills.parts.jobs_habits import draw
from tests.results import results_of
from tests.root import ROOT
from tests.trainer.supervisor.histories import PATIENCE_S, Case, History

RESULTS = results_of("drills", "jobs")
SCRIPT = (ROOT / "tests/drills/parts/jobs_script.py").read_text()
AT_ONCE = 6
"""A case waits for seals most of its time."""
CLIENT = {"PYTHONPATH": str(ROOT / "trainer/client")}


_LOST = {-9}
"""Exit code of a supervisor whose node was lost."""


def damage(chance: random.Random, history: History, how: str) -> int:
    """Spoil the newest sealed step; return it, by its content."""
    newest = max(history.last.sealed)
    step = jobs_oracle.step_in(history.last.sealed[newest])
    place = history.camp.tier / f"step-{newest:08d}"
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.stat().st_size]
    victim = place / "manifest.json" if how == "manifest" else chance.choice(files)
    content = bytearray(victim.read_bytes())
    victim.unlink()  # its other names, if it has any, keep their bytes
    if how == "cut":
        victim.write_bytes(content[:-1])
    elif how != "unlink":
        content[chance.randrange(len(content))] ^= 1
        victim.write_bytes(content)
    return step


def play(chance: random.Random, plan: dict[str, Any], folder: Path, patience_s: float) -> tuple[list[str], str]:
    """Return what was wrong, and what became of the newest checkpoint."""
    folder.mkdir()
    plan["ledgers"] = [str(folder / f"ledger-{rank}.jsonl") for rank in range(plan["nodes"])]
    (folder / "plan.json").write_text(json.dumps(plan))
    spec = dict(plan["spec"])
    expected = plan["steps"] * (2 if plan["ending"] == "early" else 1)
    case = Case(
        SCRIPT, expected, spec.pop("format"), more={**spec, "save_every": plan["every"]}, keep=3,
        words=(str(folder / "plan.json"),), env=CLIENT, prelude="", nodes=plan["nodes"], has_disks=plan["nodes"] > 1,
    )  # fmt: skip
    history = History(case, folder / "camp", patience_s, jobs_oracle.step_in)
    damaged: dict[int, int] = {}
    for number, orders in enumerate(plan["attempts"], 1):
        dying = ("-m", "tests.drills.parts.jobs_dying", *map(str, orders["sealing"]))
        done = history.attempt(dying if orders["sealing"] else ())
        if set(done.codes) != _LOST or number == len(plan["attempts"]):
            break
        if (rank := plan["attempts"][number]["new_disk"]) >= 0:
            shutil.rmtree(history.folders[rank].parent)
            (folder / f"new-disk-{rank}").touch()
        if plan["damage"].get("after") == number and len(done.sealed) > 1:
            damaged[number] = damage(chance, history, plan["damage"]["how"])
    judge, *others = (jobs_oracle.Judge(history, ledger, plan, damaged) for ledger in jobs_oracle.read(plan["ledgers"]))
    for attempt in history.attempts:
        for each in (judge, *others):
            each.resumed(attempt)
        judge.told(attempt)
    judge.faults += [f"rank 1: {fault}" for other in others for fault in other.faults]
    if set(history.last.codes) == _LOST:
        judge.faults.append("the node was lost in the last attempt too")
        return judge.faults, "nothing"
    judge.end(history.last)
    became = judge.sealed_or_told(history.last)
    if became == "sealed" and plan["link"] != "beside" and chance.random() < 0.3:
        judge.came_back(*restarted(history, plan, folder))
    return judge.faults, became


def restarted(history: History, plan: dict[str, Any], folder: Path) -> tuple[jobs_oracle.Ledger, int]:
    """Start the job once more on a copy of the sealed steps alone; return its ledger, and the attempt's number."""
    ledgers = [ledger.replace("ledger-", "again-") for ledger in plan["ledgers"]]
    for ledger, copy in zip(plan["ledgers"], ledgers, strict=True):
        shutil.copy(ledger, copy)
    (folder / "again.json").write_text(json.dumps({**plan, "ledgers": ledgers}))
    attempt = history.copy(new_disk=True, words=(str(folder / "again.json"),)).attempt()
    return jobs_oracle.read(ledgers)[0], attempt.number


def case(work: Path, seed: int, number: int, kind: str, patience_s: float) -> dict[str, Any]:
    chance, begun = random.Random(f"{seed}/{number}"), time.monotonic()
    plan, folder = draw(chance, kind), work / f"case-{number}"
    try:
        faults, became = play(chance, plan, folder, patience_s)
    except Exception as failure:
        faults, became = [f"{type(failure).__name__}: {failure}: {traceback.format_exc()[-600:]}"], "nothing"
    moments = "+".join(orders["moment"] for orders in plan["attempts"][:-1])
    return {
        "case": number, "kind": plan["kind"], "name": plan["name"], "format": plan["spec"]["format"],
        "printing": plan["printing"], "noise": plan["noise"], "link": plan["link"], "moments": moments,
        "damage": plan["damage"].get("how", ""), "became": became, "faults": faults,
        "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", type=int, help="run one case and keep its folder")
    parser.add_argument("--kind", default="", help="draw this kind of checkpoint only")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds that a script waits for a seal")
    options = parser.parse_args()
    memory = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)
    work, started, rows = Path(tempfile.mkdtemp(prefix="bivouac-drill-jobs-", dir=memory)), time.monotonic(), []
    numbers = range(options.count) if options.only is None else [options.only]
    try:
        with ThreadPoolExecutor(options.at_once) as beside:
            asked = (options.seed, options.kind, options.patience)
            running = [beside.submit(case, work, asked[0], number, asked[1], asked[2]) for number in numbers]
            for future in running:
                row = future.result()
                rows.append(row)
                verdict = f"FAILED {' | '.join(row['faults'])}" if row["faults"] else row["became"]
                words = [row[name] for name in ("kind", "format", "name", "printing", "noise", "link", "moments")]
                spoilt = f" · {row['damage']}" if row["damage"] else ""
                print(f"{row['case']:4} {' · '.join(word or '-' for word in words)}{spoilt}: {verdict}", flush=True)
                if options.only is None:
                    shutil.rmtree(work / f"case-{row['case']}", ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True) if options.only is None else print(f"kept: {work}")
    seconds, failed = time.monotonic() - started, sum(bool(row["faults"]) for row in rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"seed": options.seed, "seconds": round(seconds, 1), "rows": rows}, indent=1))
    for kind, count in sorted(collections.Counter(row["kind"] for row in rows).items()):
        bad = sum(bool(row["faults"]) for row in rows if row["kind"] == kind)
        print(f"{kind:22} {count:4} cases, {bad} failed")
    print(f"drill jobs: {len(rows)} cases, {failed} failed, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

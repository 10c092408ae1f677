"""Seeded faults in every copy of one file of a checkpoint: all of them refused before anything of it is loaded.

    .venv/bin/python -m tests.drills.damage --seed 1 --count 1000

A flipped bit in one byte, a truncation, another sound file in its place (of another rank, of another kind), or a stale
one (the same file of an earlier step), in a shard or in the manifest, on every tier alike, so that no sound copy is
left. The step must be refused by name on each of them, and every rank must hold the step before it, bit for bit.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"

import torch

from tests.drills.parts.storage_damage import cut, flip, swap
from tests.drills.parts.storage_gang import Camp, Orders, run_attempt
from tests.results import conclude, results_of

RESULTS = results_of("drills", "damage")

LAYOUTS = ((1, 1), (2, 1), (2, 2), (3, 1))
"""(ranks, ranks per node)"""
OLD, NEW = 20, 30
KINDS = ("flip", "cut", "swap", "stale")


def template(work: Path, ranks: int, per_node: int) -> Camp:
    camp = Camp(work / f"template-{ranks}-{per_node}", ranks, per_node)
    if not camp.root.exists():
        camp.root.mkdir()
        codes = run_attempt(camp, Orders(1, (10, OLD, NEW)))
        if codes != [0] * ranks:
            raise AssertionError(f"the template's run failed: {codes}")
    return camp


def damage(chance: random.Random, camp: Camp) -> tuple[str, str]:
    """Every copy of one file of the newest step; what was done, and the file's path in the step's folder."""
    copies: dict[str, list[Path]] = collections.defaultdict(list)
    for path in sorted(camp.root.glob(f"*/tiny/step-{NEW:08d}/**/*")):
        if path.is_file():
            copies[str(path.relative_to(_step(path)))].append(path)
    kind = chance.choice(KINDS)
    name = chance.choice(sorted(copies))
    if kind == "stale" and _stale(copies[name][0]).read_bytes() == copies[name][0].read_bytes():
        kind = "swap"  # such as the state of a generator that nothing has drawn from
    whole = copies[name][0].read_bytes()
    others = [paths[0] for other, paths in sorted(copies.items()) if paths[0].read_bytes() != whole]
    other = chance.choice(others)
    held = whole, other.read_bytes(), _stale(copies[name][0]).read_bytes()
    spare = camp.root / "spare"
    for path in copies[name]:
        spare.write_bytes(held[2] if kind == "stale" else held[1])
        {"flip": flip, "cut": cut, "swap": swap, "stale": swap}[kind](chance, path, spare)
    spare.unlink()
    return kind, name


def _step(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name.startswith("step-"))


def _stale(path: Path) -> Path:
    step = _step(path)
    return step.with_name(f"step-{OLD:08d}") / path.relative_to(step)


def judge(camp: Camp, name: str) -> str:
    """What the next attempt did wrong; empty when it refused the step and went on from the one before."""
    codes = run_attempt(camp, Orders(2))
    if codes != [0] * camp.ranks:
        return f"codes {codes}: {camp.events(2, 'ended')}"
    loaded = camp.events(2, "restored")
    if {(event["step"], event["sound"]) for event in loaded} != {(OLD, True)} or len(loaded) != camp.ranks:
        return f"loaded {loaded}"
    refused = [e for e in camp.events(2, "refused_shard") if (e["step"], e["file"]) == (NEW, name)]
    unsaid = {"local", "shared"} - {event["tier"] for event in refused}
    return f"refused without a word on {', '.join(sorted(unsaid))}" if unsaid else ""


def case(work: Path, seed: int, number: int) -> dict[str, Any]:
    chance, begun = random.Random(f"{seed}/{number}"), time.monotonic()
    ranks, per_node = chance.choice(LAYOUTS)
    pristine = template(work, ranks, per_node)
    camp = replace(pristine, root=work / f"case-{number}")
    shutil.copytree(pristine.root, camp.root)
    kind, name, wrong = "", "", ""
    try:
        kind, name = damage(chance, camp)
        wrong = judge(camp, name)
    except Exception as failure:
        wrong = str(failure) or traceback.format_exc()[-600:]
    shutil.rmtree(camp.root)
    seconds = round(time.monotonic() - begun, 3)
    layout = f"{ranks}x{per_node}"
    return {"case": number, "kind": kind, "file": name, "layout": layout, "error": wrong, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # In memory where that can be: no case needs a disk, and fsync would be most of its time.
    memory = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)
    work, started, rows = Path(tempfile.mkdtemp(prefix="bivouac-drill-damage-", dir=memory)), time.monotonic(), []
    try:
        for number in range(options.count):
            row = case(work, options.seed, number)
            rows.append(row)
            verdict = f"FAILED {row['error']}" if row["error"] else "refused"
            print(f"{number:5} {row['kind']:6} {row['layout']} {row['file']:60} {verdict}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    seconds, failed = time.monotonic() - started, sum(bool(row["error"]) for row in rows)
    for (kind, what), count in sorted(collections.Counter((row["kind"], _what(row["file"])) for row in rows).items()):
        print(f"{kind:6} {what:20} {count}")
    return conclude(
        RESULTS, {"seed": options.seed, "seconds": round(seconds, 1), "rows": rows}, len(rows), failed, started
    )


def _what(file: str) -> str:
    name = file.rpartition("/")[2]
    return next((word for word in ("manifest", "model", "optim", "rng") if word in name), name)


if __name__ == "__main__":
    sys.exit(main())

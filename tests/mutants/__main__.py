"""Mutation testing of the modules where money or data hang: prints a table, writes docs/mutants.md when it is whole.

Without options a seeded sample of each module. What was tried is kept below results/mutants and taken up again while
module and tests are the same. Exits 1 when a module is below 90 % or a listed survivor is no mutant any more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from infra.console.tables import Listing
from tests.mutants.operators import Mutant, mutants
from tests.mutants.trial import BROKEN, ENDLESS, KILLED, SURVIVED, attempt, warm

ROOT = Path.cwd()
FOLDER = ROOT / "tests" / "mutants"
RESULTS = ROOT / "results" / "mutants"
PAGE = ROOT / "docs" / "mutants.md"
SAMPLE, GOAL = 30, 0.9


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--module", action="append", default=[], metavar="FILE", help="this one; may be repeated")
    parser.add_argument("--whole", action="store_true", help="every mutant, not a sample")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"mutants of each module, default {SAMPLE}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--survivors", action="store_true", help="only those that survived when they were tried last")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="modules at a time")
    parser.add_argument("--try", dest="trying", help=argparse.SUPPRESS)
    options = parser.parse_args()
    table: dict[str, list[str]] = yaml.safe_load((FOLDER / "modules.yaml").read_text())
    if unknown := set(options.module) - set(table):
        parser.error(f"not in the table: {', '.join(sorted(unknown))}; there are {', '.join(table)}")
    if options.trying:
        return _try(options.trying, table[options.trying], options)
    chosen = options.module or list(table)
    with ThreadPoolExecutor(options.workers) as workers:
        codes = list(workers.map(_start, chosen))
    rows = [Row(module) for module in chosen]
    _show(rows)
    if all((RESULTS / f"{_flat(module)}.json").exists() for module in table):
        _write_page([Row(module) for module in table])
    return int(any(codes) or any(row.bad for row in rows))


class Row:
    """What is known of one module's mutants: all there are, what was tried, and what is listed as harmless."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.all = mutants((ROOT / module).read_text())
        self.listed = _harmless(module)
        self.stale = [entry for entry in self.listed if entry not in {_name(mutant) for mutant in self.all}]
        self.record = _record(module)
        tried = {name: self.record["tried"][name] for name in map(_name, self.all) if name in self.record["tried"]}
        self.tried = {name: said for name, said in tried.items() if said[0] != BROKEN}
        self.needless = [name for name in self.listed if self.tried.get(name, [""])[0] == KILLED]
        judged = {name: said for name, said in self.tried.items() if name not in self.listed or name in self.needless}
        self.killed = [name for name, said in judged.items() if said[0] in (KILLED, ENDLESS)]
        self.survived = {name: said[1] for name, said in judged.items() if said[0] == SURVIVED}

    @property
    def score(self) -> float:
        judged = len(self.killed) + len(self.survived)
        return len(self.killed) / judged if judged else 1.0

    @property
    def bad(self) -> bool:
        return bool(self.stale) or self.score < GOAL

    def cells(self) -> tuple[str, ...]:
        counts = (len(self.all), len(self.tried), len(self.killed), len(self.survived), len(self.listed))
        return self.module, *map(str, counts), f"{self.score:.0%}"

    def tell(self) -> None:
        for place, change in self.stale:
            print(f"{self.module}: listed as harmless and no mutant any more: {place}: {change}")
        for place, change in self.needless:
            print(f"{self.module}: listed as harmless though a test notices: {place}: {change}")
        for (place, change), why in self.survived.items():
            print(f"{self.module}: survived ({why}): {place}: {change}")


def _start(module: str) -> int:
    """Try a module's mutants in a process of its own, which tells as it goes."""
    return subprocess.run([sys.executable, "-m", "tests.mutants", *sys.argv[1:], "--try", module], cwd=ROOT).returncode


def _try(module: str, tests: list[str], asked: argparse.Namespace) -> int:
    found = mutants((ROOT / module).read_text())
    record, harmless = _record(module), _harmless(module)
    todo = _picked(module, found, asked)
    if asked.survivors:
        todo = [mutant for mutant in found if record["tried"].get(_name(mutant), [""])[0] == SURVIVED]
    elif record["tests"] != _digest(tests):
        record["tried"] = {}
    record["tests"] = _digest(tests)
    known = {} if asked.survivors else record["tried"]
    todo = [mutant for mutant in todo if _name(mutant) not in known and (asked.whole or _name(mutant) not in harmless)]
    if not todo:
        return _keep(module, record)
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    seen = warm(name, ROOT / module, tests)
    if seen.failed:
        print(f"{module}: these tests fail on the sound module and are left out: {', '.join(seen.failed)}", flush=True)
    for number, mutant in enumerate(todo, 1):
        what, why = attempt(name, ROOT / module, mutant, seen)
        record["tried"][_name(mutant)] = [what, why]
        _keep(module, record)
        if what == SURVIVED or number % 10 == 0 or number == len(todo):
            print(f"{module} {number}/{len(todo)} {what}: {mutant.place}: {mutant.change}"[:300], flush=True)
    return 0


def _picked(module: str, found: list[Mutant], asked: argparse.Namespace) -> list[Mutant]:
    if asked.whole or len(found) <= asked.sample:
        return found
    picked = random.Random(f"{asked.seed} {module}").sample(range(len(found)), asked.sample)
    return [found[index] for index in sorted(picked)]


def _name(mutant: Mutant) -> tuple[str, str]:
    return mutant.place, mutant.change


def _harmless(module: str) -> dict[tuple[str, str], str]:
    listed = yaml.safe_load((FOLDER / "harmless.yaml").read_text()).get(module, [])
    return {(entry["place"], entry["change"]): entry["reason"] for entry in listed}


def _record(module: str) -> dict[str, Any]:
    """What was tried of the module as it is now."""
    source = hashlib.sha256((ROOT / module).read_bytes()).hexdigest()
    path = RESULTS / f"{_flat(module)}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("source") != source:
        return {"source": source, "tests": "", "tried": {}}
    return kept | {"tried": {(place, change): said for place, change, *said in kept["tried"]}}


def _keep(module: str, record: dict[str, Any]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{_flat(module)}.json"
    tried = [[*name, *said] for name, said in record["tried"].items()]
    path.with_suffix(".new").write_text(json.dumps(record | {"tried": tried}, indent=0))
    path.with_suffix(".new").replace(path)
    return 0


def _digest(tests: list[str]) -> str:
    return hashlib.sha256(b"".join((ROOT / test).read_bytes() for test in tests)).hexdigest()


def _flat(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def _show(rows: list[Row]) -> None:
    table = Listing("module", ">mutants", ">tried", ">killed", ">survived", ">harmless", ">score")
    for row in rows:
        table.row(*row.cells())
    for row in rows:
        row.tell()
    table.show(Console(highlight=False))


def _write_page(rows: list[Row]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    lines = [
        "# Mutation testing",
        "",
        f"Written by `make mutants` on {datetime.now(UTC):%Y-%m-%d} at commit {commit.strip()}. A mutant is one",
        "small change of a module where money or data hang; it is killed when a test of `make test` fails on it, or",
        "runs on without end. Harmless are those that `tests/mutants/harmless.yaml` lists with a reason; the score",
        "leaves them out. A mutant is seen by a test, its forks and each Python that it starts.",
        "",
        "| module | mutants | tried | killed | survived | harmless | score |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
        "",
        "`make mutants` tries a seeded sample of 30 of each module, `MUTANTS=--whole` every mutant,",
        "`MUTANTS='--module FILE'` one module, `MUTANTS=--survivors` what survived when it was tried last.",
    ]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())

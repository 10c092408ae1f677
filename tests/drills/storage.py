"""Seeded storage kills, corruptions, power losses and archives: none loaded that is unsound, none lost.

    .venv/bin/python -m tests.drills.storage --seed 1 --count 1000

One case is drawn by `--seed` and its number alone; `--only N` runs a single one again and keeps its folder.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"

import torch

from tests.drills.parts import storage_archive, storage_lost
from tests.drills.parts.storage_damage import expected, inflict
from tests.drills.parts.storage_gang import NOBODY, Camp, Orders, run_attempt
from tests.drills.parts.storage_operations import Count, KillAt, install
from tests.drills.parts.storage_power import Announcing, Disk, Recorder, read_record
from tests.results import conclude, results_of
from trainer.contract import COMMITTED_NAME, step_of_folder

RESULTS = results_of("drills", "storage")

FIRST = (10, 20, 30)
NEXT = (40, 50, 60)
LAYOUTS = ((2, 1), (2, 2), (1, 1), (3, 1))
"""(ranks, ranks per node)"""


@dataclass
class Case:
    """A case's own folder and chance."""

    number: int
    kind: str
    folder: Path
    chance: random.Random
    detail: str = ""
    phase: str = ""


class Drill:
    """Templates are made once; each case works on a copy."""

    def __init__(self, work: Path, seed: int, only_kind: str | None) -> None:
        self.work, self.seed, self.only_kind = work, seed, only_kind
        self._templates: dict[tuple[int, int], Camp] = {}
        self._operations: dict[tuple[Any, ...], dict[str, list[int]]] = {}
        self._records: dict[bool, list[tuple[str, str, str, bytes]]] = {}
        self.archive = storage_archive.Archives(work / "archives")
        self.kinds: dict[str, Callable[[Case], None]] = {
            "kill": self.kill,
            "damage": self.damage,
            "power": self.power,
            "archive": self.archive_case,
            "lost": self.lost,
        }

    def run(self, number: int) -> dict[str, Any]:
        chance = random.Random(f"{self.seed}/{number}")
        kind = chance.choices(list(self.kinds), (35, 30, 20, 15, 5))[0]
        kind = self.only_kind or kind
        case = Case(number, kind, self.work / f"case-{number}", chance)
        case.folder.mkdir()
        started, error = time.monotonic(), ""
        try:
            self.kinds[kind](case)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}" if str(failure) else traceback.format_exc()[-600:]
        seconds = round(time.monotonic() - started, 3)
        return {
            "case": number,
            "kind": kind,
            "phase": case.phase,
            "detail": case.detail,
            "ok": not error,
            "error": error,
            "seconds": seconds,
        }

    def template(self, ranks: int, per_node: int) -> Camp:
        key = (ranks, per_node)
        if key not in self._templates:
            camp = Camp(self.work / f"template-{ranks}-{per_node}", ranks, per_node)
            camp.root.mkdir()
            _insist(run_attempt(camp, Orders(1, FIRST)) == [0] * ranks, f"the template's run failed: {camp.root}")
            self._templates[key] = camp
        return self._templates[key]

    def copy(self, case: Case, ranks: int, per_node: int) -> Camp:
        camp = replace(self.template(ranks, per_node), root=case.folder / "camp")
        shutil.copytree(self.template(ranks, per_node).root, camp.root)
        return camp

    def kill(self, case: Case) -> None:
        """One rank, or all of them, die before an operation; the next attempt goes on from the newest commit."""
        camp = self.copy(case, *case.chance.choice(LAYOUTS))
        drained = case.chance.random() < 0.7
        orders = Orders(2, NEXT, drained)
        phases = self._count(camp, orders)
        victims = list(range(camp.ranks)) if case.chance.random() < 0.3 else [case.chance.randrange(camp.ranks)]
        # By phase first: most operations are writes.
        numbers = {rank: case.chance.choice(phases[case.chance.choice(sorted(phases))]) for rank in victims}
        said = {rank: case.folder / f"killed-{rank}" for rank in victims}

        def sabotage(rank: int) -> None:
            if rank in numbers:
                install(KillAt(camp.root, numbers[rank], said[rank]))

        codes = run_attempt(camp, replace(orders, sabotage=sabotage))
        killed = [path.read_text() for path in said.values() if path.exists()]
        case.phase = killed[0] if killed else "ended before"
        lost = case.chance.random() < 0.25 and camp.ranks > camp.ranks_per_node
        tiers = {"shared"} if lost else {"shared", "local"}
        announced = [event["step"] for event in camp.events(2, "committed") if event["tier"] in tiers]
        case.detail = f"{camp.ranks}x{camp.ranks_per_node} operations {numbers} codes {codes} lost node {lost}"
        if lost:
            shutil.rmtree(camp.root / "local-0")
        _goes_on(camp, 3, least=max([30, *announced]), most=NEXT[-1])

    def _count(self, camp: Camp, orders: Orders) -> dict[str, list[int]]:
        """The operations of a rank that nothing disturbs, by phase; about: threads run as they like."""
        key = (camp.ranks, camp.ranks_per_node, orders.drained)
        if key not in self._operations:
            probe = replace(camp, root=camp.root.with_name("probe"))
            shutil.copytree(camp.root, probe.root)
            said = [probe.root.with_name(f"count-{rank}") for rank in range(camp.ranks)]
            sabotage = lambda rank: install(Count(probe.root, said[rank]))  # noqa: E731
            _insist(set(run_attempt(probe, replace(orders, sabotage=sabotage))) == {0}, "the probe failed")
            found: dict[str, list[int]] = {}
            for number, phase in enumerate(said[0].read_text().splitlines(), start=1):
                found.setdefault(phase, []).append(number)
            self._operations[key] = found
            shutil.rmtree(probe.root)
        return self._operations[key]

    def damage(self, case: Case) -> None:
        """Files at rest are damaged; what is loaded is what an independent look says, and each refusal is named."""
        ranks, per_node = case.chance.choice(LAYOUTS)
        camp, pristine = self.copy(case, ranks, per_node), self.template(ranks, per_node)
        done = inflict(camp, case.chance)
        case.phase = "+".join(sorted({kind for kind, _ in done}))
        case.detail = f"{ranks}x{per_node} " + ", ".join(f"{k} {p.relative_to(camp.root)}" for k, p in done)
        wanted = expected(camp, pristine)
        user = _give_away(case.folder) if os.geteuid() == 0 and "locked" in case.phase else None
        codes = run_attempt(camp, Orders(2, user=user))
        loaded = camp.events(2, "restored")
        if wanted is None:
            _insist(not loaded and 74 in codes, f"nothing sound was there, yet: {codes} {loaded}")
            return
        _insist(codes == [0] * ranks, f"codes {codes}: {camp.events(2, 'ended')}")
        _insist({event["step"] for event in loaded} == {wanted}, f"step {wanted} is sound, loaded {loaded}")
        _insist(all(event["sound"] for event in loaded), f"another state was loaded: {loaded}")
        events = camp.events(2, "refused_shard", "missing_shard")
        named = {(event["tier"], event["step"], event["file"]) for event in events}
        for kind, path in done:
            tier, _, step, *rest = path.relative_to(camp.root).parts
            number, file = step_of_folder(step), "/".join(rest)
            looked_at = (number == wanted and tier.startswith("local")) or file == COMMITTED_NAME
            alone = file.split("/")[-1].startswith(("zero", "rng")) or file == COMMITTED_NAME
            if looked_at and alone and (kind, file) != ("remove", COMMITTED_NAME):
                seen = ("shared" if tier == "shared" else "local", number, file)
                _insist(seen in named, f"{kind} of {seen} was refused without a word: {named}")
        for event in events:
            _insist({"tier", "file", "seen", "wanted"} <= set(event), f"a refusal that does not say all: {event}")

    def power(self, case: Case) -> None:
        """The power goes at any operation; of what POSIX lets survive, the newest announced commit is whole."""
        drained = case.chance.random() < 0.5
        camp = replace(self.template(1, 1), root=case.folder / "camp")
        record = self._record(drained)
        cut = case.chance.choice([n for n, each in enumerate(record) if each[0] != "write"] + [len(record)])
        disk, announced = Disk(self.work / f"record-{drained}", self.template(1, 1).root), [30]
        for kind, path, other, content in record[:cut]:
            if kind == "committed":
                announced.append(int(other))
            else:
                disk.play(kind, path, other, content)
        disk.after_the_cut(case.chance, camp.root)
        case.phase = f"cut before {record[cut][0]}" if cut < len(record) else "after all"
        case.detail = f"operation {cut} of {len(record)}, drained {drained}"
        _goes_on(camp, 3, least=max(announced), most=NEXT[-1])

    def _record(self, drained: bool) -> list[tuple[str, str, str, bytes]]:
        if drained not in self._records:
            camp = replace(self.template(1, 1), root=self.work / f"record-{drained}")
            shutil.copytree(self.template(1, 1).root, camp.root)
            said = self.work / f"record-{drained}.pickle"

            def sabotage(rank: int) -> None:
                recorder = Recorder(camp.root, said)
                install(recorder)
                sys.stdout = Announcing(sys.stdout, recorder)  # type: ignore[assignment]

            codes = run_attempt(camp, Orders(2, NEXT, drained, sabotage=sabotage))
            _insist(codes == [0], f"the recorded run failed: {camp.events(2, 'ended')}")
            self._records[drained] = read_record(said)
        return self._records[drained]

    def archive_case(self, case: Case) -> None:
        case.phase, case.detail = self.archive.case(case.number, case.folder, case.chance)

    def lost(self, case: Case) -> None:
        """The file system and every node go; the ranks go on from the newest sound copy in S3."""
        camp = self.copy(case, *case.chance.choice(LAYOUTS))
        step, case.phase = storage_lost.lose(camp, case.folder, case.number, case.chance)
        case.detail = f"{camp.ranks}x{camp.ranks_per_node} harmed by {case.phase}, goes on from step {step}"
        _goes_on(camp, 3, least=step, most=step)

    def close(self) -> None:
        self.archive.close()


def _goes_on(camp: Camp, attempt: int, least: int, most: int) -> None:
    """The next attempt restores soundly, saves on, and leaves both tiers tidy."""
    last = most + 10
    codes = run_attempt(camp, Orders(attempt, (last,)))
    events = camp.events(attempt, "ended")
    _insist(codes == [0] * camp.ranks, f"the next attempt failed: {codes} {events}")
    loaded = camp.events(attempt, "restored")
    steps = {event["step"] for event in loaded}
    _insist(len(steps) == 1 and len(loaded) == camp.ranks, f"ranks restored different steps: {loaded}")
    _insist(all(event["sound"] for event in loaded), f"an unsound state was loaded: {loaded}")
    (step,) = steps
    _insist(least <= step <= most, f"step {least} was announced as committed, restored {step}")
    for name, tier in camp.every_tier().items():
        manifests = tier.committed()
        _insist(manifests and manifests[0].step == last, f"{name}: step {last} is not committed")
        paths = [path for path in tier.root.rglob("*") if path.name.endswith(".partial")]
        _insist(not paths, f"{name}: temporary names are left: {paths}")
        there = {(m.step, m.attempt) for m in manifests}
        found = {(step_of_folder(p.parent.name), int(p.name[8:])) for p in tier.root.glob("step-*/attempt-*")}
        _insist(found == there, f"{name}: folders {found}, manifests {there}")


def _give_away(folder: Path) -> int:
    """A user whom permissions bind."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return NOBODY


def _insist(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def struck(row: dict[str, Any]) -> bool:
    """One that had ended before its kill was due proves nothing, and does not count."""
    return bool(row["phase"] != "ended before" or not row["ok"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", type=int, help="the number of one case, whose folder is kept")
    parser.add_argument("--kind", choices=("kill", "damage", "power", "archive", "lost"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # In memory where that can be: no case needs a disk, and fsync would be most of its time.
    memory = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)
    work, started = Path(tempfile.mkdtemp(prefix="bivouac-drill-storage-", dir=memory)), time.monotonic()
    rows: list[dict[str, Any]] = []
    work.chmod(0o755)
    drill = Drill(work, options.seed, options.kind)
    try:
        for number in itertools.count() if options.only is None else [options.only]:
            if sum(map(struck, rows)) >= options.count:
                break
            row = drill.run(number)
            rows.append(row)
            verdict = "ok" if row["ok"] else f"FAILED {row['error']}"
            print(f"{number:5} {row['kind']:8} {row['phase']:36} {row['seconds']:6.2f} s  {verdict}", flush=True)
            if not row["ok"]:
                print(f"      {row['detail']}", flush=True)
            if options.only is None:
                shutil.rmtree(work / f"case-{number}", ignore_errors=True)
    finally:
        drill.close()
        if options.only is None:
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"kept: {work}")
    seconds, failed = time.monotonic() - started, sum(not row["ok"] for row in rows)
    for (kind, phase), count in sorted(collections.Counter((row["kind"], row["phase"]) for row in rows).items()):
        print(f"{kind:8} {phase:48} {count}")
    return conclude(
        RESULTS,
        {"seed": options.seed, "seconds": round(seconds, 1), "rows": rows},
        sum(map(struck, rows)),
        failed,
        started,
    )


if __name__ == "__main__":
    sys.exit(main())

"""Bench: the supervisor of any job: what it takes, how soon a killed rank trains again, how fast it seals.

    .venv/bin/python -m tests.bench.supervisor [--part takes|restarts|warm|seals|stalls ...] [--seconds 60] [--pairs 7]

The packed supervisor runs `trainer/examples/ddp` on this machine's CPU. `takes`: its memory (PSS) and its share of a
core; beside it those of torchrun, the launcher below it. `restarts`: seconds from SIGKILL of a rank to the first new
step, through the end of one supervisor and the start of the next as the steward does it, beside a cold `torchrun` of
the same script; pairs in turns. `warm`: the same where the ranks are forked from a process that has imported torch, and
start again in place. `seals`: a finished checkpoint copied, digested and committed, beside a plain copy of the same
files to the same disk, durable as well, both without the page cache; pairs in turns. `stalls`: a training on all cores
whose checkpoints are sealed, copied with a digest by a plain loop in another process, or left alone, in turns; its
steps until the next checkpoint. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of
from tests.root import ROOT
from tests.unit.trainer.supervised import MARK, Supervisors, events
from tests.waiting import until
from trainer.supervisor import seal
from trainer.supervisor.formats import files_of
from trainer.supervisor.pack import pack

RESULTS = results_of("bench", "supervisor")

PARTS = ("takes", "restarts", "warm", "seals", "stalls")
MOST_MB, MOST_CORE, MOST_RESTART, MOST_WARM, LEAST_SEALING, MOST_STALL = 60.0, 0.01, 1.3, 0.7, 0.8, 1.01
LOOKS = 6
"""Looks at memory and processor time in `takes`."""
MIB, BLOCK = 2**20, 2 * 2**20
DDP = ROOT / "trainer/examples/ddp"
ENDLESS = "1000000"
TRAIN = """
import json, os, pathlib, subprocess, sys, time, torch
folder, copier, mib, every_s, saves = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"]), *sys.argv[1:]
mib, every_s, saves, copying = float(mib), float(every_s), int(saves), None
torch.set_num_threads(os.cpu_count())
x, state, step = torch.randn(700, 700), torch.randn(int(mib * 2**18)), 0
for save in range(3 * saves + 1):
    here = folder / f"save-{step + 1}"
    here.mkdir(parents=True)
    torch.save(state, here / "state.pt")
    with open(here / "state.pt", "rb") as file:
        os.fsync(file.fileno())
    kind = ("left", "sealed", "copied")[save % 3]
    (here / ("DONE" if kind == "sealed" else "not")).touch()
    if kind == "copied":
        copying = subprocess.Popen([sys.executable, "-c", copier, str(here / "state.pt"), str(here / "copy")])
    saved, before = time.time(), step
    while time.time() - saved < every_s:
        for _ in range(4):
            x = (x @ x).clamp(-1, 1)
        step += 1
        print(json.dumps({"step": step}), flush=True)
    step_s = (time.time() - saved) / (step - before)
    print(json.dumps({"interval": save, "kind": kind, "step_s": step_s}), flush=True)
    if copying:
        assert copying.wait() == 0
        (here / "copy").unlink(missing_ok=True)
"""
COPY = """
import hashlib, os, sys
buffer, digest = memoryview(bytearray(2 * 2**20)), hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as file, open(sys.argv[2], "wb", buffering=0) as copy:
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
        copy.write(buffer[:count])
    os.fsync(copy.fileno())
"""


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, 0
        (folder / "packed").mkdir()
        pack(folder / "packed/supervisor.pyz")

    def camp(self, launcher: str = "torchrun", keep: int = 1, **more: Any) -> Supervisors:
        self.started += 1
        root = self.folder / f"camp-{self.started}"
        root.mkdir()
        kept = {"format": "marker", "folder": str(root / "shared/tiny/own"), "keep": keep}
        camp = Supervisors(root, launcher=launcher, more={"checkpoints": kept, **more})
        camp.folder = DDP if launcher == "torchrun" else root
        camp.program = (str(self.folder / "packed/supervisor.pyz"),)
        return camp

    # What it takes.

    def takes(self, seconds: float) -> dict[str, list[float]]:
        camp = self.camp()
        process = camp.start(1, "train.py", ENDLESS, "0.2", steps=int(ENDLESS))
        try:
            first_step(process)
            launcher = child(process.pid, "")
            drain(process)
            pids = {"supervisor": process.pid, "torchrun": launcher}
            row: dict[str, list[float]] = {f"{name} {what}": [] for name in pids for what in ("MB", "share of a core")}
            for _ in range(LOOKS):
                before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
                time.sleep(seconds / LOOKS)
                took = time.monotonic() - began
                for name, pid in pids.items():
                    row[f"{name} share of a core"].append((cpu_s(pid) - before[name]) / took)
                    row[f"{name} MB"].append(pss_mb(pid))
            return row
        finally:
            end(process)

    # How soon a killed rank trains again.

    def supervised(self) -> dict[str, float]:
        camp = self.camp()
        first = camp.start(1, "train.py", ENDLESS, "0.05", steps=int(ENDLESS))
        second = None
        try:
            first_step(first)
            rank = child(child(first.pid, ""), "train.py")
            drain(first)
            until(lambda: seal.committed(camp.tier), "a checkpoint to go on from")
            began = time.monotonic()
            os.kill(rank, signal.SIGKILL)
            first.wait()
            ended = time.monotonic()
            second = camp.start(2, "train.py", ENDLESS, "0.05", steps=int(ENDLESS))
            step = first_step(second)
            assert step > 10, "it goes on from its checkpoint"
            return {"seconds": time.monotonic() - began, "until the supervisor's end": ended - began}
        finally:
            for process in filter(None, (first, second)):
                end(process)

    def warm(self) -> dict[str, float]:
        camp = self.camp(warm=["torch", "torch.distributed"])
        process = camp.start(1, "train.py", ENDLESS, "0.05", steps=int(ENDLESS))
        try:
            first_step(process)
            until(lambda: seal.committed(camp.tier), "a checkpoint to go on from")
            began = time.monotonic()
            os.kill(child(child(process.pid, ""), "train.py"), signal.SIGKILL)
            assert process.stdout is not None
            told = next(line for line in process.stdout if line.startswith(f'{MARK}{{"event": "restarted_in_place"'))
            assert json.loads(told[1:])["step"] > 10, "it goes on from its checkpoint"
            return {"seconds": time.monotonic() - began}
        finally:
            end(process)

    def cold(self) -> dict[str, float]:
        words = ["--nnodes=1", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
        words += [f"--master-port={random.randint(20000, 29000)}", "--max-restarts=0", "train.py", ENDLESS, "0.05"]
        own = tempfile.mkdtemp(dir=self.folder)
        began = time.monotonic()
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "torchrun"), *words], cwd=DDP, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=os.environ | {"BIVOUAC_CHECKPOINTS": own},
        )  # fmt: skip
        try:
            first_step(process, '{"step"')
            return {"seconds": time.monotonic() - began}
        finally:
            end(process)

    # How fast it seals.

    def checkpoint(self, mib: int, files: int) -> Path:
        root = self.folder / "own/step-1"
        root.mkdir(parents=True)
        for index in range(files):
            with (root / f"shard-{index}").open("wb") as file:
                for _ in range(mib // files):
                    file.write(os.urandom(MIB))
        os.sync()
        return root

    def sealed(self, root: Path, number: int) -> float:
        identity = seal.Identity("bench", "", number, 1, "", "", "", "")
        tier = self.folder / f"tier-{number}"
        began = time.monotonic()
        seal.seal(root, files_of(root), root.parent, tier, 1, identity, 0, None)
        took = time.monotonic() - began
        shutil.rmtree(tier)
        return took

    # What training loses meanwhile.

    def stalls(self, mib: int, every_s: float, saves: int) -> dict[str, list[float]]:
        camp = self.camp("none")
        process = camp.start(1, sys.executable, "-c", TRAIN, COPY, str(mib), str(every_s), str(saves), steps=1)
        said = process.communicate()[0]
        assert process.returncode == 0, said[-2000:]
        rows = [json.loads(line) for line in said.splitlines() if line.startswith('{"interval"')][1:]  # one warms up
        sealing = [event["seconds"] for event in events(said, "committed")]
        assert len(sealing) == saves, f"{saves} checkpoints, {len(sealing)} sealed"
        kinds = {kind: [row["step_s"] for row in rows if row["kind"] == kind] for kind in ("left", "sealed", "copied")}
        return {"sealing s": sealing} | {f"step s, {kind}": steps for kind, steps in kinds.items()}


def in_turns(
    ours: Callable[[], dict[str, float]], cold: Callable[[], dict[str, float]], pairs: int
) -> list[dict[str, dict[str, float]]]:
    sides = {"ours": ours, "cold": cold}
    return [{name: sides[name]() for name in sorted(sides, reverse=bool(number % 2))} for number in range(pairs)]


def against_cold(what: str, rows: list[dict[str, dict[str, float]]], limit: float) -> Verdict:
    ours, cold = (tuple(row[side]["seconds"] for row in rows) for side in ("ours", "cold"))
    return Verdict(what, ours, limit, "a cold torchrun", cold)


def plain(root: Path) -> float:
    """Copy all files of a folder once to the disk, one after the other."""
    buffer, began = memoryview(bytearray(BLOCK)), time.monotonic()
    target = root.parent / "plain"
    target.mkdir()
    for path in sorted(root.iterdir()):
        with path.open("rb", buffering=0) as file, (target / path.name).open("wb", buffering=0) as copy:
            while count := file.readinto(buffer):
                copy.write(buffer[:count])
            os.fsync(copy.fileno())
    took = time.monotonic() - began
    shutil.rmtree(target)
    return took


def forget(root: Path) -> None:
    """Take the files out of the page cache."""
    for path in root.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_step(process: subprocess.Popen[str], begins: str = f'{MARK}{{"event": "step"') -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(begins):
            return int(json.loads(line.lstrip(MARK))["step"])
    raise AssertionError("it ended before its first step")


def drain(process: subprocess.Popen[str]) -> None:
    """Read on elsewhere: a full pipe would hold the job."""
    subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)


def child(parent: int, word: str) -> int:
    """The child whose command line has a word in it."""

    def found() -> Iterator[int]:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                above = int(stat.read_text().rpartition(")")[2].split()[1])
                if above == parent and word in (stat.parent / "cmdline").read_text():
                    yield int(stat.parent.name)
            except OSError:
                continue

    return int(until(lambda: next(found(), 0), f"a child of {parent}"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--seconds", type=float, default=60, help="for which `takes` looks")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--mib", type=int, default=512, help="of the checkpoint")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--every", type=float, default=15, help="seconds of `stalls` after each checkpoint")
    parser.add_argument("--saves", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    told: dict[str, Any] = {"load": os.getloadavg()}
    verdicts = list[Verdict]()
    with tempfile.TemporaryDirectory(prefix="bivouac-bench-supervisor-", dir=options.folder) as name:
        bench = Bench(Path(name))
        if "takes" in options.part:
            row = told["takes"] = bench.takes(options.seconds)
            for unit, limit in (("MB", MOST_MB), ("share of a core", MOST_CORE)):
                verdicts.append(Verdict("the supervisor", tuple(row[f"supervisor {unit}"]), limit, unit=unit))
                launcher = statistics.median(row[f"torchrun {unit}"])
                print(f"torchrun's launcher, below it: {launcher:.4g} {unit}")
        if "restarts" in options.part:
            rows = told["restarts"] = in_turns(bench.supervised, bench.cold, options.pairs)
            verdicts.append(against_cold("SIGKILL of a rank to the first new step", rows, MOST_RESTART))
            until_end = statistics.median(row["ours"]["until the supervisor's end"] for row in rows)
            print(f"of a restart, until the first supervisor ends: {until_end:.2f} s")
        if "warm" in options.part:
            rows = told["warm"] = in_turns(bench.warm, bench.cold, options.pairs)
            verdicts.append(against_cold("the same, ranks forked from a warm process, in place", rows, MOST_WARM))
        if "seals" in options.part:
            root, rates = bench.checkpoint(options.mib, options.files), []
            for number in range(options.pairs + 1):
                pair = {}
                for side in ("ours", "plain") if number % 2 else ("plain", "ours"):
                    forget(root)
                    pair[side] = options.mib / (bench.sealed(root, number) if side == "ours" else plain(root))
                rates.append(pair)
            told["seals"] = rates[1:]  # the first pair warms up
            ours, peer = (tuple(row[side] for row in rates[1:]) for side in ("ours", "plain"))
            what, name = "a checkpoint sealed", "its files copied one by one"
            verdicts.append(Verdict(what, ours, LEAST_SEALING, name, peer, at_least=True, unit="MiB/s"))
        if "stalls" in options.part:
            row = told["stalls"] = bench.stalls(options.mib, options.every, options.saves)
            ours, peer = (tuple(1e3 * each for each in row[f"step s, {kind}"]) for kind in ("sealed", "copied"))
            what, name = "a step after a checkpoint that is sealed", "after one that a plain loop copies with a digest"
            verdicts.append(Verdict(what, ours, MOST_STALL, name, peer, unit="ms"))
            left_ms = 1e3 * statistics.median(row["step s, left"])
            print(
                f"sealing: {statistics.median(row['sealing s']):.2f} s; a step after one left alone: {left_ms:.3g} ms"
            )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(told | {"verdicts": [verdict.words for verdict in verdicts]}, indent=1))
    return judge(*verdicts)


if __name__ == "__main__":
    sys.exit(main())

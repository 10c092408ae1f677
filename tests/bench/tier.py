"""Bench: the local tier's writing, digests and fsync included, beside `fio` with as many writers on the same disk.

    .venv/bin/python -m tests.bench.tier [--writers 2] [--mib 512] [--rounds 7] [--folder DIR]

Each writer of ours is a process that saves one shard as a rank does: torch's format, SHA-256 as it streams, direct
I/O, fsync, rename, fsync of the folder. `fio` writes as many files of the same size with the same block, direct,
asynchronous as deep as ours, and an fsync at the end; its own figure is taken, without its start. Rounds are
interleaved, ratios are of medians. Needs `fio` (`apt-get install fio`, `dnf install fio`); exits 69 without it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of

RESULTS = results_of("bench", "tier")

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"

FLOOR, MIB = 0.8, 2**20
_UNAVAILABLE = 69
_DEPTH = 3


def writer(orders: Connection, mib: int) -> None:
    """A rank that saves when it is told to, and says the shard's digest."""
    import torch

    from trainer.builtin.checkpoint.deepspeed_engine import Snapshot
    from trainer.builtin.checkpoint.writing import Writing

    torch.set_num_threads(1)
    state = {str(index): torch.randn(64 * MIB // 4) for index in range(max(1, mib // 64))}
    orders.send("ready")
    while path := orders.recv():
        writing = Writing(Snapshot(Path(path), state), "attempt-0001/shard.pt", 0)
        writing.write()
        orders.send((writing.shard().size_bytes, writing.shard().sha256))


def ours(ranks: list[Connection], folder: Path) -> tuple[float, list[tuple[Path, str]]]:
    """MiB/s from the order to the last durable shard, and each shard with its digest."""
    paths = [folder / f"rank-{index}.pt" for index in range(len(ranks))]
    began = time.monotonic()
    for rank, path in zip(ranks, paths, strict=True):
        rank.send(str(path))
    told = [rank.recv() for rank in ranks]
    seconds = time.monotonic() - began
    return sum(size for size, _ in told) / MIB / seconds, [(p, d) for p, (_, d) in zip(paths, told, strict=True)]


def theirs(fio: str, folder: Path, writers: int, mib: int) -> float:
    command = [fio, "--name=tier", f"--directory={folder}", "--rw=write", "--bs=8M", f"--size={mib}M"]
    command += [f"--numjobs={writers}", "--direct=1", "--ioengine=libaio", f"--iodepth={_DEPTH}", "--end_fsync=1"]
    command += ["--fallocate=none", "--group_reporting", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["write"]
    return float(job["io_bytes"]) / MIB / (job["runtime"] / 1000)


def empty(folder: Path) -> None:
    """Both begin with a quiet disk and without each other's files."""
    for path in folder.iterdir():
        path.unlink()
    os.sync()


def measure(fio: str, options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    spawning, ranks, rows = multiprocessing.get_context("spawn"), [], []
    for _ in range(options.writers):
        here, there = spawning.Pipe()
        spawning.Process(target=writer, args=(there, options.mib), daemon=True).start()
        ranks.append(here)
    for rank in ranks:
        rank.recv()
    for number in range(options.rounds + 1):
        row: dict[str, float] = {}
        for side in ("ours", "fio") if number % 2 else ("fio", "ours"):
            empty(folder)
            if side == "fio":
                row[side] = theirs(fio, folder, options.writers, options.mib)
                continue
            row[side], shards = ours(ranks, folder)
            for path, digest in shards if number == 0 else ():
                with path.open("rb") as file:
                    assert hashlib.file_digest(file, "sha256").hexdigest() == digest
        if number:  # the first round warms up
            rows.append(row)
            print(f"  round {number}: ours {row['ours']:7.0f} MiB/s   fio {row['fio']:7.0f} MiB/s", flush=True)
    for rank in ranks:
        rank.send("")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--mib", type=int, default=512, help="of each writer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    fio = shutil.which("fio")
    if fio is None:
        print("fio is not here; cure: `apt-get install fio` (Debian, Ubuntu) or `dnf install fio`", file=sys.stderr)
        return _UNAVAILABLE
    version = subprocess.run([fio, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="bivouac-bench-tier-", dir=options.folder) as name:
        rows = measure(fio, options, Path(name))
    medians = {side: statistics.median(row[side] for row in rows) for side in ("ours", "fio")}
    ratio = statistics.median(row["ours"] / row["fio"] for row in rows)
    print(f"\n{options.writers} writers of {options.mib} MiB, {len(rows)} rounds, {version}, on {options.folder}")
    print(f"{'':28}{'MiB/s':>8}")
    print(f"{'ours, digests and fsync':28}{medians['ours']:>8.0f}")
    print(f"{'fio, fsync':28}{medians['fio']:>8.0f}")
    print(f"{'ratio, median of rounds':28}{ratio:>8.2f}   floor {FLOOR}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {"writers": options.writers, "mib": options.mib, "fio": version, "rows": rows}
    RESULTS.write_text(json.dumps(told | {"medians": medians, "ratio": ratio, "floor": FLOOR}, indent=1))
    ours, peer = (tuple(row[side] for row in rows) for side in ("ours", "fio"))
    return judge(Verdict("digests and fsync", ours, FLOOR, "fio", peer, at_least=True, unit="MiB/s"))


if __name__ == "__main__":
    sys.exit(main())

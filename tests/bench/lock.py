"""How fast a checkpoint is written beside a main thread that never waits: pieces of several sizes.

    .venv/bin/python -m tests.bench.lock [--megabytes 128] [--rounds 3]

The main thread runs Python without an end, as one that launches kernels does, so that the writer gets the interpreter
lock only after each switch interval. Each round writes the same state once with each size, in a turning order: pieces
of 256 KiB, as until November 2026, and larger ones. The last row is the writer with the interpreter for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"

import torch

from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of
from trainer.builtin.checkpoint import files
from trainer.builtin.checkpoint.deepspeed_engine import Snapshot
from trainer.builtin.checkpoint.writing import Writing

RESULTS = results_of("bench", "lock")
BEFORE = 2**18
SIZES = (BEFORE, 2**20, 2**22, 2**23)


def written(state: object, path: Path, busy: bool) -> tuple[float, float]:
    """Return the seconds of a write, and how many thousand turns a second the main thread made beside it."""
    path.unlink(missing_ok=True)
    ended, took = threading.Event(), list[float]()

    def write() -> None:
        begun = time.monotonic()
        Writing(Snapshot(path, state), path.name, 0).write()
        took.append(time.monotonic() - begun)
        ended.set()

    begun, turns = time.monotonic(), 0
    threading.Thread(target=write).start()
    if not busy:
        ended.wait()
    while not ended.is_set():
        for _ in range(1000):
            turns += 1
    return took[0], turns / 1000 / (time.monotonic() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    state = [torch.randn(options.megabytes * 10**6 // 16) for _ in range(4)]
    now, rows = files._PIECE_BYTES, dict[str, list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory(prefix="bench-lock-", dir=RESULTS.parent) as folder:
        path = Path(folder) / "shard.pt"
        for number in range(options.rounds):
            for size in SIZES[number % len(SIZES) :] + SIZES[: number % len(SIZES)]:
                files._PIECE_BYTES = size
                rows.setdefault(f"{size // 1024} KiB", []).append(written(state, path, busy=True))
            files._PIECE_BYTES = now
            rows.setdefault("main thread waits", []).append(written(state, path, busy=False))
    medians = {name: [statistics.median(column) for column in zip(*row, strict=True)] for name, row in rows.items()}
    for name, (seconds, turns) in medians.items():
        print(f"{name:20}{seconds:8.2f} s{options.megabytes / seconds:8.0f} MB/s{turns:10.0f} thousand turns/s")
    before, after = (tuple(took for took, _ in rows[f"{size // 1024} KiB"]) for size in (BEFORE, now))
    ratio = statistics.median(old / new for old, new in zip(before, after, strict=True))
    RESULTS.write_text(json.dumps({"rows": rows, "ratio": ratio, "load": os.getloadavg()}, indent=1))
    return judge(Verdict(f"pieces of {now // 1024} KiB", after, 1.0, f"of {BEFORE // 1024} KiB", before))


if __name__ == "__main__":
    sys.exit(main())

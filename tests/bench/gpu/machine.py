"""One GPU, or this CPU with a tiny model: what the built-in trainer costs there, and what fails there.

    python3 -m tests.bench.gpu --table gpu.json [--device cpu] [--only speed replays] [--budget-s 540]

It needs the trainer, torch, and what both import; no network. Each measurement is a process of its own, spawned on a
GPU and forked on a CPU: one that fails, or runs out of its time, leaves a row that says so, and the rest go on. The
exit code is 1 if a row has an error.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ORDER = ("zero_3", "reshaped", "speed", "replays", "loss", "saves", "restart", "evaluation", "evaluation", "steps")
LEAST_S, MOST_S = 20.0, 240.0
"""Time left below which no measurement begins, and the longest time of one."""


@dataclass(frozen=True)
class Machine:
    gpu: bool
    folder: Path
    profiles: Path | None = None
    """Folder for what takes the time of the steps of `speed`."""

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "rows.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tell(self, measurement: str, case: str, **figures: Any) -> None:
        """Add a row to the table, and print it."""
        with (self.folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps({"measurement": measurement, "case": case, **figures}) + "\n")
        numbers = [
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
        ]
        print(f"{measurement:12} {case:34}", "  ".join(numbers), flush=True)


def measure(name: str, machine: Machine) -> None:
    """Run all cases of a measurement, each for itself; without a GPU the first, which is the same code."""
    os.setsid()
    module = import_module("tests.bench.gpu.measurements")
    cases = module.CASES.get(name, [()])
    for case in cases if machine.gpu else cases[:1]:
        try:
            getattr(module, name)(machine, *case)
        except Exception as error:
            traceback.print_exc()
            machine.tell(name, ", ".join(map(str, case)), error=f"{type(error).__name__}: {error}"[:600])
        gc.collect()


def supervise(name: str, machine: Machine, limit_s: float) -> None:
    """Run a measurement, and end it and all its children after `limit_s`."""
    context: Any = multiprocessing.get_context("spawn" if machine.gpu else "fork")
    process = context.Process(target=measure, args=(name, machine))
    process.start()
    process.join(limit_s)
    if process.exitcode != 0:
        machine.tell(name, "", error=f"exit code {process.exitcode} after {limit_s:.0f} s at most")
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    for left in machine.folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="*", default=(), help="names of measurements")
    parser.add_argument("--profiles", type=Path, help="folder for the kernels' times of the steps of `speed`")
    parser.add_argument("--budget-s", type=float, default=540.0)
    options, start = parser.parse_args(), time.monotonic()
    # Torch and DeepSpeed read these at their import.
    os.environ |= {"DS_ACCELERATOR": options.device, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    if options.device == "cpu":
        os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    description = import_module("tests.bench.gpu.measurements").description()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        machine = Machine(options.device == "cuda", Path(folder), options.profiles)
        for name in options.only or ORDER:
            left_s = options.budget_s - (time.monotonic() - start)
            if left_s < LEAST_S:
                machine.tell(name, "", error="not run: the time is over")
            else:
                supervise(name, machine, min(left_s, MOST_S))
            options.table.write_text(json.dumps({"machine": description, "rows": machine.rows()}, indent=1))
        errors = sum("error" in row for row in machine.rows())
    print(f"{errors} rows with an error, {time.monotonic() - start:.0f} s, {options.table}")
    return int(errors > 0)

"""`make bench-gpu` on this CPU, with a tiny model: every measurement runs, with what a GPU machine has installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.gpu.machine import ORDER
from tests.root import ROOT

ABSENT = ("boto3", "botocore", "infra", "moto", "pulumi", "ruamel", "typer", "zstandard")
PROGRAM = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT}))
runpy.run_module("tests.bench.gpu", run_name="__main__", alter_sys=True)
"""


def test_every_measurement_runs_without_a_gpu_and_without_what_the_infrastructure_needs(tmp_path: Path) -> None:
    table = tmp_path / "gpu.json"
    command = [sys.executable, "-c", PROGRAM, "--device", "cpu", "--table", str(table), "--budget-s", "1500"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = json.loads(table.read_text())["rows"]
    assert {row["measurement"] for row in rows} == set(ORDER)
    equal = [row["equal"] for row in rows if "equal" in row]
    assert equal == [True] * 4, "on a CPU two runs, and two processes, give the same bits"


def test_a_measurement_that_fails_or_finds_no_end_leaves_a_row(tmp_path: Path) -> None:
    """In a process of its own: a measurement is forked from it, and would collect the garbage of all tests before."""
    program = f"""
import sys, time
from pathlib import Path
from types import SimpleNamespace
from tests.bench.gpu.machine import Machine, supervise

measurements = SimpleNamespace(CASES={{}}, loss=lambda machine: 1 / 0, speed=lambda machine: time.sleep(600))
sys.modules["tests.bench.gpu.measurements"] = measurements
machine = Machine(gpu=False, folder=Path({str(tmp_path)!r}))
supervise("loss", machine, 60.0)
supervise("speed", machine, 0.5)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    errors = [row["error"].partition(":")[0] for row in rows]
    assert errors == ["ZeroDivisionError", "exit code None after 0 s at most"]

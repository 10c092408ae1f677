"""Every drill and benchmark starts as the documents say: as a module, in a clone, with nothing on its path but that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import relaunch
from tests.drills import hold
from tests.root import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for folder in ("bench", "drills")
    for path in (ROOT / "tests" / folder).rglob("*.py")
    if "__main__" in path.read_text() and "argparse" in path.read_text()
)


SMALLEST = {
    "tests.bench.archive": "--size-mib 8 --pairs 1",
    "tests.bench.detection": "--only stragglers --runs 1",
    "tests.bench.exchanges": "--ranks 4 --steps 1",
    "tests.bench.lock": "--megabytes 1 --rounds 1",
    "tests.bench.loop": "--ranks 4 --steps 5",
    "tests.bench.steward": "--nodes 2 --seconds 2",
}
"""Benchmarks that a few seconds are enough for. The others start sites, gangs or minutes of training: nobody would wait
for them here, and they tell their options."""


def started(module: str, options: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [sys.executable, "-m", module, *options.split()]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.nightly
@pytest.mark.parametrize("module", sorted({*MODULES} - {*SMALLEST}))
def test_it_starts_and_tells_its_options(module: str, tmp_path: Path) -> None:
    process = started(module, "--help", tmp_path)
    assert process.returncode == 0 and "usage" in process.stdout, process.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("module", SMALLEST)
def test_it_measures_in_its_smallest_form(module: str, tmp_path: Path) -> None:
    """So small, it may miss its target, which is 1 too."""
    process = started(module, SMALLEST[module], tmp_path)
    assert process.returncode in (0, 1) and "Traceback" not in process.stderr, process.stderr
    assert re.search(r"\d", process.stdout), "a table has figures"


def test_the_documents_name_each_drill_and_no_other() -> None:
    table = (ROOT / "docs/drills.md").read_text().partition("| drill |")[2].partition("\n\n")[0]
    named = {line.split("|")[1].strip() for line in table.splitlines()[2:]}
    assert named == {one.rpartition(".")[2] for one in MODULES if ".drills." in one} - {"all"}


def test_the_code_that_a_drill_and_a_benchmark_spoil_is_where_they_look_for_it() -> None:
    assert (ROOT / hold.PLACE).read_text().count(hold.SOUND) == 1
    assert (relaunch.EXAMPLE / "train.py").read_text().count(relaunch.LOOP) == 1

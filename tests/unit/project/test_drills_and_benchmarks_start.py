"""Every drill and benchmark starts as the documents say: as a module, in a clone, with nothing on its path but that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT

MODULES = sorted(
    f"tests.{folder}.{path.stem}"
    for folder in ("bench", "drills")
    for path in (ROOT / "tests" / folder).glob("*.py")
    if "__main__" in path.read_text() and "argparse" in path.read_text()
)


@pytest.mark.nightly
@pytest.mark.parametrize("module", MODULES)
def test_it_starts_and_tells_its_options(module: str, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0 and "usage" in process.stdout, process.stderr


def test_the_documents_name_each_drill_and_no_other() -> None:
    rows = [line.split("|")[1].strip() for line in (ROOT / "docs/drills.md").read_text().splitlines() if "| " in line]
    named = {row for row in rows if row not in ("drill", "---")}
    assert named == {one.rpartition(".")[2] for one in MODULES if ".drills." in one} - {"all"}

"""The mutation harness itself, on a tiny module: what a test notices is killed, and what none notices is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.mutants.operators import mutants
from tests.root import ROOT

SOURCE = '''"""A price."""

from limits import LIMIT


def price(nodes: int) -> int:
    if nodes > LIMIT:
        raise ValueError(f"{nodes} are too many")
    return nodes * 2
'''
TEST = """from tiny import price


def test_price():
    assert price(2) == 4
"""


STARTS = """import subprocess, sys


def test_price_of_a_program():
    program = "from tiny import price; print(price(2), price(3)); price(4)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (1, "4 6\\n")
"""
HARMLESS = """tiny.py:
- {place: price, change: "return nodes * 9  =>  return nodes * 10", reason: none}
- {place: price, change: "if nodes > LIMIT:  =>  if nodes >= LIMIT:", reason: none}
"""


def test_what_a_test_notices_is_killed_and_the_rest_is_told_with_stale_entries(tmp_path: Path) -> None:
    done = _mutants(tmp_path, TEST, HARMLESS)
    survived = {line.split("): ")[1] for line in done.stdout.splitlines() if "survived (" in line}
    assert done.returncode == 1, done.stderr
    assert survived == {
        "price: if nodes > LIMIT:  =>  if False:",
        'price: raise ValueError(f"{nodes} are too many")  =>  pass',
    }
    assert "no mutant any more: price: return nodes * 9" in done.stdout
    assert "| tiny.py | 9 | 8 | 6 | 2 | 2 | 75% |" in (tmp_path / "docs" / "mutants.md").read_text()


def test_a_change_is_noticed_in_a_program_that_a_test_starts(tmp_path: Path) -> None:
    done = _mutants(tmp_path, STARTS, "{}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| tiny.py | 9 | 9 | 9 | 0 | 0 | 100% |" in (tmp_path / "docs" / "mutants.md").read_text()


def _mutants(folder: Path, test: str, harmless: str) -> subprocess.CompletedProcess[str]:
    """Try all mutants of the tiny module with one file of tests."""
    tables = folder / "tests" / "mutants"
    tables.mkdir(parents=True)
    (folder / "tiny.py").write_text(SOURCE)
    (folder / "limits.py").write_text("LIMIT = 3\n")
    (folder / "test_tiny.py").write_text(test)
    (tables / "modules.yaml").write_text("tiny.py: [test_tiny.py]\n")
    (tables / "harmless.yaml").write_text(harmless)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "tests.mutants", "--workers", "1"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_file_that_the_tables_name_exists() -> None:
    modules = yaml.safe_load((ROOT / "tests/mutants/modules.yaml").read_text())
    harmless = yaml.safe_load((ROOT / "tests/mutants/harmless.yaml").read_text())
    named = {*modules, *harmless, *(test for tests in modules.values() for test in tests)}
    assert not sorted(name for name in named if not (ROOT / name).is_file())
    assert harmless.keys() <= modules.keys()


def test_words_for_people_types_and_docstrings_are_left_as_they_are() -> None:
    source = (
        '"""A text."""\n\n\ndef f(x: int = 1) -> None:\n    """Say."""\n    emit("done", step=x + 1, why=f"{x - 1}")\n'
    )
    assert {mutant.change for mutant in mutants(source)} == {
        f"def f(x: int = 1) -> None:  =>  def f(x: int = {other}) -> None:" for other in (2, 0, 20)
    }

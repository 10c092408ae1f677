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


HARMLESS = """tiny.py:
- {place: price, change: "return nodes * 9  =>  return nodes * 10", reason: none}
- {place: price, change: "if nodes > LIMIT:  =>  if nodes >= LIMIT:", reason: none}
"""


def test_what_a_test_notices_is_killed_and_the_rest_is_told_with_the_entries_that_are_stale(tmp_path: Path) -> None:
    tables = tmp_path / "tests" / "mutants"
    tables.mkdir(parents=True)
    (tmp_path / "tiny.py").write_text(SOURCE)
    (tmp_path / "limits.py").write_text("LIMIT = 3\n")
    (tmp_path / "test_tiny.py").write_text(TEST)
    (tables / "modules.yaml").write_text("tiny.py: [test_tiny.py]\n")
    (tables / "harmless.yaml").write_text(HARMLESS)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "tests.mutants", "--workers", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    survived = {line.split("): ")[1] for line in done.stdout.splitlines() if "survived (" in line}
    assert done.returncode == 1, done.stderr
    assert survived == {
        "price: if nodes > LIMIT:  =>  if False:",
        'price: raise ValueError(f"{nodes} are too many")  =>  pass',
    }
    assert "no mutant any more: price: return nodes * 9" in done.stdout
    assert "| tiny.py | 9 | 8 | 6 | 2 | 2 | 75% |" in (tmp_path / "docs" / "mutants.md").read_text()


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

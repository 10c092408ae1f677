"""What one worker rewrites ahead is what every worker imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.worlds.rewriting import write_rewritten


def test_pytest_imports_what_was_rewritten_ahead(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "test_small.py"
    path.write_text("def test_it():\n    assert 1 + 1 == 2\n")
    compiled = write_rewritten(path, request.config)
    os.utime(compiled, (1, 1))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-c", os.devnull, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stdout
    assert compiled.stat().st_mtime == 1, "pytest has read it and has not written it anew"


def test_no_file_is_in_the_share_of_two_workers(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for number in range(4):
        (tests / f"test_{number}.py").write_text(f"def test_it():\n    assert {number} >= 0\n")
    counting = (
        "import tests.worlds.rewriting as rewriting\n"
        "from tests.worlds.rewriting import pytest_configure\n"
        "real = rewriting._rewrite_test\n"
        "def counted(path, config):\n"
        "    with open(path.parent / 'rewritten', 'a') as file:\n"
        "        print(path.name, file=file)\n"
        "    return real(path, config)\n"
        "rewriting._rewrite_test = counted\n"
    )
    (tests / "conftest.py").write_text(counting)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-c", os.devnull, str(tests)]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)}
    )
    assert run.returncode == 0, run.stdout
    rewritten = (tests / "rewritten").read_text().split()  # a worker that is early rewrites others' files as it imports
    assert len(rewritten) == len(set(rewritten)) and set(rewritten) <= {f"test_{number}.py" for number in range(4)}

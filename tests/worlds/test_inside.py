"""Each test that runs inside has a result of its own, and none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.root import ROOT

PROBE = """
import os, pytest
pytestmark = pytest.mark.inside("net", "pid")

@pytest.fixture(scope="module")
def process():
    yield os.getpid()
    raise ValueError("the end of a fixture")

def test_alone(process):
    assert os.getpid() == process < 20 and os.readlink("/proc/self/ns/net") != os.environ["OUTSIDE"]

def test_wrong(process):
    print("said before")
    assert process == "sought"

if "BIVOUAC_TESTS_INSIDE" not in os.environ:
    def test_outside_only():
        pass

def test_dying():
    os._exit(3)

def test_skipped():
    pytest.skip("for a reason")

def test_last(process):
    pass
"""


def test_each_has_its_own_result_and_what_is_not_collected_or_dies_inside_fails(tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.worlds.inside", "-p", "no:cacheprovider", str(probe)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OUTSIDE": os.readlink("/proc/self/ns/net")}
    stdout = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    rows = {line for line in stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR ", "SKIPPED"))}
    assert {"PASSED test_probe.py::test_alone", "PASSED test_probe.py::test_last"} <= rows, stdout
    for name, text in (
        ("FAILED test_probe.py::test_wrong", "in its call"),
        ("FAILED test_probe.py::test_outside_only", "test_outside_only is not collected inside"),
        ("FAILED test_probe.py::test_dying", "no answer from inside"),
        ("ERROR test_probe.py::test_last", ""),
        ("SKIPPED", "for a reason"),
    ):
        assert [row for row in rows if row.startswith(name) and text in row], (name, stdout)
    assert "assert 1 == 'sought'" in stdout and "said before" in stdout and "the end of a fixture" in stdout

"""A steward that hangs is ended with its stacks in the log; one that turns, or is over, is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

TURNS = """
import sys, time
from infra.steward import turning
turning.STUCK_S = 0.5
def hangs():
    time.sleep(1.5)
for _ in range(4):
    turning.rest(0.3)
{then}
print("came through")
"""


@pytest.mark.parametrize(("then", "ends"), [("hangs()", True), ("turning.over(); hangs()", False)])
def test_one_that_hangs_ends_and_says_where(then: str, ends: bool) -> None:
    code = TURNS.format(then=then)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "came through" in done.stdout) == ((1, False) if ends else (0, True))
    assert ("in hangs" in done.stderr) is ends

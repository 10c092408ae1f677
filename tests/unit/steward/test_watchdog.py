"""A steward that hangs is ended with its stacks in the log; one that turns, or is over, is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import HUNG_S

TURNS = """
import sys, time
from infra.steward import watchdog
watchdog.STUCK_S = 4.0
def hangs():
    time.sleep({hang})
for _ in range(4):
    watchdog.pause(1.2)
{then}
print("came through")
"""


@pytest.mark.parametrize(("then", "hang", "ends"), [("hangs()", 50, True), ("watchdog.stop(); hangs()", 5, False)])
def test_one_that_hangs_ends_and_says_where(then: str, hang: int, ends: bool) -> None:
    """Its rests together are longer than what is stuck; each alone is much shorter."""
    code = TURNS.format(then=then, hang=hang)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HUNG_S)
    assert (done.returncode, "came through" in done.stdout) == ((1, False) if ends else (0, True))
    assert ("in hangs" in done.stderr) is ends

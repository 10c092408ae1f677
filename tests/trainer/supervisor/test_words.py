"""What a supervisor hears while a line is not over, and what it says where it never had a job."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.unit.trainer.supervised import Supervisors, events

FULL = """
import tempfile
from trainer.supervisor.__main__ import start
def full(**_):
    raise OSError(28, "No space left on device", "/tmp/bivouac-run-x")
tempfile.mkdtemp = full
start()
"""


def test_a_pod_without_room_for_temporary_files_says_so_in_its_termination_message(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, program=("-c", FULL))
    assert camp.start(3, "true").wait() == 74
    end = camp.ended()
    assert (end.exit_code, end.reason, end.attempt, end.node) == (74, "storage", 3, "n0")
    assert "no folder for the run: [Errno 28] No space left on device" in end.detail and "MiB free" in end.detail


def test_a_pod_without_its_configuration_says_so_in_its_termination_message(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, variables={"BIVOUAC_WORKLOAD": "/no/such/file"})
    assert camp.start(3, "true").wait() == 64
    assert camp.ended().exit_code == 64 and "/no/such/file" in camp.ended().detail


BAR = """
import sys
for step in range(1, 10):
    for part in range(3):
        sys.stdout.write(f"\\r step {step} part {part}")
    sys.stdout.flush()
print()
"""


def test_the_steps_of_a_progress_bar_are_known_and_its_log_stays_short(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, more={"pattern": "step (?P<step>[0-9]+)"})
    out, _ = camp.start(1, sys.executable, "-c", BAR, steps=9).communicate()
    assert {event["step"] for event in events(out, "step")} == set(range(1, 10)) and camp.ended().exit_code == 0
    assert sum(" part " in line for line in out.splitlines()) < 9, "one in ten seconds, and the last"
    assert " step 9 part 2" in out.splitlines()

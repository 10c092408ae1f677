"""Jobs that fill a disk under a real supervisor: the shared tier, or the disk of temporary files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import until
from trainer.contract import ExitCode
from trainer.supervisor import seal

pytestmark = pytest.mark.inside
SAVE = """
import json, os, pathlib
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
def save(step, text):
    (folder / f"save-{step}").mkdir(parents=True, exist_ok=True)
    (folder / f"save-{step}" / "state").write_text(text)
    (folder / f"save-{step}" / "DONE").touch()
    print(json.dumps({"step": step}), flush=True)
"""
FILL = """
def fill(path):
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
"""
FILLS_TIER = f"""{SAVE}{FILL}
import time
save(1, "one")
while not (folder.parent / "step-00000001/manifest.json").exists():
    time.sleep(0.05)
(folder / "save-2").mkdir()
fill(folder / "save-2/state")
"""
GOES_ON = SAVE + "save(2, 'two')"
FILLS_TMP = f"""{SAVE}{FILL}
import itertools, time
junk = os.path.join(os.environ["TMPDIR"], "junk")
try:
    fill(junk)
except OSError:
    pass
try:
    for number in itertools.count():
        open(junk + str(number), "w").close()
except OSError:
    save(1, "one")
while True:
    time.sleep(0.05)
"""


def small(folder: Path) -> Path:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,nr_inodes=64", "tmpfs", str(folder)], check=True)
    return folder


def test_a_job_that_fills_the_shared_tier_ends_with_74_and_the_next_attempt_has_room(tmp_path: Path) -> None:
    small(tmp_path / "shared")
    job = Supervisors(tmp_path)
    job.start(1, sys.executable, "-c", FILLS_TIER, steps=2).communicate()
    first = job.ended()
    said = job.start(2, sys.executable, "-c", GOES_ON, steps=2).communicate()[0]
    assert (first.exit_code, first.reason) == (ExitCode.STORAGE, "storage")
    assert "no room is left" in first.detail and "of 3.0 MiB free" in first.detail
    assert "No space left on device" in first.detail, "and what the job said"
    assert events(said, "restored")[0]["step"] == 1 and job.ended().exit_code == 0
    assert seal.committed(job.tier) == [2, 1]


def test_a_full_disk_of_temporary_files_keeps_no_job_from_sealing_or_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(small(tmp_path / "tmp")))
    job = Supervisors(tmp_path)
    process = job.start(1, sys.executable, "-c", FILLS_TMP, steps=2)
    until(lambda: seal.committed(job.tier), "it trains and seals on")
    process.terminate()
    process.communicate()
    assert job.ended().exit_code == ExitCode.INTERRUPTED and job.ended().signal == 15, "long before the grace is over"
    assert seal.committed(job.tier) == [1]

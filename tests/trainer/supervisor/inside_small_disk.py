"""Run in a private mount namespace: a job fills the shared tier, another one the disk of temporary files.

python -m tests.trainer.supervisor.inside_small_disk FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import until
from trainer.supervisor import seal

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


def tier(root: Path) -> dict[str, object]:
    small(root / "shared")
    camp = Supervisors(root)
    said = [camp.start(1, sys.executable, "-c", FILLS_TIER, steps=2).communicate()[0]]
    ends = [camp.ended().model_dump()]
    said.append(camp.start(2, sys.executable, "-c", GOES_ON, steps=2).communicate()[0])
    ends.append(camp.ended().model_dump())
    return {"ends": ends, "restored": events(said[1], "restored"), "sealed": seal.committed(camp.tier)}


def temporary(root: Path) -> dict[str, object]:
    os.environ["TMPDIR"] = str(small(root / "tmp"))
    camp = Supervisors(root)
    process = camp.start(1, sys.executable, "-c", FILLS_TMP, steps=2)
    until(lambda: seal.committed(camp.tier), "it trains and seals on")
    process.terminate()
    process.communicate()
    return {"ends": [camp.ended().model_dump()], "sealed": seal.committed(camp.tier)}


def main() -> int:
    root = Path(sys.argv[1])
    print(json.dumps({"tier": tier(root / "a"), "temporary": temporary(root / "b")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

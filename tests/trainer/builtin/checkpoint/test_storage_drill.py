"""The short form of the storage drill, and that its oracle sees a protocol that is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT

DRILL = "tests.drills.storage"

COUNT = 50


def drill(results: Path, *options: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = f"{code}\nimport runpy\nrunpy.run_module({DRILL!r}, run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", start, *options]
    environment = os.environ | {"BIVOUAC_RESULTS": str(results), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_seeded_storage_kills_and_corruptions_load_nothing_unsound_and_lose_nothing(tmp_path: Path) -> None:
    done = drill(tmp_path, "--seed", "2", "--count", str(COUNT))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"{COUNT} cases, 0 failed" in done.stdout.splitlines()[-1]
    assert (tmp_path / "drills/storage.json").exists()


BROKEN = {
    "power: a shard that is not fsynced": "import os; from trainer.builtin.checkpoint import files; "
    "real = os.fsync; files.os = type('o', (), {**vars(os), 'fsync': staticmethod(lambda fd: None)})",
    "damage: a digest that is not compared": "from trainer.builtin.checkpoint import restore as r, search as s; "
    "r.look = s.look = "
    "lambda path, shard, pauses_s=(): ('' if path.is_file() else 'missing', ()); r._insist = lambda *rest: None",
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.nightly
def test_the_drill_fails_on(broken: str, tmp_path: Path) -> None:
    done = drill(tmp_path, "--seed", "2", "--count", "6", "--kind", broken.split(":")[0], code=BROKEN[broken])
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-2000:]
    assert "FAILED" in done.stdout
    assert "TypeError" not in done.stdout + done.stderr, "it failed for the way in which it was broken"

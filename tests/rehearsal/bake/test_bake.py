"""Both images baked on machines of the emulated AWS, in private namespaces: see inside_bake.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HUNG_S

INSIDE = Path(__file__).with_name("inside_bake.py")


@pytest.mark.nightly
def test_images_are_baked_on_builders_that_are_gone_afterwards_whatever_happens(tmp_path: Path) -> None:
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    unshare += ["--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    inner = [sys.executable, "-m", "pytest", str(INSIDE), "-p", "no:cacheprovider", "-s"]
    environment = {**os.environ, "BAKE_WORK": str(tmp_path / "site")}
    answer = subprocess.run([*unshare, *inner], env=environment, capture_output=True, text=True, timeout=HUNG_S)
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout[-12000:] + answer.stderr[-2000:]

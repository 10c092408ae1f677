"""boot.yml and validate.yml applied with all roles, in a mount namespace of their own: see inside_boot.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HUNG_S

INSIDE = Path(__file__).with_name("inside_boot.py")


@pytest.mark.parametrize("layout", ["archives", "trees"])
@pytest.mark.nightly
def test_all_roles_validate_and_configure_a_machine_that_looks_like_the_base(layout: str, tmp_path: Path) -> None:
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]
    inner = [sys.executable, "-m", "pytest", str(INSIDE), "-p", "no:cacheprovider", "-q"]
    environment = {**os.environ, "BOOT_WORK": str(tmp_path), "BOOT_LAYOUT": layout}
    answer = subprocess.run([*unshare, *inner], env=environment, capture_output=True, text=True, timeout=HUNG_S)
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-2000:]

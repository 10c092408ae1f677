"""Commands and copies in a nodelet's container, in private namespaces and without a control plane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import HUNG_S

INSIDE = Path(__file__).with_name("inside_exec.py")


def test_commands_and_copies_in_a_nodelets_container(tmp_path: Path) -> None:
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    unshare += ["--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    inner = [sys.executable, "-m", "pytest", str(INSIDE), "-p", "no:cacheprovider", "-q"]
    answer = subprocess.run(
        [*unshare, *inner], env={**os.environ, "EXEC_WORK": str(tmp_path)}, capture_output=True, text=True,
        timeout=HUNG_S,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout[-12000:] + answer.stderr[-2000:]

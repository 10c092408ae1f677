from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.folders import tools_dir
from tests.waiting import HUNG_S
from tests.waiting import until as eventually

INSIDE = Path(__file__).with_name("inside_control_plane.py")


@pytest.mark.nightly
def test_a_control_plane_lives_serves_and_dies_in_private_namespaces(tmp_path: Path) -> None:
    if not (tools_dir() / "kube-apiserver").exists():
        pytest.fail("no Kubernetes binaries: make setup")
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    unshare += ["--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    inner = [sys.executable, "-m", "pytest", str(INSIDE), "-p", "no:cacheprovider", "-s"]
    environment = {**os.environ, "CONTROL_PLANE_WORK": str(tmp_path / "control-plane")}
    answer = subprocess.run([*unshare, *inner], env=environment, capture_output=True, text=True, timeout=HUNG_S)
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-2000:]


def test_a_component_dies_with_a_parent_that_is_killed_but_not_with_the_thread_that_asked_for_it(
    tmp_path: Path,
) -> None:
    script = """
import sys, threading, time
from pathlib import Path
from infra.rehearsal.kubernetes.component import Component
component = Component("sleep", ["sleep", "300"], Path(sys.argv[1]) / "sleep.log")
thread = threading.Thread(target=component.start); thread.start(); thread.join()
print(component._process.pid, component.alive(), flush=True)
time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid, alive = parent.stdout.readline().split()
    assert alive == "True"
    eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"))
    parent.kill()
    parent.wait()
    eventually(lambda: not is_running(int(pid)))


def is_running(pid: int) -> bool:
    """False for a zombie too: an orphan may wait for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

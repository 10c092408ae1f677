from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import until as eventually


def test_a_component_dies_with_a_killed_parent_but_not_with_the_thread_that_began_it(
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

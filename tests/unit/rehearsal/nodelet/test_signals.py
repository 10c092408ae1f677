"""Which processes of a machine a signal reaches: here a tree of plain processes stands for the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.rehearsal.nodelet.machine import Machine
from tests.waiting import until

INIT = """
import os, subprocess, sys, time
idle = subprocess.Popen(["sleep", "1000000"])
command = [sys.executable, "-c", os.environ["PARENT"], os.environ["MARK"]]
parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
print(idle.pid, parent.pid, parent.stdout.readline().strip(), flush=True)
time.sleep(10**6)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(10**6)
"""
MARK = "supervisor-of-a-test"


class Family:
    """init -> sleep, and init -> parent -> busy child; the last two have the mark in their command lines."""

    def __init__(self, init: subprocess.Popen[str]) -> None:
        assert init.stdout is not None
        self.pids = [int(word) for word in init.stdout.readline().split()]
        settings: Any = None
        process: Any = init
        self.machine = Machine(settings, process, "")
        # Until then the parent may have worked more than its child, on a busy machine.
        until(lambda: self._child_ticks() >= 20, "the child has worked")

    def _child_ticks(self) -> int:
        return int(Path(f"/proc/{self.pids[2]}/stat").read_text().rpartition(")")[2].split()[11])

    def stopped(self) -> tuple[str, ...]:
        states = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in self.pids)
        return tuple(n for n, state in zip(("idle", "parent", "child"), states, strict=True) if state == "T")


@pytest.fixture
def family() -> Iterator[Family]:
    environment = os.environ | {"PARENT": PARENT, "MARK": MARK}
    command = [sys.executable, "-c", INIT]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as init:
        try:
            yield Family(init)
        finally:
            os.killpg(init.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("process", "which", "stopped"),
    [
        (MARK, "all", ("parent", "child")),
        (MARK, "top", ("parent",)),
        (MARK, "busiest", ("child",)),
        ("", "busiest", ("child",)),
        ("sleep 1000000", "all", ("idle",)),
    ],
)
def test_a_signal_reaches_the_processes_that_were_meant(
    family: Family, process: str, which: Any, stopped: tuple[str, ...]
) -> None:
    assert family.machine.signal(process, which, signal.SIGSTOP) == len(stopped)
    until(lambda: family.stopped() == stopped, lambda: f"{stopped} stop, not {family.stopped()}")


@pytest.mark.parametrize("which", ["all", "top", "busiest"])
def test_a_process_that_is_not_there_is_not_hit(family: Family, which: Any) -> None:
    assert family.machine.signal("no-such-process", which, signal.SIGKILL) == 0
    assert family.stopped() == ()


def test_a_throttled_process_is_held_again_and_again_and_runs_on_afterwards(family: Family) -> None:
    family.machine.harm("slow", {"which": "busiest", "seconds": "2", "share": "0.5"})
    for _ in range(2):
        until(lambda: family.stopped() == ("child",), "it is held")
        until(lambda: family.stopped() == (), "it goes on")

"""What the supervisor knows of the processes below it, and that none of them outlives it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import until
from trainer.supervisor import family
from trainer.supervisor.family import Process

TREE = {
    1: Process(0, "S", 0.0), 10: Process(1, "S", 0.0), 11: Process(10, "S", 0.0), 12: Process(11, "R", 0.0),
    20: Process(1, "S", 0.0), 21: Process(20, "S", 0.0),
}  # fmt: skip


def test_descendants_are_children_and_theirs_without_the_process_itself() -> None:
    assert family.descendants_of(10, TREE) == {11, 12} and family.descendants_of(1, TREE) == {10, 11, 12, 20, 21}
    assert family.descendants_of(12, TREE) == family.descendants_of(99, TREE) == set()


def test_a_process_is_known_by_parent_state_and_processor_time_whatever_its_name() -> None:
    """The name stands in brackets before the fields, and may have brackets and spaces of its own."""
    program = (
        "import time; open('/proc/self/comm', 'w').write('a) R 1 (')\n"
        "while time.process_time() < 0.3: pass\n"
        "print('worked', flush=True); input()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        until(lambda: family.processes()[child.pid].state == "S", "it waits for a line")
        process = family.processes()[child.pid]
        assert process.parent == os.getpid() and process.seconds > 0.2
        child.stdin.close()
        until(lambda: family.processes()[child.pid].state == "Z", "it has ended, and nobody has asked how")
    finally:
        child.kill()
        child.wait()
    assert child.pid not in family.processes()


def test_processor_time_is_user_plus_system_and_a_look_leaves_no_file_open() -> None:
    opened = len(os.listdir("/proc/self/fd"))
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = family.processes()[os.getpid()].seconds
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert before.ru_utime - before.ru_stime > 0.1, "the two differ"
    assert before.ru_utime + before.ru_stime - 0.05 <= seconds <= after.ru_utime + after.ru_stime + 0.05
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_process_that_cannot_be_seen_is_not_one_that_has_ended(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left, now = getattr(os, call), [2], [0.0]

    def refuse(*given: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*given)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="Too many"):
        family.processes()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(family, "time", clock)
    assert family.end_all(None) == [] and left == [0], "it looks again"
    left[0] = 10**9
    with pytest.raises(OSError, match="Too many"):
        family.end_all(None)
    assert now[0] > family._STUBBORN_S


def test_the_ends_of_adopted_children_are_taken_and_the_launchers_is_left() -> None:
    children = [subprocess.Popen(["true"]) for _ in range(2)]
    until(lambda: all(family.processes()[child.pid].state == "Z" for child in children), "both have ended")
    living = subprocess.Popen(["sleep", "1000"])
    try:
        family.bury(family.processes(), children[0].pid)
        processes = family.processes()
        assert children[0].pid in processes and children[1].pid not in processes and living.pid in processes
        assert children[0].wait() == 0
    finally:
        living.kill()
        living.wait()
        children[1].wait()


ENDS = '''
import os, subprocess, sys
from trainer.supervisor import family
family.adopt()
launcher = subprocess.Popen(["sleep", "1000"])
spared = subprocess.Popen(["sleep", "1000"])
left_behind = """
import subprocess
print(subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""
daemon = int(subprocess.run([sys.executable, "-c", left_behind], stdout=subprocess.PIPE).stdout)
assert family.processes()[daemon].parent == os.getpid(), "its parent has ended"
print(family.end_all(launcher.pid, {spared.pid}))
left = family.processes()
print(daemon in left, left[launcher.pid].state, left[spared.pid].state != "Z", launcher.wait())
print(family.end_all(None), spared.wait())
'''


def test_all_below_the_supervisor_end_but_the_spared_and_the_launchers_end_is_kept() -> None:
    said = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True)
    assert said.stdout.split("\n") == ["[]", "False Z True -9", "[] 0", ""], said.stderr


def test_what_does_not_end_is_told_after_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, kills = [100.0], list[tuple[int, int]]()

    def sleep(seconds: float) -> None:
        now[0] += 1.0

    own = os.getpid()
    stubborn = {
        own: Process(1, "R", 0.0),
        8: Process(own, "D", 0.0),
        7: Process(8, "D", 0.0),
        9: Process(own, "Z", 0.0),
    }
    monkeypatch.setattr(family, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(family, "processes", lambda: stubborn)
    monkeypatch.setattr(family, "bury", lambda by_pid, launcher: None)
    monkeypatch.setattr(family.os, "kill", lambda pid, number: kills.append((pid, number)))
    assert family.end_all(None) == [7, 8] and now[0] == 121.0
    assert set(kills) == {(7, signal.SIGKILL), (8, signal.SIGKILL)}


def test_a_process_that_ends_while_it_is_killed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    looks: list[dict[int, Any]] = [{own: Process(1, "R", 0.0), 8: Process(own, "R", 0.0)}, {own: Process(1, "R", 0.0)}]

    def refuse(pid: int, number: int) -> None:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(family, "processes", lambda: looks.pop(0))
    monkeypatch.setattr(family, "bury", lambda by_pid, launcher: None)
    monkeypatch.setattr(family.os, "kill", refuse)
    assert family.end_all(None) == [] and looks == []


FORKS = """
import os, time
from trainer.supervisor import family
parent = os.fork()
if not parent:
    if not os.fork():
        family.end_with_parent()
        print("ready", flush=True)
    time.sleep(1000)
input()
os.kill(parent, 9)
os.waitpid(parent, 0)
input()
"""


def test_a_process_ends_with_the_one_that_forked_it() -> None:
    top = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert top.stdout is not None and top.stdin is not None and top.stdout.readline() == "ready\n"
        by_pid = family.processes()
        (child,) = (pid for pid in family.descendants_of(top.pid, by_pid) if by_pid[pid].parent != top.pid)
        top.stdin.write("\n")
        top.stdin.flush()
        until(lambda: family.processes().get(child, Process(0, "Z", 0.0)).state == "Z", "it ends")
    finally:
        top.kill()
        top.wait()


GIVES_WAY = """
import os, threading
from trainer.supervisor import family
values = []
def work():
    family.give_way()
    values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
before = os.getpriority(os.PRIO_PROCESS, 0)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(values[0], os.getpriority(os.PRIO_PROCESS, 0) == before)
"""


def test_a_thread_gives_way_and_the_process_does_not() -> None:
    done = subprocess.run([sys.executable, "-c", GIVES_WAY], capture_output=True, text=True)
    assert done.stdout == "10 True\n", done.stderr

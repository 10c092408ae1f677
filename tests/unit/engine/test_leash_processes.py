"""Which processes the leash sees: real ones of this machine, with a mark of their own in each test."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.engine import leash
from tests.waiting import until

SLEEP = shutil.which("sleep") or ""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def mark() -> str:
    return f"tested/{secrets.token_hex(8)}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process of this name; all are ended after the test."""
    started = list[subprocess.Popen[bytes]]()

    def run(mark: str | None, name: str = "plugin", *command: str) -> subprocess.Popen[bytes]:
        program = tmp_path / name
        if not program.exists():
            shutil.copy(sys.executable if command else SLEEP, program)
        env = {"PATH": "/nowhere", "BEFORE": "1"} | ({"BIVOUAC_ENGINE": mark} if mark is not None else {})
        started.append(subprocess.Popen([str(program), *(command or ("60",))], env=env))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_marked_are_the_living_processes_that_carry_the_mark(start: Start, mark: str) -> None:
    mine, another, bare = start(mark), start(f"{mark}-2"), start(None)
    until(lambda: leash.mark_of(another.pid) == f"{mark}-2", what="the process was started")
    assert leash.mark_of(mine.pid) == mark and leash.mark_of(bare.pid) is None
    assert leash.marked_processes(mark) == {mine.pid: mark}
    every = leash.marked_processes()
    assert every[mine.pid] == mark and every[another.pid] == f"{mark}-2" and bare.pid not in every


def test_who_has_ended_is_not_living_though_nobody_has_taken_note_of_it(start: Start, mark: str) -> None:
    one = start(mark)
    until(lambda: leash.marked_processes(mark), what="the process was started")
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: leash._zombie(one.pid), what="the process has ended")
    assert leash.marked_processes(mark) == {}
    one.wait()
    assert leash._zombie(one.pid) and leash.mark_of(one.pid) is None and leash._parent(one.pid) == 0
    assert not leash._zombie(os.getpid())


def test_a_parent_is_told_whatever_the_process_is_called(start: Start, mark: str) -> None:
    one = start(mark, "a) S 1 (b")
    assert leash._parent(one.pid) == os.getpid() and leash._parent(os.getpid()) == os.getppid()


@pytest.mark.parametrize(("name", "engine"), [("pulumi", True), ("pulumi-aws", False), ("plugin", False)])
def test_the_engine_is_who_is_called_so(start: Start, mark: str, name: str, engine: bool) -> None:
    one = start(mark, name)
    until(lambda: leash.mark_of(one.pid) == mark, what="the process was started")
    assert leash._is_engine(one.pid) is engine
    one.kill()
    one.wait()
    assert not leash._is_engine(one.pid)


def test_roots_are_those_that_no_other_marked_process_started() -> None:
    me, parent = os.getpid(), os.getppid()
    assert leash._roots({me: "m", parent: "m"}) == [parent] and leash._roots({me: "m"}) == [me]


def test_a_signal_to_who_is_gone_or_not_ours_is_no_error(
    start: Start, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(mark)
    leash._send(one.pid, signal.SIGTERM)
    assert one.wait() == -signal.SIGTERM
    leash._send(one.pid, signal.SIGTERM)

    def refused(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    leash._send(1, signal.SIGTERM)


def test_time_goes_on_in_the_machines_sleep() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= leash.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_leash_heeds_no_signal_that_ends_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = list[tuple[int, object]]()
    monkeypatch.setattr(leash.signal, "signal", lambda number, how: ignored.append((number, how)))
    monkeypatch.setattr(leash, "BOUND_S", -1.0)
    monkeypatch.setattr(leash, "end", lambda mark: None)
    assert leash.main("m") == 1
    ignore = signal.SIG_IGN
    assert ignored == [(number, ignore) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

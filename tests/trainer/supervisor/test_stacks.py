"""The stacks of a hung job's processes: Python's where there is a handler, the kernel's of all; nobody dies of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.supervisor import stacks
from trainer.supervisor.place import Place
from trainer.supervisor.running import Running

HANGS = """
import sys, threading
from pathlib import Path
from trainer.supervisor import stacks
if sys.argv[1] != "bare":
    stacks.register(Path(sys.argv[1]))
def waits_for_a_rank_that_never_comes(lock):
    print("ready", flush=True)
    lock.acquire()
lock = threading.Lock()
lock.acquire()
waits_for_a_rank_that_never_comes(lock)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def hang(started: list[subprocess.Popen[bytes]], folder: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HANGS, folder], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def of(text: str, pid: int) -> str:
    (part,) = [part for part in text.split("\nprocess ") if part.removeprefix("process ").startswith(f"{pid},")]
    return part


def test_a_rank_that_hangs_shows_the_line_where_it_waits_each_time_and_lives_on(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    rank = hang(started, str(tmp_path))
    for _ in range(2):
        part = of(stacks.dump(tmp_path), rank.pid)
        assert part.count("in waits_for_a_rank_that_never_comes") == 1 and "thread" in part
    assert rank.poll() is None


def test_a_process_without_a_handler_is_sent_no_signal(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    bare = hang(started, "bare")
    part = of(stacks.dump(tmp_path), bare.pid)
    assert "no Python stack" in part and f"thread {bare.pid}" in part and bare.poll() is None


def test_a_process_that_has_taken_the_number_of_one_that_had_a_handler_is_sent_no_signal(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    bare = hang(started, "bare")
    (tmp_path / f"stacks-{bare.pid}.txt").write_text("")
    part = of(stacks.dump(tmp_path), bare.pid)
    assert "no Python stack" in part and bare.poll() is None


def test_a_stopped_rank_is_told_as_stopped_and_not_waited_for(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    rank = hang(started, str(tmp_path))
    os.kill(rank.pid, signal.SIGSTOP)
    while Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    part = of(stacks.dump(tmp_path), rank.pid)
    assert "state T" in part and "is stopped" in part
    os.kill(rank.pid, signal.SIGCONT)
    assert "waits_for_a_rank" in of(stacks.dump(tmp_path), rank.pid)


def test_every_agent_answers_it_with_secrets_left_out(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "waits_for_a_rank_that_never_comes")
    place = Place("c", 1, "n", "127.0.0.1", 0, 1, 1, "")
    job = Running({"secrets": ["TOKEN"]}, place, tmp_path)
    hang(started, str(tmp_path))
    answer = job.answer_any("/stacks")
    assert answer is not None and answer[0] == 200
    text = json.loads(answer[1])["stacks"]
    assert "process" in text and "waits_for_a_rank" not in text
    with pytest.raises(NotImplementedError):
        job.answer_any("/checkpoints")


def reader(folder: Path, script: str, patch: pytest.MonkeyPatch) -> None:
    """A py-spy of this test's own on PATH."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_job_without_a_handler_is_read_by_py_spy_where_the_image_has_it(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader(tmp_path, 'echo "$@"; echo "wait (train.py:7)"', monkeypatch)
    bare = hang(started, "bare")
    part = of(stacks.dump(tmp_path), bare.pid)
    assert f"dump --nonblocking --pid {bare.pid}\nwait (train.py:7)" in part and bare.poll() is None


def test_what_py_spy_may_not_read_is_said_and_the_kernel_s_view_stays(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader(tmp_path, "echo Permission denied >&2; exit 1", monkeypatch)
    bare = hang(started, "bare")
    part = of(stacks.dump(tmp_path), bare.pid)
    assert "no Python stack: py-spy: Permission denied" in part and f"thread {bare.pid}" in part
